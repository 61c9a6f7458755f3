//! Programs in C, compiled against an installed library and run.

use std::ffi::OsStr;
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use devmem_linux::netif::Interface;
use devmem_linux::test_util::{built_library, in_netns};

#[path = "../../../devmem-tcp/tests/tap/lease/dhcp_server.rs"]
mod dhcp_server;

/// Runs a program that must succeed, and returns its stdout.
fn run(program: impl AsRef<OsStr>, args: &[&OsStr], env: &[(&str, &Path)]) -> String {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied());
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{program:?} {args:?}: {said} {complained}"
    );
    // The library prints a caught panic to stderr.
    assert_eq!(complained, "", "{program:?} {args:?}");
    said
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Returns whether there is a C compiler; prints `SKIP` if not.
fn has_compiler() -> bool {
    let has = has("cc");
    if !has {
        println!("SKIP no C compiler (cc) on this machine");
    }
    has
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn install(prefix: &Path, destination: &Path) {
    let (script, library) = (
        sources().join("install.sh"),
        built_library("libdevmemtcp.a"),
    );
    let built = library.parent().expect("a library is in a folder");
    run(
        "sh",
        &[script.as_ref(), prefix.as_ref(), built.as_ref()],
        &[("DESTDIR", destination)],
    );
}

/// Installs the library, once for all tests, and returns the folder.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        install(&prefix, Path::new(""));
        prefix
    })
}

/// Strict warnings, and the oldest C standard that the header supports.
const STRICT: [&str; 6] = [
    "-std=c99",
    "-pedantic",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-O1",
];

/// Compiles a program against the installed library, with further arguments of the compiler.
fn compile(source: &str, name: &str, more: &[&str]) -> PathBuf {
    compile_against(installed(), source, name, more)
}

fn compile_against(prefix: &Path, source: &str, name: &str, more: &[&str]) -> PathBuf {
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let program = prefix.join(name);
    let source = sources().join(source);
    let mut args: Vec<&OsStr> = STRICT.map(OsStr::new).to_vec();
    args.extend(["-o".as_ref(), program.as_os_str(), source.as_os_str()]);
    args.extend(["-I".as_ref(), include.as_os_str()]);
    args.extend(["-L".as_ref(), lib.as_os_str()]);
    args.extend(["-ldevmemtcp", "-lpthread"].map(OsStr::new));
    args.extend(more.iter().map(OsStr::new));
    run("cc", &args, &[]);
    program
}

/// Compiles a program against the installed library, runs it, and returns its stdout.
fn compile_and_run(source: &str) -> String {
    let name = Path::new(source).file_stem().and_then(OsStr::to_str);
    let program = compile(source, name.expect("a source has a name"), &[]);
    run(
        &program,
        &[],
        &[("LD_LIBRARY_PATH", &installed().join("lib"))],
    )
}

#[test]
fn bad_input_is_an_errno() {
    if has_compiler() {
        let said = compile_and_run("tests/misuse.c");
        assert!(
            said.ends_with(" calls of the table, 0 wrong\n") && !said.starts_with('0'),
            "{said}"
        );
    }
}

#[test]
fn each_failure_has_a_reason_that_names_functions_of_the_c_library() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/reasons.c"), "0 wrong\n");
    }
}

#[test]
fn an_epoll_has_a_file_descriptor_for_the_programs_own_event_loop() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/event_loop.c"), "0 wrong\n");
    }
}

#[test]
fn messages_are_framed_into_host_and_device_memory() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/framing.c"), "0 wrong\n");
    }
}

#[test]
fn a_nic_with_shards_has_a_stack_for_each() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/shards.c"), "0 wrong\n");
    }
}

