//! `devmem-tcp load` from Python's server and from a server that the test makes, `load` and `store` with qemu-nbd and with our NVMe target. Each test has a separate network namespace.

mod common;
#[path = "load/nvme.rs"]
mod nvme;
#[path = "load/s3.rs"]
mod s3;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Finished, LIMIT, assert_everything_home, repeating, run, start_command, tool};
use devmem_linux::test_util::{built_library, in_netns, skip};
use rustix::process::{Signal, kill_process};

const FILE_BYTES: usize = 2_000_001;

/// A server, killed at the end.
struct Killed(Child);

impl Killed {
    /// Waits until the server listens on `port`.
    fn once_listening(child: Child, port: u16) -> Self {
        let server = Self(child);
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(start.elapsed() < LIMIT, "it does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// Python's server of `folder`, on port 8000.
    fn python(folder: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-m", "http.server", "8000", "--directory"]);
        command
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self::once_listening(command.spawn().expect("it was found before"), 8000)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(test: &str, program: &str) -> bool {
    let mut command = Command::new(program);
    let found = command.arg("--version").stdout(Stdio::null()).status();
    let is_here = found.is_ok_and(|status| status.success());
    if !is_here {
        skip(test, program, &format!("there is no {program} here"));
    }
    is_here
}

fn load(line: &str) -> Finished {
    through_tap("load", line)
}

fn store(line: &str) -> Finished {
    through_tap("store", line)
}

fn through_tap(subcommand: &str, line: &str) -> Finished {
    start_command(on_stub(subcommand, line, "devices=2")).finish()
}

/// Returns a subcommand without the proxy that this machine may have, and with the stub as the libraries of all GPUs, which behaves by `plan`.
fn on_stub(subcommand: &str, line: &str, plan: &str) -> Command {
    let mut command = tool();
    command.args([subcommand, "--peer-addr", "10.77.0.1/24", "--json"]);
    command.args(line.split_whitespace());
    for variable in ["http_proxy", "all_proxy", "ALL_PROXY"] {
        command.env_remove(variable);
    }
    command.env("STUB_GPU", plan);
    for variable in ["DEVMEM_LIBCUDA", "DEVMEM_LIBAMDHIP"] {
        command.env(variable, built_library("libdevmem_gpu_stub.so"));
    }
    command
}

/// Runs `body` in a network namespace in which Python's server serves a folder; it gets the folder, and the bytes of the file in it.
fn with_python(test: &str, body: impl FnOnce(&Path, &[u8])) {
    if !has(test, "python3") {
        return;
    }
    in_netns(test, || {
        let folder = tempfile::tempdir().unwrap();
        let file = repeating(251, 9, FILE_BYTES);
        fs::write(folder.path().join("file"), &file).unwrap();
        let _server = Killed::python(folder.path());
        body(folder.path(), &file);
    });
}

#[test]
fn a_file_of_pythons_server_arrives_unchanged() {
    const TEST: &str = "a_file_of_pythons_server_arrives_unchanged";
    with_python(TEST, |folder, file| {
        let json = load("http://10.77.0.1:8000/file --verify").json();
        assert_eq!(json["bytes"], FILE_BYTES, "{json}");
        assert_eq!(json["to"], "memory", "{json}");
        assert_eq!(json["serves_ranges"], false, "{json}");
        assert_eq!(json["linear_bytes"], 0, "{json}");
        assert_everything_home(&json);
        let sum = json["crc32c"].clone();
        // Most are received at their place; heads are not.
        let moved = json["moved_bytes"].as_u64().unwrap();
        assert!((1..FILE_BYTES as u64 / 2).contains(&moved), "{json}");

        let copy = folder.join("copy");
        let to = copy.display();
        let json = load(&format!(
            "http://10.77.0.1:8000/file --to {to} --verify --mem-size 1M"
        ))
        .json();
        assert!(fs::read(&copy).unwrap() == file);
        assert_eq!(json["crc32c"], sum, "{json}");
        assert_eq!(json["moved_bytes"], json["device_bytes"], "{json}");
        assert_everything_home(&json);

        load(&format!(
            "http://10.77.0.1:8000/file --range 1000-70000 --to {to}"
        ))
        .json();
        assert!(fs::read(&copy).unwrap() == file[1000..70_000]);
        let header = r#"{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let mut model = (header.len() as u64).to_le_bytes().to_vec();
        model.extend_from_slice(header.as_bytes());
        model.extend_from_slice(&[7; 16]);
        fs::write(folder.join("m.safetensors"), &model).unwrap();
        let json = load("http://10.77.0.1:8000/m.safetensors").json();
        let places: Vec<_> = (0..2)
            .map(|n| json["tensors"][n]["offset"].clone())
            .collect();
        assert_eq!(places, [0, 256], "{json}");
        assert_eq!(
            json["tensors"][1]["shape"],
            serde_json::json!([2, 3]),
            "{json}"
        );
        let json = load(&format!("http://10.77.0.1:8000/m.safetensors --to {to}")).json();
        assert_eq!(json["tensors"], serde_json::Value::Null, "{json}");
        assert!(fs::read(&copy).unwrap() == model);

        load("http://192.0.2.1/file").failed_with(1, "no route to 192.0.2.1; --gateway ADDR");
        load("http://10.77.0.1:8000/nosuch").failed_with(1, "404 File not found; check the path");
        load("http://10.77.0.1:8001/file").failed_with(1, "`python3 -m http.server 8001`");
        load(&format!(
            "http://10.77.0.1:8000/file --range 0-{}",
            FILE_BYTES + 1
        ))
        .failed_with(1, "the source has 2000001");
    });
}

#[test]
fn the_bytes_go_to_the_memory_or_the_file_that_to_names() {
    const TEST: &str = "the_bytes_go_to_the_memory_or_the_file_that_to_names";
    with_python(TEST, |folder, file| {
        let load = |options: &str| {
            let line = format!("http://10.77.0.1:8000/file {options}");
            let mut command = on_stub("load", &line, "devices=2");
            command.current_dir(folder);
            start_command(command).finish()
        };
        let sum = load("--verify").json()["crc32c"].clone();
        for (options, name, checksum_on) in [
            ("--to memory", "memory", "cpu"),
            ("--to anonymous", "anonymous", "cpu"),
            ("--to cuda:1", "cuda:1", "cuda:1"),
            ("--to hip:0 --memory anonymous", "hip:0", "cpu"),
            ("--to memory --memory cuda:0", "memory", "cuda:0"),
            ("--to cuda:0 --memory cuda:1", "cuda:0", "cuda:0"),
            ("--to memfd:copy", "copy", "cpu"),
            ("--to ./cuda", "./cuda", "cpu"),
        ] {
            let json = load(&format!("{options} --verify")).json();
            assert_eq!(json["to"], name, "{options}: {json}");
            assert_eq!(json["crc32c"], sum, "{options}: {json}");
            assert_eq!(json["checksum_on"], checksum_on, "{options}: {json}");
            assert_everything_home(&json);
        }
        let json = load("--to cuda:0 --verify=xxh3").json();
        assert_eq!(json["checksum_on"], "cpu", "{json}");
        for name in ["copy", "cuda"] {
            assert!(fs::read(folder.join(name)).unwrap() == file, "{name}");
        }
        assert_eq!(fs::read_dir(folder).unwrap().count(), 3, "no other file");
        load("--to cuda:7").failed_with(1, "this process sees 2");
        load("--to nosuch/copy").failed_with(1, "make its folder: mkdir -p nosuch");
    });
}

#[test]
fn a_proxy_that_refuses_is_named_as_the_proxy() {
    in_netns("a_proxy_that_refuses_is_named_as_the_proxy", || {
        let mut command = tool();
        command.args("load --peer-addr 10.77.0.1/24 http://weights.example/x".split(' '));
        command
            .env("http_proxy", "10.77.0.1:9")
            .env_remove("no_proxy")
            .env_remove("NO_PROXY");
        let failed = start_command(command).finish();
        failed.failed_with(
            1,
            "10.77.0.1:9, the proxy of the environment, refuses the connection; correct http_proxy",
        );
    });
}

#[test]
fn a_signal_ends_a_load_and_a_store_that_wait_for_their_server() {
    in_netns(
        "a_signal_ends_a_load_and_a_store_that_wait_for_their_server",
        || {
            let silent = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8000)).unwrap();
            for line in [
                "load http://10.77.0.1:8000/file",
                "load http://10.77.0.1:8000/m.safetensors",
                "load nbd://10.77.0.1:8000/disk",
                "store Cargo.toml nbd://10.77.0.1:8000/disk",
            ] {
                let mut command = tool();
                command.args(line.split(' ')).env_remove("http_proxy");
                command.args(["--peer-addr", "10.77.0.1/24"]);
                let running = start_command(command);
                let _connected = silent.accept().unwrap();
                kill_process(running.pid(), Signal::INT).unwrap();
                running.finish().failed_with(1, "interrupted");
            }
        },
    );
}

/// Answers every request with a whole file of zeros and this checksum.
fn serve_with_checksum(bytes: usize, checksum: &'static str) {
    serve_whole(vec![0; bytes], move |_| checksum.to_owned());
}

/// Answers every request with a whole file, and the checksum that it has by its name.
fn serve_whole(file: Vec<u8>, checksum: impl Fn(&str) -> String + Send + 'static) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8000)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
            let target = head.first().and_then(|line| line.split(' ').nth(1));
            let head = format!(
                "HTTP/1.0 200 OK\r\nContent-Length: {}\r\nx-goog-hash: crc32c={}\r\n\r\n",
                file.len(),
                checksum(target.unwrap_or_default())
            );
            // The client may have ended the connection.
            let _ = (&stream).write_all(&[head.as_bytes(), &file].concat());
        }
    });
}

