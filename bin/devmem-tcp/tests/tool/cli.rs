//! The command line: refusals, messages and exit codes.

mod fetch;

use std::path::Path;
use std::process::Stdio;

use crate::common::run;

/// Invalid command lines, and what their error says.
const WRONG_USAGE: &[(&str, &str)] = &[
    ("demo --bytes 0", "--bytes 0"),
    ("demo --connections 0", "--connections 0"),
    ("demo --impair loss=2", "--impair: "),
    ("recv --link eth0", "--link: 'eth0' names no link"),
    ("recv -o - --json", "both write to stdout"),
    ("recv --niov 3K", "--niov: "),
    (
        "send 10.78.0.1",
        "10.78.0.1 is not in the network 10.77.0.2/24",
    ),
    ("send 10.77.0.1 --chunk 0", "--chunk 0"),
    ("send 10.77.0.1 --chunk 17M", "--chunk 17 MiB"),
    ("send 10.77.0.1 --mem-size 5000", "--mem-size"),
    ("send 10.77.0.1 --bytes 1K -v 1", "--validate 1: 2 to 256"),
    ("send 10.77.0.1 --link eth0", "--link: 'eth0' names no link"),
    (
        "recv --link packet:eth0,ports=5210-5201 --addr 10.0.0.2/24",
        "--link: '5210-5201' is not a range of ports: its first port is above its last; write it as 5201-5210",
    ),
    (
        "send --link packet:eth0,ports=0-7 --addr 10.0.0.2/24 10.0.0.1",
        "--link: '0-7': port 0 is no port",
    ),
    (
        "load --link packet:eth0,ports=1-9000 --addr 10.0.0.2/24 http://10.0.0.1/x",
        "9000 ports, and at most 256 can be shared",
    ),
    (
        "recv --link packet:eth0,ports=5201-5210 --addr 10.0.0.2/24 -p 80",
        "--port 80 is not one of the ports 5201-5210 that --link leaves to us",
    ),
    (
        "send 10.77.0.1 --send-buffer 1K",
        "--send-buffer 1 KiB: 4 KiB to 1 GiB",
    ),
    (
        "recv --receive-buffer 2G",
        "--receive-buffer 2 GiB: 4 KiB to 1 GiB",
    ),
    (
        "demo --direction tx --congestion vegas",
        "--congestion vegas: our stack, which sends in this direction, has cubic, reno, bbr and dctcp",
    ),
    (
        "load --backend kernel --if lo --pacing http://10.77.0.1/x",
        "--pacing: only the user backend supports it",
    ),
    ("wire --a tap:x --b tap:x", "the same end"),
    ("lab run --nics 9 -- true", "--nics 9: 0 to 8"),
    (
        "lab run --memory 1M -- true",
        "--memory 1 MiB: 256M or more",
    ),
    ("lab run --wire tap:x -- true", "--wire is for --nics 1"),
    ("lab run --env A -- true", "is not NAME=VALUE"),
    ("lab run --get tmp -- true", "must be an absolute path"),
    (
        "lab run --put /nonexistent -- true",
        "is neither a file nor a folder",
    ),
    ("recv --backend kernel", "--backend kernel needs --if NAME"),
    (
        "recv --backend kernel --if lo --mtu 9000",
        "--mtu: only the user backend supports it",
    ),
    (
        "recv --backend user --if lo",
        "--if: the user backend does not",
    ),
    ("send 10.77.0.1 --backend kernel", "--backend kernel needs"),
    (
        "send 10.78.0.1 --gateway 10.79.0.1",
        "--gateway 10.79.0.1 is not in the network",
    ),
];

#[test]
fn wrong_usage_ends_with_2_and_one_line_that_names_the_option() {
    for (line, text) in WRONG_USAGE {
        let finished = run(line);
        finished.failed_with(2, text);
        assert_eq!(
            finished.stderr.lines().count(),
            1,
            "{line}: {}",
            finished.stderr
        );
        assert!(finished.stdout.is_empty(), "{line}");
    }
}