/// Runs the program for memory of GPUs on a kind of it, with the stand-in for their libraries in the variable `library`.
fn on_a_gpu(kind: &str, library: Option<&str>) -> String {
    let (stub, lib) = (
        built_library("libdevmem_gpu_stub.so"),
        installed().join("lib"),
    );
    let mut env = vec![("LD_LIBRARY_PATH", lib.as_path())];
    env.extend(library.map(|library| (library, stub.as_path())));
    // An event of the GPU is not done at the first query.
    env.push(("STUB_GPU", Path::new("polls=2")));
    let program = compile("tests/devices.c", &format!("devices-{kind}"), &[]);
    run(&program, &[OsStr::new(kind)], &env)
}

#[test]
fn memory_of_nvidia_and_amd_gpus_is_bound_received_into_and_sent_from() {
    if has_compiler() {
        assert_eq!(on_a_gpu("cuda", Some("DEVMEM_LIBCUDA")), "0 wrong\n");
        assert_eq!(on_a_gpu("hip", Some("DEVMEM_LIBAMDHIP")), "0 wrong\n");
    }
}

#[test]
fn memory_of_vulkan_devices_is_bound_received_into_and_sent_from() {
    if has_compiler() {
        let said = on_a_gpu("vulkan", None);
        let test = "memory_of_vulkan_devices_is_bound_received_into_and_sent_from";
        match said.strip_prefix("SKIP ") {
            Some(reason) => devmem_linux::test_util::skip(test, "vulkan", reason.trim()),
            None => assert_eq!(said, "0 wrong\n"),
        }
    }
}

/// Runs an example under valgrind.
fn valgrind(name: &str) {
    if !has_compiler() || !has("valgrind") {
        println!("SKIP no valgrind: {name} ran without it");
        return;
    }
    let lib = installed().join("lib");
    let program = compile(
        &format!("examples/{name}.c"),
        &format!("{name}-valgrind"),
        &[],
    );
    let args = ["-q", "--error-exitcode=9"].map(OsStr::new);
    let args = [&args[..], &[program.as_os_str()]].concat();
    run("valgrind", &args, &[("LD_LIBRARY_PATH", &lib)]);
}

#[test]
fn a_receiver_has_no_wrong_access_under_valgrind() {
    valgrind("receive");
}

#[test]
fn a_sender_has_no_wrong_access_under_valgrind() {
    valgrind("send");
}

#[test]
fn a_tap_without_privileges_is_eperm() {
    if !has_compiler() || !has("setpriv") {
        println!("SKIP no setpriv: no program ran without privileges");
        return;
    }
    let may_open = ["-w", "/dev/net/tun"].map(OsStr::new);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsStr::new);
    let tun = [&nobody[..], &[OsStr::new("test")], &may_open[..]].concat();
    let opens = Command::new("setpriv").args(&tun).status();
    if !opens.is_ok_and(|status| status.success()) {
        println!("SKIP setpriv needs root, and /dev/net/tun must be open to all users");
        return;
    }
    // The user nobody has no access to the folder of the target: the program and the library are copied.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("chmod");
    let program = compile("tests/reasons.c", "unprivileged", &[]);
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        // By a process of its own: no child of another test has the copy open for writing (ETXTBSY).
        run("cp", &[from.as_os_str(), to.as_os_str()], &[]);
        to
    };
    let program = copy(&program, "unprivileged");
    copy(
        &installed().join("lib/libdevmemtcp.so.0"),
        "libdevmemtcp.so.0",
    );
    let args = [&nobody[..], &[program.as_os_str(), OsStr::new("tap")]].concat();
    let env = [("LD_LIBRARY_PATH", folder.path())];
    assert_eq!(run("setpriv", &args, &env), "0 wrong\n");
}

#[test]
fn a_child_of_fork_cannot_use_its_parents_stacks_and_the_parent_continues() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/fork.c"), "40 forks, 0 wrong\n");
    }
}

#[test]
fn times_are_those_of_linux() {
    if has_compiler() {
        assert_eq!(compile_and_run("tests/times.c"), "0 wrong\n");
    }
}