#[test]
fn tensors_in_memory_are_compared_with_the_checksum_of_their_file() {
    const TEST: &str = "tensors_in_memory_are_compared_with_the_checksum_of_their_file";
    in_netns(TEST, || {
        let header = br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length[..], header, &[1, 2, 3, 4]].concat();
        serve_whole(file, |target| {
            // Of the file: 87012bb3.
            let sum = match target {
                "/right.safetensors" => "hwErsw==",
                "/wrong.safetensors" => "AAAAAQ==",
                _ => "none",
            };
            sum.to_owned()
        });
        let load = |name: &str| {
            load(&format!(
                "http://10.77.0.1:8000/{name}.safetensors --verify"
            ))
        };
        let json = load("right").json();
        let of_file = &json["files"][0];
        assert_eq!(
            of_file["file"], "http://10.77.0.1:8000/right.safetensors",
            "{json}"
        );
        assert_eq!(of_file["server_checksum"]["matches"], true, "{json}");
        assert_eq!(of_file["server_checksum"]["loaded"], "87012bb3", "{json}");
        assert_eq!(json["crc32c_matches"], serde_json::Value::Null, "{json}");
        let text = "another checksum than http://10.77.0.1:8000/wrong.safetensors: the CRC-32C is 87012bb3";
        load("wrong").failed_with(1, text);
        let json = load("none").json();
        let why = &json["files"][0]["not_compared"];
        assert_eq!(*why, "the server has none to compare", "{json}");
    });
}