#[test]
fn an_invalid_destination_is_refused_with_the_correct_command() {
    let cases = [
        (
            "send localhost",
            "localhost is the kernel's loopback interface; to reach this host through the TAP: devmem-tcp send --peer-addr \
             10.77.0.1/24 10.77.0.1",
        ),
        ("send localhost:5201", "send --peer-addr 10.77.0.1/24"),
        (
            "send 127.0.0.1 --peer-addr 10.77.0.7/24",
            "send --peer-addr 10.77.0.7/24 10.77.0.7",
        ),
        (
            "send localhost --link packet:eth0 --addr 10.0.0.2/24",
            "localhost is the kernel's loopback interface; packet:eth0 reaches other hosts; to reach this one, send over a TAP: ",
        ),
        (
            "send example.org:80",
            "\"example.org:80\" is not an IP address; `getent ahosts example.org`",
        ),
        (
            "send 10.77.0.1:80 81",
            "10.77.0.1:80 81: two different ports",
        ),
        ("send 10.77.0.1:0", "PORT 0: must be 1 to 65535"),
    ];
    for (line, text) in cases {
        run(line).failed_with(2, text);
    }
}

#[cfg(not(feature = "watch"))]
#[test]
fn watch_without_its_feature_is_unsupported_and_says_how_to_get_it() {
    let remedy = "--watch is not part of this build; the Debian package has it; `cargo build --release -p devmem-tcp-cli \
                  --features watch` builds it";
    for command in ["demo", "recv", "send 10.77.0.1"] {
        run(&format!("{command} --watch")).failed_with(3, remedy);
    }
}

#[cfg(feature = "watch")]
#[test]
fn watch_without_a_terminal_is_a_usage_error() {
    for command in ["demo", "recv", "send 10.77.0.1"] {
        run(&format!("{command} --watch")).failed_with(2, "--watch needs a terminal on stderr");
    }
}

#[test]
fn errors_of_the_argument_parser_end_with_2() {
    for line in [
        "",
        "nosuch",
        "demo --bytes 5X",
        "recv --port 70000",
        "wire --a tap:x",
        "send",
        "send 10.77.0.1 -v 7",
        "send 10.77.0.1 --bytes 1K -i file",
        "recv --dry-run",
        "recv --configured",
        "recv --if lo --first-queue 1",
        "recv --if lo --dry-run --configured",
        "lease eth1",
        "broker",
        "broker /run/b",
        "broker /run/b --allow eth1:1",
        "recv --broker /run/b",
        "recv --if lo --broker /run/b --configured",
        "recv --if lo --broker /run/b --dry-run",
        "lease eth1 --pod netns=pod,addr=10.0.0.9",
    ] {
        assert_eq!(run(line).code, Some(2), "{line}");
    }
}