/// The kernel's end of a veth pair has a DHCP server; the program has a packet socket on the other one.
#[test]
fn a_c_program_has_an_address_of_a_dhcp_server_which_is_renewed_and_returned() {
    if !has_compiler() {
        return;
    }
    let test = "a_c_program_has_an_address_of_a_dhcp_server_which_is_renewed_and_returned";
    in_netns(test, || {
        // In a process of its own, which must not change what the other tests have installed.
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed-for-auto");
        install(&prefix, Path::new(""));
        let program = compile_against(&prefix, "tests/auto.c", "auto", &[]);
        let (mut near, mut far) =
            Interface::create_veth_pair("near", "far").expect("our namespace");
        for end in [&mut near, &mut far] {
            end.quiet_ipv6();
            end.set_up().expect("our namespace");
        }
        let ours = IpAddr::from([10, 77, 0, 1]);
        near.add_address(ours, 24).expect("our namespace");
        let server = dhcp_server::Server::start();
        let listener = TcpListener::bind((ours, 0)).expect("a free port");
        let port = listener
            .local_addr()
            .expect("it is bound")
            .port()
            .to_string();
        let said = std::thread::scope(|scope| {
            let args = ["packet:far", &port].map(OsStr::new);
            let lib = prefix.join("lib");
            let program = scope.spawn(move || run(&program, &args, &[("LD_LIBRARY_PATH", &lib)]));
            let (mut stream, _) = listener.accept().expect("the program connects");
            server.await_messages(dhcp_server::REQUEST, 2);
            stream.write_all(b"x").expect("the program reads");
            program.join().expect("the program succeeds")
        });
        assert_eq!(said, "10.77.0.50\n");
        server.await_messages(dhcp_server::RELEASE, 1);
        near.delete().expect("our namespace");
    });
}

#[test]
fn a_c_program_receives_into_device_memory() {
    if has_compiler() {
        let said = compile_and_run("examples/receive.c");
        // On a busy machine a late ACK may cause a retransmission, and the receiver drops the duplicate.
        assert!(
            said.starts_with("1048576 bytes, 1048576 of them in device memory, ")
                && said.ends_with(" packets dropped\n"),
            "{said}"
        );
    }
}

#[test]
fn a_c_program_sends_from_device_memory_and_waits_for_completions_in_an_epoll() {
    if has_compiler() {
        let said = compile_and_run("examples/send.c");
        assert_eq!(
            said,
            "4194304 bytes sent from device memory and complete, 4194304 of them received correctly\n"
        );
    }
}

#[test]
fn the_library_exports_what_is_in_its_header_under_a_version_and_nothing_else() {
    if !has_compiler() || !has("readelf") {
        println!("SKIP no readelf: the versions of the symbols were not checked");
        return;
    }
    let library = installed().join("lib/libdevmemtcp.so");
    let args = ["-W".as_ref(), "--dyn-syms".as_ref(), library.as_ref()];
    let symbols = run("readelf", &args, &[]);
    assert!(symbols.contains("dmt_recvmsg@@DEVMEMTCP_0.1"), "{symbols}");
    let ours = symbols.lines().filter(|line| !line.contains(" UND "));
    let stray: Vec<&str> = ours
        .filter(|line| line.contains(" FUNC ") && !line.contains(" dmt_"))
        .collect();
    assert_eq!(stray, Vec::<&str>::new());
}

#[test]
fn the_header_alone_is_c99_and_cxx_without_a_warning() {
    let header = sources().join("include/devmem_tcp.h");
    for (compiler, language, standards) in [
        ("cc", "c", ["c99", "c11", "gnu17"]),
        ("c++", "c++", ["c++98", "c++11", "c++17"]),
    ] {
        if !has(compiler) {
            println!("SKIP no {compiler}: the header was not checked as {language}");
            continue;
        }
        for standard in standards {
            let standard = format!("-std={standard}");
            let mut args: Vec<&OsStr> = STRICT[1..].iter().map(OsStr::new).collect();
            // A header that is compiled by itself is included by name.
            args.extend(["-fsyntax-only", "-x", language, "-include"].map(OsStr::new));
            args.extend([
                header.as_os_str(),
                OsStr::new(&standard),
                OsStr::new("/dev/null"),
            ]);
            run(compiler, &args, &[]);
        }
    }
}