#[test]
fn a_wrong_checksum_is_a_failure() {
    in_netns("a_wrong_checksum_is_a_failure", || {
        serve_with_checksum(4, "AAAAAQ==");
        let failed = load("http://10.77.0.1:8000/file --verify");
        failed.failed_with(1, "another checksum than the server's file");
    });
}

#[test]
fn the_checksum_of_the_server_is_compared() {
    in_netns("the_checksum_of_the_server_is_compared", || {
        // Of four zero bytes: 48674bc7.
        serve_with_checksum(4, "SGdLxw==");
        let json = load("http://10.77.0.1:8000/file --verify").json();
        assert_eq!(json["crc32c_matches"], true, "{json}");
        assert_eq!(json["checksum_on"], "cpu", "{json}");
        let why = &json["checksum_reason"];
        assert_eq!(*why, "the memory is that of the CPU", "{json}");
        // Memory is bound for the bytes that are there, not for those of a large file.
        assert!(json["mem_bytes"].as_u64().unwrap() <= 16 << 20, "{json}");
        let json = load("http://10.77.0.1:8000/file").json();
        assert_eq!(json["checksum_on"], serde_json::Value::Null, "{json}");
    });
}

#[test]
fn a_gpu_computes_the_checksum_that_the_server_has_sent() {
    const TEST: &str = "a_gpu_computes_the_checksum_that_the_server_has_sent";
    in_netns(TEST, || {
        // Of 20,000 zero bytes: 21618b6b.
        serve_with_checksum(20_000, "IWGLaw==");
        let line = "http://10.77.0.1:8000/file --to cuda:0 --verify";
        let load = |plan: &str| start_command(on_stub("load", line, plan)).finish();
        let json = load("devices=1").json();
        assert_eq!(json["checksum_on"], "cuda:0", "{json}");
        assert_eq!(json["crc32c"], "21618b6b", "{json}");
        assert_eq!(json["crc32c_matches"], true, "{json}");
        // A driver that does not take the code.
        let json = load("fail=cuModuleLoadData:218").json();
        assert_eq!(json["checksum_on"], "cpu", "{json}");
        let why = &json["checksum_reason"];
        assert_eq!(
            *why, "there is no code for this GPU, or its driver refuses it",
            "{json}"
        );
        assert_eq!(json["crc32c_matches"], true, "{json}");
        load("fail=cuLaunchKernel:1").failed_with(1, "compute the checksum of the memory");
    });
}

