//! An ordinary kernel TCP sender, in a process of its own: the other end of every row of `bench rx`, and what `bench tx`
//! compares with.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use devmem_linux::helper::Helper;
use devmem_linux::netns::NetNs;
use devmem_linux::socket::{ErrorQueue, enable_zerocopy};
use devmem_linux::{cpu, netns};
use devmem_uapi::MsgFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use tool::output::print_line;
use tool::sender::{Share, pattern_of, send};

/// Where the receiver listens.
pub const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The sender's end.
pub const SENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Prefix length of their network.
pub const PREFIX: u8 = 24;
/// The receiver's port.
pub const PORT: u16 = 5201;

/// Sends for a while when told to, and says what that cost.
#[derive(Debug, Args)]
pub struct SenderArgs {
    #[arg(long)]
    millis: u64,
    #[arg(long)]
    write_bytes: usize,
    #[arg(long)]
    congestion: String,
    #[arg(long)]
    cpu: usize,
    #[arg(long)]
    source_bytes: usize,
    #[arg(long)]
    zerocopy: bool,
    /// Sends the pattern, until the receiver leaves.
    #[arg(long)]
    pattern: bool,
}

/// How a kernel sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Its socket's congestion control.
    pub congestion: &'static str,
    /// Bytes of each send call.
    pub write_bytes: usize,
    /// Bytes of the memory that it sends, again and again: `write_bytes`, which stay in the cache, or more.
    pub source_bytes: usize,
    /// What is sent, and how.
    pub mode: Mode,
}

/// What a kernel sender sends, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its memory, copied by the kernel.
    Copy,
    /// Its memory, with `MSG_ZEROCOPY`.
    Zerocopy,
    /// The position pattern, copied by the kernel, until the receiver leaves.
    Pattern,
}

/// What the sender says at its end, as one line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderReport {
    /// Payload bytes.
    pub bytes: u64,
    /// Processor time in nanoseconds, of connecting and sending.
    pub cpu_ns: u64,
}

/// The sender process: waits for one byte on stdin, connects, sends.
pub fn run(args: &SenderArgs) -> Result<()> {
    cpu::pin_current_thread(args.cpu).with_context(|| format!("pin to processor {}", args.cpu))?;
    let source = vec![0x5a; args.source_bytes.max(args.write_bytes)];
    let told = io::stdin()
        .read(&mut [0])
        .context("wait for the word to go")?;
    if told == 0 {
        bail!("the benchmark went away");
    }
    if args.pattern {
        return send_pattern(args);
    }
    let before = cpu::process_cpu_time();
    let mut stream = connect(&args.congestion)?;
    let bytes = if args.zerocopy {
        send_zerocopy(&stream, &source, args)?
    } else {
        send_copied(&mut stream, &source, args)?
    };
    stream.shutdown(Shutdown::Write).context("end the stream")?;
    // The other end closes, or resets, when it has everything.
    let _ = stream.read(&mut [0]);
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    print_line(serde_json::to_string(&SenderReport { bytes, cpu_ns })?)
}

/// Sends the pattern until the receiver has seen enough.
fn send_pattern(args: &SenderArgs) -> Result<()> {
    let stream = connect(&args.congestion)?;
    let port = stream.local_addr().context("read the local port")?.port();
    let share = Share {
        bytes: u64::MAX,
        write_size: args.write_bytes,
    };
    let _ended = send(&stream, pattern_of(port), share);
    Ok(())
}

/// Sends `source` again and again until the time is over; returns how many bytes that were.
fn send_copied(stream: &mut TcpStream, source: &[u8], args: &SenderArgs) -> Result<u64> {
    let end = Instant::now() + Duration::from_millis(args.millis);
    let mut bytes = 0;
    for piece in source.chunks_exact(args.write_bytes).cycle() {
        if Instant::now() >= end {
            break;
        }
        stream.write_all(piece).context("send")?;
        bytes += piece.len() as u64;
    }
    Ok(bytes)
}