#[test]
fn help_has_examples_and_the_meaning_of_the_exit_codes() {
    for command in [
        "demo", "recv", "send", "wire", "nic", "doctor", "lease", "restore",
    ] {
        let help = run(&format!("{command} --help"));
        assert_eq!(help.code, Some(0));
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(text.contains("Examples:"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
    let text = String::from_utf8(run("--help").stdout).unwrap();
    assert!(text.contains("Exit status: 0 done, 1 failed, 2 wrong usage, 3 not supported"));
    assert!(
        !text.contains("__sender"),
        "the commands of the demo's second process are hidden"
    );
}

#[test]
fn a_missing_network_namespace_is_a_failure_with_its_path() {
    let finished = run("wire --a tap:x --a-netns nosuch --b tap:y");
    finished.failed_with(1, "open network namespace /run/netns/nosuch: ");
}

#[test]
fn an_empty_cache_without_a_network_is_unsupported_and_no_folder_is_created() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let cache = folder.path().join("cache");
    let cache_text = cache.to_str().expect("the temporary folder is UTF-8");
    let finished = run(&format!("lab status --packaged --cache {cache_text}"));
    finished.failed_with(3, "; ");
    assert!(finished.stdout.is_empty());
    assert!(!cache.exists(), "`lab status` creates no folder");
}

/// A file that fails every write, like a full disk.
fn full() -> std::fs::File {
    std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("every Linux has it")
}

#[test]
fn a_failing_stderr_does_not_change_the_exit_code() {
    let code = |line: &str| {
        let mut command = crate::common::tool();
        command.args(line.split_whitespace()).stderr(full());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.status().expect("the tool starts").code()
    };
    assert_eq!(code("recv --port 0"), Some(2));
    assert_eq!(code("ncdevmem -l"), Some(1));
    assert_eq!(code("restore --list nosuch0"), Some(0));
    assert_eq!(code("demo --link wire --mem-size 8M --bytes 1M"), Some(0));
}

#[test]
fn a_full_disk_on_stdout_is_a_failure_with_its_reason() {
    for line in [
        "ncdevmem -h",
        "doctor --json lo",
        "restore --list --json nosuch0",
    ] {
        let mut command = crate::common::tool();
        command.args(line.split_whitespace()).stdout(full());
        let output = command.stdin(Stdio::null()).output();
        let output = output.expect("the tool starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(": write to stdout: No space left"), "{said}");
    }
}

/// Copies the tool to an empty folder, without the other programs.
fn tool_in_a_folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let copy = folder.path().join("devmem-tcp");
    install(Path::new(crate::common::tool().get_program()), &copy);
    (folder, copy)
}

/// Copies a program by a process of its own. While this process has a file open for writing, a child that another test
/// starts has it open, too, until it executes its program, and the file cannot be executed (ETXTBSY).
fn install(from: &Path, to: &Path) {
    let mut command = std::process::Command::new("install");
    let status = command.args(["-m", "755"]).arg(from).arg(to).status();
    let is_done = status.is_ok_and(|status| status.success());
    assert!(is_done, "install {}", to.display());
}

/// Writes a shell script that the tool can execute, as [`install`].
fn install_script(text: &str, to: &Path) {
    let draft = to.with_extension("draft");
    std::fs::write(&draft, text).expect("there is room");
    install(&draft, to);
}

#[test]
fn without_the_program_of_a_command_it_ends_with_3_and_the_command_that_builds_it() {
    let (_folder, copy) = tool_in_a_folder();
    for (words, program) in [
        ("bench rx", "devmem-bench"),
        ("lab test --group nic", "devmem-lab"),
        ("lab exchange", "devmem-lab"),
        ("lab selftests --tree /linux", "devmem-lab"),
    ] {
        let mut command = std::process::Command::new(&copy);
        command.args(words.split_whitespace());
        let finished = crate::common::start_command(command).finish();
        finished.failed_with(3, &format!("cargo build --release --bin {program}"));
    }
}

#[test]
fn programs_of_commands_get_all_arguments_and_say_how_the_command_ended() {
    let (folder, copy) = tool_in_a_folder();
    for program in ["devmem-bench", "devmem-lab"] {
        let program = folder.path().join(program);
        install_script("#!/bin/sh\necho \"$@\"\nexit 7\n", &program);
    }
    for (words, passed_on) in [
        ("bench rx --json --help -x", "rx --json --help -x\n"),
        (
            "lab test --group nic,knobs --json",
            "test --group nic,knobs --json\n",
        ),
        (
            "lab selftests --tree /linux ping",
            "selftests --tree /linux ping\n",
        ),
    ] {
        let mut command = std::process::Command::new(&copy);
        command.args(words.split_whitespace());
        let finished = crate::common::start_command(command).finish();
        assert_eq!(finished.code, Some(7), "{}", finished.stderr);
        assert_eq!(String::from_utf8_lossy(&finished.stdout), passed_on);
    }
}