/// Returns whether qemu-nbd is here; if not, prints that the test is skipped.
/// Serves `disk` as the export "disk".
/// Answers every request with four zeros, and returns a request's head for each.
fn serve_and_listen() -> std::sync::mpsc::Receiver<String> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8000)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
            // The client may have ended the connection, and the test may be over.
            let _ = (&stream).write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n\0\0\0\0");
            let _ = tell.send(head.join("\n"));
        }
    });
    told
}

#[test]
fn secrets_come_from_files_or_the_environment_and_are_not_shown() {
    const TEST: &str = "secrets_come_from_files_or_the_environment_and_are_not_shown";
    in_netns(TEST, || {
        let heads = serve_and_listen();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let fields = file("fields", "# of the hub\nX-Api-Key: s3cret-1\n");
        let password = file("password", "s3cret-2\n");
        let mut command = on_stub(
            "load",
            "http://me@10.77.0.1:8000/file?token=s3cret-3",
            "devices=0",
        );
        command.args([
            "--header",
            &format!("@{fields}"),
            "--password-file",
            &password,
        ]);
        let done = start_command(command).finish();
        let json = done.json();
        assert_eq!(
            json["url"], "http://10.77.0.1:8000/file?token=...",
            "{json}"
        );
        let shown = format!("{json}{}", done.stderr);
        assert!(!shown.contains("s3cret"), "{shown}");
        let head = heads.recv().unwrap();
        assert!(
            head.starts_with("GET /file?token=s3cret-3 HTTP/1.1"),
            "{head}"
        );
        assert!(head.contains("\nX-Api-Key: s3cret-1"), "{head}");
        // me:s3cret-2
        assert!(
            head.contains("\nAuthorization: Basic bWU6czNjcmV0LTI="),
            "{head}"
        );

        let mut command = on_stub("load", "http://10.77.0.1:8000/file", "devices=0");
        command.env("DEVMEM_HEADERS", "A: s3cret-4");
        command
            .env("DEVMEM_USER", "me")
            .env("DEVMEM_PASSWORD", "s3cret-2");
        start_command(command).finish().json();
        let is_new = |head: &String| !head.contains("X-Api-Key");
        let head = heads.iter().find(is_new).unwrap();
        assert!(
            head.contains("\nA: s3cret-4") && head.contains("bWU6czNjcmV0LTI="),
            "{head}"
        );
    });
}