/// The same without a copy in the sender: the kernel takes the pages, and says when it is done with them. Nothing here
/// waits for that, as nothing is changed.
fn send_zerocopy(stream: &TcpStream, source: &[u8], args: &SenderArgs) -> Result<u64> {
    let flags = SendFlags::from_bits_retain(MsgFlags::ZEROCOPY.bits());
    enable_zerocopy(stream.as_fd())
        .map_err(|errno| anyhow!("SO_ZEROCOPY: {}", errno.describe()))?;
    let end = Instant::now() + Duration::from_millis(args.millis);
    let mut told = ErrorQueue::default();
    let mut bytes = 0;
    for piece in source.chunks_exact(args.write_bytes).cycle() {
        if Instant::now() >= end {
            break;
        }
        let mut rest = piece;
        while !rest.is_empty() {
            match rustix::net::send(stream, rest, flags) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                // No memory for more notifications until some are read.
                Err(Errno::NOBUFS) => _ = told.drain(stream.as_fd())?,
                Err(errno) => return Err(errno).context("send with MSG_ZEROCOPY"),
            }
        }
        told.drain(stream.as_fd())?;
        told.completions.clear();
        bytes += piece.len() as u64;
    }
    Ok(bytes)
}

/// Connects with the congestion control set before, so that nothing of the default one stays behind.
fn connect(congestion: &str) -> Result<TcpStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    cpu::set_congestion_control(&socket, congestion)
        .with_context(|| format!("congestion control {congestion}"))?;
    let to = SocketAddrV4::new(RECEIVER, PORT);
    rustix::net::connect(&socket, &to).with_context(|| format!("connect to {to}"))?;
    Ok(TcpStream::from(socket))
}

/// The sender process, seen from the benchmark.
#[derive(Debug)]
pub struct SenderProcess {
    child: Helper,
    go: Option<ChildStdin>,
}

/// Where the sender process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In the benchmark's network namespace: the kernel's end of the TAP is there.
    Shared,
    /// In a network namespace of its own: the two ends of a veth must not be on one host.
    OfItsOwn,
}

impl SenderProcess {
    /// Starts the process; it waits.
    pub fn start(sending: Sending, time: Duration, cpu: usize, home: Home) -> Result<Self> {
        let Sending {
            congestion,
            write_bytes,
            source_bytes,
            mode,
        } = sending;
        let mut command = Helper::this_program();
        command.args(["__sender", "--congestion", congestion]);
        let numbers = [
            ("--millis", time.as_millis()),
            ("--cpu", cpu as u128),
            ("--write-bytes", write_bytes as u128),
            ("--source-bytes", source_bytes as u128),
        ];
        for (name, number) in numbers {
            command.args([name, &number.to_string()]);
        }
        match mode {
            Mode::Copy => {}
            Mode::Zerocopy => _ = command.arg("--zerocopy"),
            Mode::Pattern => _ = command.arg("--pattern"),
        }
        // Large allocations in huge pages, as our device memory is (glibc 2.35; others have no such wish).
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if home == Home::OfItsOwn {
            netns::start_in_new(&mut command);
        }
        let mut child = Helper::start(&mut command).context("start the sender")?;
        let go = child.take_stdin();
        Ok(Self { child, go })
    }

    /// Opens the process's network namespace.
    pub fn namespace(&self) -> Result<NetNs> {
        Ok(NetNs::open(&format!("pid:{}", self.child.id()))?)
    }

    /// Takes what lets the process begin: a byte written to it. It can be used from another thread.
    pub fn starter(&mut self) -> Result<Starter> {
        self.go
            .take()
            .map(Starter)
            .context("the sender was started twice")
    }

    /// Waits for the process's end and returns what it says.
    pub fn finish(mut self) -> Result<SenderReport> {
        let mut said = String::new();
        let stdout = self.child.take_stdout();
        stdout
            .context("the sender has no stdout")?
            .read_to_string(&mut said)
            .context("listen to the sender")?;
        let status = self.child.wait().context("wait for the sender")?;
        if !status.success() {
            bail!("the sender failed: {status}");
        }
        serde_json::from_str(&said).with_context(|| format!("the sender said {said:?}"))
    }
}

/// Lets the sender begin.
#[derive(Debug)]
pub struct Starter(ChildStdin);

impl Starter {
    /// Lets the sender begin: the receiver is ready.
    pub fn go(mut self) -> io::Result<()> {
        self.0.write_all(b"g")
    }
}

/// Waits until `fd` is readable, at most `limit`; false if it was not.
pub fn wait_readable(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    loop {
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits for `fd` as long as a sender that lives can take.
pub fn wait_for_sender(fd: impl AsFd) -> Result<()> {
    if wait_readable(fd, super::meter::SILENCE)? {
        return Ok(());
    }
    bail!(
        "nothing came from the sender for {} s",
        super::meter::SILENCE.as_secs()
    )
}