#[test]
fn a_package_is_installed_below_destdir_and_found_by_pkg_config() {
    if !has_compiler() {
        return;
    }
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    install(Path::new("/opt/devmem"), &root);
    let at = root.join("opt/devmem");
    let packed = at.join("lib/pkgconfig/devmemtcp.pc");
    let pc = std::fs::read_to_string(&packed).expect("install.sh wrote it");
    assert!(pc.contains("prefix=/opt/devmem\n"), "{pc}");
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(pc.contains(&version), "{pc}");
    for file in ["lib/libdevmemtcp.so", "lib/libdevmemtcp.so.0"] {
        let link = std::fs::read_link(at.join(file)).expect(file);
        assert!(
            link.is_relative(),
            "{link:?} would point out of the package"
        );
    }
    assert!(at.join("share/man/man3/devmemtcp.3").exists());
    if has("readelf") {
        let library = at.join("lib/libdevmemtcp.so");
        let args = ["-W".as_ref(), "-S".as_ref(), library.as_os_str()];
        let sections = run("readelf", &args, &[]);
        assert!(!sections.contains(".symtab"), "{sections}");
    }
    if !has("pkg-config") {
        println!("SKIP no pkg-config: its file was read, not used");
        return;
    }
    let folder = at.join("lib/pkgconfig");
    let env = [
        ("PKG_CONFIG_PATH", folder.as_path()),
        ("PKG_CONFIG_SYSROOT_DIR", root.as_path()),
    ];
    let args = ["--cflags", "--libs", "devmemtcp"].map(OsStr::new);
    let flags = run("pkg-config", &args, &env);
    let source = sources().join("examples/receive.c");
    let program = at.join("receive");
    let mut args: Vec<&OsStr> = vec!["-o".as_ref(), program.as_ref(), source.as_ref()];
    args.extend(flags.split_whitespace().map(OsStr::new));
    args.push("-lpthread".as_ref());
    run("cc", &args, &[]);
    let said = run(&program, &[], &[("LD_LIBRARY_PATH", &at.join("lib"))]);
    assert!(said.starts_with("1048576 bytes"), "{said}");
    let args = ["--static", "--libs", "devmemtcp"].map(OsStr::new);
    assert!(run("pkg-config", &args, &env).contains("-lpthread"));
    std::fs::remove_file(&program).expect("the program is not part of the package");
    let script = sources().join("install.sh");
    let args = [
        script.as_os_str(),
        "--uninstall".as_ref(),
        "/opt/devmem".as_ref(),
    ];
    run("sh", &args, &[("DESTDIR", &root)]);
    let left = run(
        "find",
        &[at.as_os_str(), "!".as_ref(), "-type".as_ref(), "d".as_ref()],
        &[],
    );
    assert_eq!(left, "");
}

/// Every function of the header is in the library, and every function of the library in the header.
#[test]
fn the_header_and_the_library_have_the_same_functions() {
    let read = |path: &str| std::fs::read_to_string(sources().join(path)).expect(path);
    let header = read("include/devmem_tcp.h");
    let files = ["device", "memory", "nic", "shards", "socket"];
    let files = files.map(|name| format!("src/ffi/{name}.rs"));
    let rust = files.map(|file| read(&file)).concat();
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
    // The tests of fork and of reasons call every function with arguments that it must refuse.
    let tests = ["tests/every_call.h", "tests/fork.c", "tests/reasons.c"].map(read);
    let called = names(&tests.concat(), "");
    let missing: Vec<_> = declared.difference(&called).collect();
    assert_eq!(missing, Vec::<&String>::new());
    assert!(declared.len() > 35, "{declared:?}");
}