#[test]
fn no_error_of_a_command_line_shows_a_secret_or_what_a_terminal_obeys() {
    let refused = |args: &[&str], proxy: Option<&str>| {
        let mut command = tool();
        command
            .args(["load", "--peer-addr", "10.77.0.1/24"])
            .args(args);
        command.env_remove("http_proxy");
        if let Some(proxy) = proxy {
            command.env("http_proxy", proxy);
        }
        let failed = start_command(command).finish();
        assert_eq!(failed.code, Some(2), "{}", failed.stderr);
        assert!(!failed.stderr.contains("s3cret"), "{}", failed.stderr);
        assert!(!failed.stderr.contains('\x1b'), "{}", failed.stderr);
        failed.stderr
    };
    refused(&["http://me:s3cret@host:port/file"], None);
    refused(&["ftp://me:s3cret@host/file?sig=s3cret"], None);
    refused(&["http://127.0.0.1/file?token=s3cret"], None);
    refused(&["nbd://me:s3cret@host:port/disk"], None);
    refused(
        &[
            "http://host/f",
            "--header",
            "Authorization Bearer s3cret: x",
        ],
        None,
    );
    refused(&["http://host/f", "--header", "Authorization s3cret"], None);
    refused(&["http://host/f"], Some("http://me:s3cret@proxy:port"));
    refused(&["http://host/f"], Some("me:s3cret"));
    let shown = refused(&["http://host/\x1b[2J\u{202e}"], None);
    assert!(shown.contains("\\u{1b}[2J\\u{202e}"), "{shown}");
    let shown = refused(
        &["http://host/f", "--piece", "\x1b[2J\u{9b}2J\u{202e}"],
        None,
    );
    assert!(shown.contains("\\u{9b}2J\\u{202e}"), "{shown}");
}

fn qemu_nbd(disk: &Path, options: &str) -> Killed {
    let mut command = Command::new("qemu-nbd");
    command.args("--format raw --persistent --shared 8 --export-name disk".split(' '));
    command.args(options.split_whitespace()).arg(disk);
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    Killed::once_listening(child, 10_809)
}

#[test]
fn a_range_of_an_nbd_export_arrives_with_its_holes() {
    const TEST: &str = "a_range_of_an_nbd_export_arrives_with_its_holes";
    if !has(TEST, "qemu-nbd") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let mut bytes = repeating(251, 9, 1 << 20);
        bytes.resize(4 << 20, 0);
        fs::write(&disk, &bytes[..1 << 20]).unwrap();
        let file = fs::File::options().write(true).open(&disk).unwrap();
        file.set_len(4 << 20).unwrap();
        let _server = qemu_nbd(&disk, "");
        let copy = folder.path().join("copy");
        let to = copy.display();
        let json = load(&format!("nbd://10.77.0.1/disk --to {to} --range 64K-3M")).json();
        assert!(
            fs::read(&copy).unwrap() == bytes[64 << 10..3 << 20],
            "{json}"
        );
        let json = load("nbd://10.77.0.1/disk --verify --piece 256K").json();
        assert_eq!(json["bytes"], 4 << 20, "{json}");
        assert_everything_home(&json);
        load("nbd://10.77.0.1/nosuch").failed_with(1, "there is no export \"nosuch\"");
    });
}

#[test]
fn a_file_is_stored_in_an_export_over_a_bad_link() {
    const TEST: &str = "a_file_is_stored_in_an_export_over_a_bad_link";
    if !has(TEST, "qemu-nbd") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().unwrap();
        let (disk, file) = (folder.path().join("disk"), folder.path().join("file"));
        fs::write(&disk, vec![0xee; 4 << 20]).unwrap();
        let mut bytes = repeating(251, 9, 3 << 20);
        bytes[1 << 20..2 << 20].fill(0);
        fs::write(&file, &bytes).unwrap();
        let server = qemu_nbd(&disk, "");
        let from = file.display();
        let line = format!("{from} nbd://10.77.0.1/disk --at 64K --piece 256K --verify");
        let json = store(&format!("{line} --impair loss=1%,reorder=1%,seed=3")).json();
        assert_eq!(json["bytes"], 3 << 20, "{json}");
        assert_eq!(json["unsent_bytes"], 1 << 20, "{json}");
        assert_eq!(json["durable"], true, "{json}");
        assert_eq!(json["copied_completions"], 0, "{json}");
        assert_eq!(json["crc32c_matches"], true, "{json}");
        assert_eq!(json["checksum_on"], "cpu", "{json}");
        let stored = fs::read(&disk).unwrap();
        assert!(stored[64 << 10..][..3 << 20] == bytes, "{json}");
        let is_old = |byte: &u8| *byte == 0xee;
        assert!(stored[..64 << 10].iter().all(is_old));
        assert!(stored[(3 << 20) + (64 << 10)..].iter().all(is_old));

        let json = store(&format!("{line} --memory cuda:0")).json();
        assert_eq!(json["crc32c_matches"], true, "{json}");
        assert_eq!(json["checksum_on"], "cuda:0", "{json}");

        let json = store(&format!(
            "{from} nbd://10.77.0.1/disk --fua --connections 1"
        ))
        .json();
        assert_eq!(json["connections"], 1, "{json}");
        assert_eq!(json["durable"], true, "{json}");
        assert!(fs::read(&disk).unwrap()[..3 << 20] == bytes);

        store(&format!("{from} nbd://10.77.0.1/disk --at 2M")).failed_with(
            1,
            "bytes up to 5242880 of nbd://10.77.0.1/disk were to be written",
        );
        store(&format!("{from} nbd://10.77.0.1/nosuch")).failed_with(1, "there is no export");
        drop(server);
        store(&format!("{from} nbd://10.77.0.1/disk")).failed_with(1, "`qemu-nbd --persistent");
        let _server = qemu_nbd(&disk, "--read-only");
        store(&format!("{from} nbd://10.77.0.1/disk")).failed_with(1, "is read-only");
    });
}

