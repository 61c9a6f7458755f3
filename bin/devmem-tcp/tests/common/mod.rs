//! Runs the real binary and checks its output.

#![allow(dead_code, reason = "every test file uses some of it")]

pub mod lab;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use devmem_linux::probe;
use devmem_linux::test_util::{skip, wait_or_kill};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::Value;

/// Time limit of a run, for a slow and shared machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Returns whether the tool can create a TAP here; if not, prints that the test is skipped.
pub fn has_tap(test: &str) -> bool {
    match probe::tap_in_namespace().reason() {
        None => true,
        Some(reason) => {
            skip(test, "tun", reason);
            false
        }
    }
}

/// Output of a finished run.
#[derive(Debug)]
pub struct Finished {
    /// The exit code.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Finished {
    /// Asserts success and returns the one JSON object on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.object()
    }

    /// Asserts that a signal has cut the run short, and returns the JSON object that it printed nevertheless.
    #[track_caller]
    pub fn interrupted_json(&self) -> Value {
        self.failed_with(1, "interrupted");
        let json = self.object();
        assert_eq!(json["interrupted"], true, "{json}");
        json
    }

    /// Returns the one JSON object on stdout.
    #[track_caller]
    fn object(&self) -> Value {
        let text = std::str::from_utf8(&self.stdout).expect("JSON is text");
        assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
        serde_json::from_str(text).expect("stdout is JSON")
    }

    /// Asserts that the run ended with `code` and one line on stderr that contains `text`.
    #[track_caller]
    pub fn failed_with(&self, code: i32, text: &str) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let errors: Vec<_> = self
            .stderr
            .lines()
            .filter(|line| {
                let names = [
                    "devmem-tcp: ",
                    "devmem-bench: ",
                    "devmem-lab: ",
                    "ncdevmem: ",
                ];
                names.iter().any(|name| line.starts_with(name))
            })
            .collect();
        let last = errors.last().unwrap_or(&"");
        assert!(last.contains(text), "no {text:?} in: {}", self.stderr);
    }
}

/// A running tool.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
    stdout: JoinHandle<Vec<u8>>,
}

/// Starts the tool with the arguments in `line`.
pub fn start(line: &str) -> Running {
    start_with(line, Stdio::null())
}

/// Starts the tool with the arguments in `line` and the standard input `stdin`.
pub fn start_with(line: &str, stdin: Stdio) -> Running {
    let mut command = tool();
    command.args(line.split_whitespace()).stdin(stdin);
    start_command(command)
}

/// The tool: the one that was built with the tests, or another if the tests run elsewhere, as in the lab's guest.
pub fn tool() -> Command {
    let built =
        option_env!("CARGO_BIN_EXE_devmem-tcp").or(option_env!("CARGO_BIN_EXE_devmem-bench"));
    let other = std::env::var_os("DEVMEM_TEST_TOOL").or(built.map(Into::into));
    Command::new(other.expect("cargo names the program of this package"))
}

/// Starts the tool by a command, with its outputs piped.
pub fn start_command(mut command: Command) -> Running {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    let mut pipe = child.stdout.take().expect("it was piped");
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    });
    let stderr = BufReader::new(child.stderr.take().expect("it was piped"));
    Running {
        child,
        stderr,
        said: String::new(),
        stdout,
    }
}

/// Runs the tool to its end.
pub fn run(line: &str) -> Finished {
    start(line).finish()
}

impl Running {
    /// Waits until the tool has printed `text` to stderr.
    #[track_caller]
    pub fn until(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            if self.stderr.buffer().is_empty() {
                let limit = Timespec::try_from(LIMIT).expect("a short time");
                let mut fds = [PollFd::new(self.stderr.get_ref(), PollFlags::IN)];
                let ready = poll(&mut fds, Some(&limit));
                assert_eq!(ready, Ok(1), "it did not print {text:?}: {}", self.said);
            }
            let read = self.stderr.read_line(&mut line).expect("stderr is text");
            assert_ne!(read, 0, "it ended without printing {text:?}: {}", self.said);
            self.said.push_str(&line);
        }
    }

    /// The process.
    pub fn pid(&self) -> rustix::process::Pid {
        let id = i32::try_from(self.child.id()).expect("a process id is small");
        rustix::process::Pid::from_raw(id).expect("and not zero")
    }

    /// Waits for the end.
    #[track_caller]
    pub fn finish(self) -> Finished {
        let Self {
            mut child,
            mut stderr,
            mut said,
            stdout,
        } = self;
        let reader = thread::spawn(move || {
            stderr.read_to_string(&mut said).expect("stderr is text");
            said
        });
        let status = wait_or_kill(&mut child, LIMIT);
        let stderr = reader.join().expect("the reader does not panic");
        assert!(
            status.is_some(),
            "it did not end within {LIMIT:?}; it said:\n{stderr}"
        );
        let stdout = stdout.join().expect("the reader does not panic");
        Finished {
            code: status.and_then(|status| status.code()),
            stdout,
            stderr,
        }
    }
}

