//! `lab fetch` with interrupted downloads, from a small archive that the test serves over the loopback.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use devmem_linux::test_util::skip;

use crate::common::{Finished, start_command, tool};

const TEST: &str =
    "cli::fetch::an_interrupted_download_leaves_no_files_and_the_next_run_starts_over";
/// Packages that `lab fetch --packaged` requests.
const PACKAGES: [&str; 5] = [
    "qemu-system-x86",
    "linux-image-cloud-amd64",
    "busybox-static",
    "ethtool",
    "iproute2",
];
/// The package with the interrupted download. All files have this number of zero bytes, so that they are not valid packages.
const BROKEN: &str = "ethtool";
const PACKAGE_BYTES: usize = 1 << 20;
const SHA256_OF_ZEROS: &str = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58";
/// Makes apt accept an archive without signature, and not retry for minutes.
const APT_SETTINGS: &str = r#"
Acquire::AllowInsecureRepositories "true";
APT::Get::AllowUnauthenticated "true";
Acquire::Retries "0";
Acquire::http::Proxy::127.0.0.1 "DIRECT";
Acquire::http::Pipeline-Depth "0";
"#;

/// An archive with one suite, `test`.
struct Archive {
    packages: String,
    release: String,
    /// Whether the download of [`BROKEN`] is interrupted.
    breaks: AtomicBool,
    /// Requested paths.
    asked: Mutex<Vec<String>>,
}

impl Archive {
    fn new() -> Self {
        let entry = |name: &&str| {
            format!(
                "Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody\n\
                 Filename: pool/{name}_1_amd64.deb\nSize: {PACKAGE_BYTES}\nSHA256: {SHA256_OF_ZEROS}\n\n"
            )
        };
        let packages: String = PACKAGES.iter().map(entry).collect();
        let release = format!(
            "Suite: test\nCodename: test\nComponents: main\nArchitectures: amd64\n\
             Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {} {} main/binary-amd64/Packages\n",
            sha256(packages.as_bytes()),
            packages.len()
        );
        Self {
            packages,
            release,
            breaks: AtomicBool::new(true),
            asked: Mutex::default(),
        }
    }

    /// Answers requests on one connection until it ends.
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut answers = stream.try_clone()?;
        let mut lines = BufReader::new(stream).lines();
        while let Some(first) = lines.next().transpose()? {
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            // The rest of the request is ignored.
            while lines
                .next()
                .transpose()?
                .is_some_and(|line| !line.is_empty())
            {}
            let zeros = [0; PACKAGE_BYTES];
            let body = match path.rsplit('/').next() {
                Some("Release") => Some(self.release.as_bytes()),
                Some("Packages") => Some(self.packages.as_bytes()),
                Some(name) if name.ends_with(".deb") => Some(&zeros[..]),
                _ => None,
            };
            let broken = path.contains(BROKEN) && self.breaks.load(Ordering::Relaxed);
            self.asked.lock().expect("no panic").push(path);
            let Some(body) = body else {
                answers.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            };
            write!(
                answers,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )?;
            if broken {
                return answers.write_all(&body[..body.len() / 2]);
            }
            answers.write_all(body)?;
        }
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> String {
    let mut command = Command::new("sha256sum");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coreutils are here");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(bytes)
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("it is text");
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Fetches from the archive on `port` into the cache in `folder`.
fn fetch(folder: &Path, port: u16) -> Finished {
    let mut command = tool();
    let mirror = format!("http://127.0.0.1:{port}/");
    command.args([
        "lab",
        "fetch",
        "--packaged",
        "--suite",
        "test",
        "--mirror",
        &mirror,
    ]);
    command.arg("--cache").arg(folder.join("cache"));
    command
        .env("APT_CONFIG", folder.join("apt.conf"))
        .stdin(Stdio::null());
    start_command(command).finish()
}

/// Returns the files of the cache, without the lock.
fn left(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("cache")).expect("the cache was made");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths.filter(|path| !path.ends_with("lock")).collect()
}

#[test]
fn an_interrupted_download_leaves_no_files_and_the_next_run_starts_over() {
    if env::consts::ARCH != "x86_64" {
        return skip(
            TEST,
            "apt",
            "packages for the lab are known only for x86_64",
        );
    }
    if let Some(missing) = ["apt-get", "dpkg-deb", "sha256sum"]
        .into_iter()
        .find(|p| !has(p))
    {
        return skip(TEST, "apt", &format!("there is no {missing} here"));
    }
    let scratch = tempfile::tempdir().expect("there is room");
    let folder = scratch.path();
    fs::write(folder.join("apt.conf"), APT_SETTINGS).expect("there is room");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let archive = Arc::new(Archive::new());
    let server = Arc::clone(&archive);
    // The thread ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            // A client may close the connection at any time.
            thread::spawn(move || drop(server.serve(stream)));
        }
    });

    let broken = fetch(folder, port);
    broken.failed_with(1, "fetch packages: ");
    assert!(broken.stderr.contains(BROKEN), "{}", broken.stderr);
    assert_eq!(left(folder), Vec::<PathBuf>::new());

    // All files are downloaded now, including the one that was interrupted. Unpacking them fails, which does not matter here.
    archive.breaks.store(false, Ordering::Relaxed);
    archive.asked.lock().expect("no panic").clear();
    fetch(folder, port).failed_with(1, "unpack ");
    assert_eq!(left(folder), Vec::<PathBuf>::new());
    let asked = archive.asked.lock().expect("no panic").join("\n");
    for name in PACKAGES {
        assert!(asked.contains(&format!("{name}_1_amd64.deb")), "{asked}");
    }
}