#[test]
fn what_cannot_be_stored_is_refused_with_a_remedy() {
    for (line, code, text) in [
        ("/ nbd://10.77.0.9/x", 1, "/ is a folder"),
        ("/nosuch nbd://10.77.0.9/x", 1, "open /nosuch"),
        (
            "file http://host/x",
            2,
            "only NBD servers and NVMe subsystems take bytes",
        ),
        (
            "file http://me:s3cret@host/x?token=s3cret",
            2,
            "devmem-tcp: http://...@host/x?token=...: only NBD",
        ),
        (
            "file nbd://localhost/x",
            2,
            "store file --peer-addr 10.77.0.1/24 nbd://10.77.0.1:10809/x",
        ),
        ("file nbd://host/x --piece 1", 2, "--piece"),
        (
            "Cargo.toml nbd://host/x --backend kernel --if eth1 --mtu 9000",
            2,
            "--mtu: only the user backend",
        ),
    ] {
        run(&format!("store {line}")).failed_with(code, text);
    }
}

#[test]
fn a_command_line_that_cannot_work_is_refused_with_a_remedy() {
    for (line, text) in [
        ("https://host/file --strict", "that ends TLS"),
        ("nbd://host/x --insecure", "NBD has no TLS here"),
        ("ftp://host/file", "write http://HOST/PATH"),
        ("http://localhost:8000/file", "http://10.77.0.1:8000/file"),
        ("http://127.0.0.1/file", "--peer-addr 10.77.0.1/24"),
        ("http://host/ --range 5-5", "--range 5-5"),
        ("http://host/ --to cuda:x", "--to cuda:x: takes anonymous"),
        ("http://host/ --to memfd:", "write memfd:FILE"),
        ("http://host/ --piece 1", "--piece"),
        ("s3://bucket", "write s3://BUCKET/KEY"),
        ("http://host/ --connections 0", "--connections 0"),
        ("http://host/ --header nocolon", "NAME: VALUE"),
        (
            "http://host/ --header Range:x",
            "the loader sets this field itself",
        ),
        ("nbd://localhost/x", "nbd://10.77.0.1:10809/x"),
        ("nbd://host/x --header A:b", "NBD has no such fields"),
        ("nbds://host/x", "the end of a tunnel"),
        (
            "nvme://localhost/nqn.a:b?nsid=2",
            "nvme://10.77.0.1:4420/nqn.a:b?nsid=2",
        ),
        (
            "nvme://host/nqn.a:b --header A:b",
            "NVMe has no such fields",
        ),
        ("nvme://host/disk", "NVMe Qualified Name"),
        ("nvme://host/nqn.a:b?tls=1", "encrypted until the CPU"),
        (
            "http://host/ --backend kernel --if eth1 --peer-addr 10.77.0.1/24",
            "--peer-addr: only the user backend",
        ),
        (
            "http://127.0.0.1/file --if eth1",
            "name a host that eth1 reaches",
        ),
    ] {
        run(&format!("load {line}")).failed_with(2, text);
    }
}
