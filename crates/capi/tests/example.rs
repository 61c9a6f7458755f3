//! The example in C, compiled against an installed library and run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo put the static library: beside this test, or one folder up.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let folders: Vec<&Path> = test.ancestors().skip(1).take(2).collect();
    let holds = |folder: &&&Path| folder.join("libdevmemtcp.a").exists();
    let found = folders.iter().find(holds);
    (*found.expect("cargo builds the library before the test")).to_owned()
}

fn run(program: impl AsRef<OsStr>, args: &[&OsStr], env: &[(&str, &Path)]) -> String {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied());
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program:?} {args:?}: {} {}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Installs the library and returns where.
fn installed(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (install, built) = (sources.join("install.sh"), built());
    run(
        "sh",
        &[install.as_ref(), prefix.as_ref(), built.as_ref()],
        &[],
    );
    prefix
}

/// Compiles a program against an installed library, runs it, and returns what it said.
fn compile_and_run(source: &str, prefix: &Path) -> String {
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let (program, source) = (
        prefix.join("program"),
        Path::new(env!("CARGO_MANIFEST_DIR")).join(source),
    );
    let mut args: Vec<&OsStr> = ["-Wall", "-Wextra", "-Werror", "-O1", "-o"]
        .map(OsStr::new)
        .to_vec();
    args.extend([program.as_os_str(), source.as_os_str()]);
    args.extend([
        OsStr::new("-I"),
        include.as_os_str(),
        OsStr::new("-L"),
        lib.as_os_str(),
    ]);
    args.extend(["-ldevmemtcp", "-lpthread"].map(OsStr::new));
    run("cc", &args, &[]);
    run(&program, &[], &[("LD_LIBRARY_PATH", &lib)])
}

#[test]
fn bad_input_is_an_errno() {
    if !has("cc") {
        println!("SKIP no C compiler (cc) on this machine");
        return;
    }
    let said = compile_and_run("tests/misuse.c", &installed("misuse"));
    assert_eq!(said, "0 wrong\n");
}

#[test]
fn times_are_those_of_linux() {
    if !has("cc") {
        println!("SKIP no C compiler (cc) on this machine");
        return;
    }
    let said = compile_and_run("tests/times.c", &installed("times"));
    assert_eq!(said, "0 wrong\n");
}

#[test]
fn a_c_program_receives_into_device_memory() {
    if !has("cc") {
        println!("SKIP no C compiler (cc) on this machine");
        return;
    }
    let prefix = installed("example");
    let lib = prefix.join("lib");
    let said = compile_and_run("examples/receive.c", &prefix);
    assert_eq!(
        said,
        "1048576 bytes, 1048576 of them in device memory, 0 packets dropped\n"
    );

    if has("readelf") {
        let library = lib.join("libdevmemtcp.so");
        let symbols = run(
            "readelf",
            &["-W".as_ref(), "--dyn-syms".as_ref(), library.as_ref()],
            &[],
        );
        assert!(symbols.contains("dmt_recvmsg@@DEVMEMTCP_0.1"), "{symbols}");
        let ours = symbols.lines().filter(|line| !line.contains(" UND "));
        let stray: Vec<&str> = ours
            .filter(|line| line.contains(" FUNC ") && !line.contains(" dmt_"))
            .collect();
        assert_eq!(
            stray,
            Vec::<&str>::new(),
            "the library exports what is not in its header"
        );
    } else {
        println!("SKIP no readelf: the versions of the symbols were not looked at");
    }
    let pc =
        std::fs::read_to_string(lib.join("pkgconfig/devmemtcp.pc")).expect("install.sh wrote it");
    assert!(
        pc.contains(&format!("prefix={}", prefix.display())) && pc.contains("Version: 0.1.0"),
        "{pc}"
    );
}

/// Every function of the header is in the library, and the other way round.
#[test]
fn the_header_and_the_library_have_the_same_functions() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(sources.join(path)).expect(path);
    let header = read("include/devmem_tcp.h");
    let rust = read("src/ffi/memory.rs") + &read("src/ffi/socket.rs");
    let names = |text: &str, before: &str| -> std::collections::BTreeSet<String> {
        let starts = text.match_indices(before).map(|(at, _)| at + before.len());
        let name = |at: usize| {
            text[at..]
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or("")
        };
        starts
            .map(|at| name(at).to_owned())
            .filter(|name| name.starts_with("dmt_"))
            .collect()
    };
    // A declaration stands at the start of a line, behind its type.
    let declared: std::collections::BTreeSet<String> = header
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains('('))
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, names(&rust, "fn "));
    assert!(declared.len() > 35, "{declared:?}");
}