/// Runs `lab fetch` with an apt-get that fails to update with the message `said`; returns the command lines of the updates.
fn updates_that_fail(name: &str, said: &str) -> (Finished, Vec<String>) {
    let prefix = format!("devmem-tcp-apt-{name}-");
    let scratch = tempfile::Builder::new().prefix(&prefix).tempdir();
    let scratch = scratch.expect("there is room");
    let folder = scratch.path();
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).expect("there is room");
    let asked = folder.join("asked");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *update) echo \"$*\" >>{}; echo \"E: {said}\" >&2; exit 100;; esac\n",
        asked.display()
    );
    for (program, text) in [("apt-get", script.as_str()), ("dpkg-deb", "#!/bin/sh\n")] {
        super::install_script(text, &programs.join(program));
    }
    let mut command = tool();
    let options = "lab fetch --packaged --suite test --mirror http://archive.invalid/ --cache";
    command.args(options.split(' ')).arg(folder.join("cache"));
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", programs.display()));
    let finished = start_command(command).finish();
    let asked = fs::read_to_string(&asked).unwrap_or_default();
    (finished, asked.lines().map(str::to_owned).collect())
}

#[test]
fn without_a_network_apt_is_run_once_without_retries() {
    const NO_NETWORK: &str = "fetch::without_a_network_apt_is_run_once_without_retries";
    if env::consts::ARCH != "x86_64" {
        let reason = "packages for the lab are known only for x86_64";
        return skip(NO_NETWORK, "apt", reason);
    }
    let said = "Failed to fetch http://archive.invalid/InRelease  Temporary failure resolving 'archive.invalid'";
    let (finished, asked) = updates_that_fail("none", said);
    finished.failed_with(3, "there is no network to fetch packages: Failed to fetch");
    assert!(finished.stderr.contains("--mirror"), "{}", finished.stderr);
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].contains("Acquire::Retries=0"), "{asked:?}");

    // Temporary errors are retried, as often as apt is configured to.
    let (finished, asked) =
        updates_that_fail("bad", "http://archive.invalid/InRelease  502  Bad Gateway");
    finished.failed_with(3, "cannot read the package lists of test: ");
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(!asked[1].contains("Retries"), "{asked:?}");
}
