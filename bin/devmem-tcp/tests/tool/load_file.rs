//! `load` to files, and over the kernel's sockets: no link of ours is needed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use devmem_linux::test_util::{in_netns, skip};

use crate::common::{Finished, repeating, start_command, tool};

const FILE_BYTES: usize = 1_000_000;
/// What the server sends of a piece while it is broken.
const BEGUN: usize = 200_000;

/// A server of one file.
#[derive(Clone)]
struct Server {
    file: Arc<Vec<u8>>,
    /// It ends the first response to a piece early, and refuses all others.
    is_broken: Arc<AtomicBool>,
    /// The first bytes of the requested ranges.
    starts: Arc<Mutex<Vec<usize>>>,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let server = Self {
            file: repeating(251, 9, FILE_BYTES).into(),
            is_broken: Arc::default(),
            starts: Arc::default(),
            port: listener.local_addr().expect("it is bound").port(),
        };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                // The client may end a connection at any time.
                thread::spawn(move || drop(server.serve(&stream)));
            }
        });
        server
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        loop {
            let mut range = 0..FILE_BYTES;
            loop {
                let Some(line) = lines.next() else {
                    return Ok(());
                };
                let line = line?;
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("Range: bytes=") {
                    let (first, last) = value.split_once('-').expect("a range");
                    range.start = first.parse().expect("a number");
                    range.end = last.parse::<usize>().expect("a number") + 1;
                }
            }
            let is_broken = self.is_broken.load(Ordering::Relaxed) && range.len() > 1;
            if is_broken && range.start > 0 {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            if range.len() > 1 {
                self.starts.lock().expect("no panic").push(range.start);
            }
            write!(
                stream,
                "HTTP/1.1 206 Part\r\nETag: \"1\"\r\nContent-Range: bytes {}-{}/{FILE_BYTES}\r\nContent-Length: {}\r\n\r\n",
                range.start,
                range.end - 1,
                range.len()
            )?;
            if is_broken {
                stream.write_all(&self.file[range][..BEGUN])?;
                return stream.shutdown(std::net::Shutdown::Both);
            }
            stream.write_all(&self.file[range])?;
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }
}

fn finish(mut command: Command, line: &str) -> Finished {
    command.args(line.split_whitespace());
    for variable in ["http_proxy", "all_proxy", "ALL_PROXY"] {
        command.env_remove(variable);
    }
    start_command(command).finish()
}

#[test]
fn the_kernels_sockets_need_no_link() {
    in_netns("load_file::the_kernels_sockets_need_no_link", || {
        let server = Server::start();
        let line = format!("load --backend sockets --json --verify {}", server.url());
        let json = finish(tool(), &line).json();
        assert_eq!(
            (&json["backend"], &json["link"]),
            (&"sockets".into(), &"lo".into())
        );
        assert_eq!(json["bytes"], FILE_BYTES, "{json}");
        assert_eq!(json["mem_bytes"], 0, "{json}");
        for (option, text) in [
            (
                "--if lo",
                "--if: --backend sockets uses the interface of the route",
            ),
            (
                "--peer-addr 10.77.0.1/24",
                "--peer-addr: --backend sockets has no link",
            ),
        ] {
            finish(tool(), &format!("{line} {option}")).failed_with(2, text);
        }
        let full = format!("load --backend sockets --to /dev/full {}", server.url());
        finish(tool(), &full).failed_with(
            1,
            "write /dev/full: No space left on device (os error 28); make room there",
        );
        let pipe = format!("load --backend sockets --to /dev/stdout {}", server.url());
        finish(tool(), &pipe).failed_with(
            1,
            "write /dev/stdout: Illegal seek (os error 29); the bytes come in any order",
        );
        let no_load = finish(
            tool(),
            "store Cargo.toml nbd://127.0.0.1/x --backend sockets",
        );
        no_load.failed_with(2, "--backend sockets: only load has it");
    });
}

#[test]
fn a_user_without_privileges_loads_over_the_kernels_sockets() {
    const TEST: &str = "load_file::a_user_without_privileges_loads_over_the_kernels_sockets";
    /// The user nobody of all distributions.
    const NOBODY: u32 = 65_534;
    in_netns(TEST, || {
        let server = Server::start();
        let folder = tempfile::tempdir().expect("a folder");
        // Where that user may run it.
        let program = folder.path().join("devmem-tcp");
        fs::copy(tool().get_program(), &program).expect("a copy");
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        let unprivileged = || {
            let mut command = Command::new(&program);
            command.uid(NOBODY).gid(NOBODY);
            command
        };
        if Command::new("true").uid(NOBODY).status().is_err() {
            return skip(TEST, "uid", "this user namespace has no user 65534");
        }
        let done = finish(unprivileged(), &format!("load --json {}", server.url()));
        assert_eq!(done.json()["backend"], "sockets");
        let first = done.stderr.lines().next().unwrap_or_default();
        assert!(first.contains("using the kernel's sockets"), "{first}");
    });
}

#[test]
fn a_load_to_a_file_goes_on_where_it_stopped_and_keeps_the_earlier_file() {
    const TEST: &str =
        "load_file::a_load_to_a_file_goes_on_where_it_stopped_and_keeps_the_earlier_file";
    in_netns(TEST, || {
        let server = Server::start();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model");
        fs::write(&path, "an earlier file").expect("ours");
        let load = |options: &str| {
            let (url, to) = (server.url(), path.display());
            finish(
                tool(),
                &format!("load --backend sockets --json {url} --to {to} {options}"),
            )
        };
        server.is_broken.store(true, Ordering::Relaxed);
        let failed = load("");
        failed.failed_with(1, "404 Not Found");
        assert!(
            failed
                .stderr
                .contains("model.part has 195.31 KiB so far; --resume"),
            "{}",
            failed.stderr
        );
        assert_eq!(fs::read(&path).expect("it is there"), b"an earlier file");

        server.is_broken.store(false, Ordering::Relaxed);
        server.starts.lock().expect("no panic").clear();
        let json = load("--resume --verify").json();
        assert_eq!(json["resumed_bytes"], BEGUN, "{json}");
        assert_eq!(json["bytes"], FILE_BYTES - BEGUN, "{json}");
        assert_eq!(
            server.starts.lock().expect("no panic").iter().min(),
            Some(&BEGUN)
        );
        assert!(fs::read(&path).expect("it is there") == *server.file);
        let left = fs::read_dir(folder.path()).expect("ours").count();
        assert_eq!(left, 1, "nothing is left beside it");
        finish(tool(), "load --backend sockets http://127.0.0.1/x --resume")
            .failed_with(2, "--resume: memory has nothing of an earlier load");
    });
}