/// Starts `devmem-tcp recv` on a TAP, with a part of the memory that it has by default (a kernel takes longer to zero that than most tests
/// take otherwise), and waits until it listens.
pub fn start_recv(options: &str) -> Running {
    let memory = match options.contains("--mem-size") {
        true => "",
        false => "--mem-size 32M",
    };
    let mut recv = start(&format!(
        "recv --peer-addr 10.77.0.1/24 -l {memory} {options}"
    ));
    recv.until("listening on");
    recv
}

/// SIGHUP, unless these tests were started with it ignored, because then the tool ignores it, too.
pub fn hang_up() -> Option<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = mask.expect("the kernel prints the mask") & 1 == 1;
    (!ignored).then_some(Signal::HUP)
}

/// Address on which [`start_recv`] listens.
pub fn recv_addr() -> SocketAddr {
    "10.77.0.2:5201".parse().expect("it is an address")
}

/// A kernel connection to `to`.
#[track_caller]
pub fn connect(to: SocketAddr) -> TcpStream {
    TcpStream::connect_timeout(&to, LIMIT).expect("it listens")
}

/// The repeating stream of ncdevmem: the bytes 1 to `period - 1`, then `zero`.
pub fn repeating(period: u8, zero: u8, len: usize) -> Vec<u8> {
    let once: Vec<u8> = (1..period).chain([zero]).collect();
    let mut stream = once.repeat(len.div_ceil(once.len()));
    stream.truncate(len);
    stream
}

/// Asserts the results of a successful run of the receiver.
#[track_caller]
pub fn assert_all_right(json: &Value, bytes: u64) {
    assert_eq!(json["bytes"], bytes, "{json}");
    assert_eq!(json["verified_bytes"], bytes, "{json}");
    assert_eq!(json["bad_bytes"], 0, "{json}");
    assert_everything_home(json);
    let (device, linear) = (json["device_bytes"].as_u64(), json["linear_bytes"].as_u64());
    assert_eq!(
        device.zip(linear).map(|(d, l)| d + l),
        Some(bytes),
        "{json}"
    );
}

/// Asserts that no memory was lost.
#[track_caller]
pub fn assert_everything_home(json: &Value) {
    assert_eq!(json["net_iovs_home"], json["net_iovs_total"], "{json}");
    assert_eq!(json["tokens_returned"], json["device_frags"], "{json}");
}

/// Asserts that no packet was dropped. Discarded packets do not count, such as those that the kernel repeats if our reply is
/// late on a busy machine.
#[track_caller]
pub fn assert_nothing_dropped(json: &Value) {
    assert_eq!(json["drops"], serde_json::json!({}), "{json}");
    assert!(json["discarded"].is_object(), "{json}");
}

/// Lists the comments of the TCP packets to `port` in a capture file.
pub fn comments(file: &[u8], port: u16) -> Vec<String> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::{Block, PcapNgReader};
    let mut reader = PcapNgReader::new(file).expect("a pcapng file");
    let mut comments = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("a whole block") else {
            continue;
        };
        let headers = wire::RxHeaders::parse(&packet.data, packet.data.len());
        let Some(tcp) = headers.as_ref().ok().and_then(|headers| headers.tcp()) else {
            continue;
        };
        if tcp.dst_port != port {
            continue;
        }
        for option in &packet.options {
            if let EnhancedPacketOption::Comment(comment) = option {
                comments.push(comment.to_string());
            }
        }
    }
    comments
}
