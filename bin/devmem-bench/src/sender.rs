//! An ordinary kernel TCP sender in a separate process: the sender of all rows of `bench rx`, and of the rows of the kernel
//! in `bench tx`.

mod many;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

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

use crate::connections::Connections;
use crate::send_time::SendTime;
use tool::output::print_line;
use tool::sender::{Share, pattern_of, send};

/// Address of the receiver.
pub const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Address of the sender.
pub const SENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Prefix length of the network of both.
pub const PREFIX: u8 = 24;
/// Port of the receiver.
pub const PORT: u16 = 5201;

/// Waits for the start signal, sends for a time, and reports the cost.
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
    /// Send the pattern until the receiver closes the connection.
    #[arg(long)]
    pattern: bool,
    /// Number of connections to send on at the same time; by default one, with blocking calls.
    #[arg(long)]
    busy: Option<usize>,
    /// Number of silent connections beside them.
    #[arg(long, default_value_t = 0)]
    idle: usize,
    /// Gbit/s to offer on all busy connections together; by default as much as they accept.
    #[arg(long)]
    offered: Option<u32>,
    /// Address to send the pattern from; by default the kernel chooses it.
    #[arg(long, requires = "pattern")]
    from: Option<Ipv4Addr>,
}

/// Options of a kernel sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Congestion control of its socket.
    pub congestion: &'static str,
    /// Bytes of each send call.
    pub write_bytes: usize,
    /// Bytes of the memory that it sends repeatedly: `write_bytes`, which stay in the cache, or more.
    pub source_bytes: usize,
    /// The data and the way to send it.
    pub mode: Mode,
    /// The number of connections; `None`: one, with blocking calls.
    pub connections: Option<Connections>,
    /// Gbit/s that are offered on several connections together; `None`: as much as they accept.
    pub offered: Option<u32>,
    /// Address to send the pattern from; `None`: the kernel chooses it.
    pub from: Option<Ipv4Addr>,
}

/// The data of a kernel sender and the way to send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its memory, with a copy in the kernel.
    Copy,
    /// Its memory, with `MSG_ZEROCOPY`.
    Zerocopy,
    /// The position pattern, with a copy in the kernel, until the receiver closes the connection.
    Pattern,
}

/// Report of the sender process, one line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderReport {
    /// Payload bytes.
    pub bytes: u64,
    /// CPU time of connecting and sending, in nanoseconds.
    pub cpu_ns: u64,
}

/// The sender process: waits for one byte on stdin, connects, sends.
pub fn run(args: &SenderArgs) -> Result<()> {
    cpu::pin_current_thread(args.cpu).with_context(|| format!("pin to processor {}", args.cpu))?;
    let source = vec![0x5a; args.source_bytes.max(args.write_bytes)];
    let told = io::stdin()
        .read(&mut [0])
        .context("wait for the start signal")?;
    if told == 0 {
        bail!("the benchmark has ended");
    }
    if args.pattern {
        return send_pattern(args);
    }
    let before = cpu::process_cpu_time();
    let bytes = match args.busy {
        Some(busy) => {
            let idle = args.idle;
            many::run(args, Connections { busy, idle }, &source)?
        }
        None => send_one(&source, args)?,
    };
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    print_line(serde_json::to_string(&SenderReport { bytes, cpu_ns })?)
}

/// Sends on one connection for a time; returns the number of bytes.
fn send_one(source: &[u8], args: &SenderArgs) -> Result<u64> {
    let mut stream = connect(&args.congestion, None)?;
    let bytes = if args.zerocopy {
        send_zerocopy(&stream, source, args)?
    } else {
        send_copied(&mut stream, source, args)?
    };
    stream.shutdown(Shutdown::Write).context("end the stream")?;
    // The receiver closes or resets the connection when it has received everything.
    let _ = stream.read(&mut [0]);
    Ok(bytes)
}

/// Sends the pattern until the receiver closes the connection.
fn send_pattern(args: &SenderArgs) -> Result<()> {
    let stream = connect(&args.congestion, args.from)?;
    let port = stream.local_addr().context("read the local port")?.port();
    let share = Share {
        bytes: u64::MAX,
        write_size: args.write_bytes,
    };
    let _ended = send(&stream, pattern_of(port), share);
    Ok(())
}

/// Sends `source` repeatedly until the time has passed; returns the number of bytes.
fn send_copied(stream: &mut TcpStream, source: &[u8], args: &SenderArgs) -> Result<u64> {
    let time = SendTime::of(Duration::from_millis(args.millis));
    let mut bytes = 0;
    for piece in source.chunks_exact(args.write_bytes).cycle() {
        if !time.continues(bytes) {
            break;
        }
        stream.write_all(piece).context("send")?;
        bytes += piece.len() as u64;
    }
    Ok(bytes)
}

/// As [`send_copied`], with `MSG_ZEROCOPY`. Completions need no waiting, because the memory does not change.
fn send_zerocopy(stream: &TcpStream, source: &[u8], args: &SenderArgs) -> Result<u64> {
    let flags = SendFlags::from_bits_retain(MsgFlags::ZEROCOPY.bits());
    enable_zerocopy(stream.as_fd())
        .map_err(|errno| anyhow!("SO_ZEROCOPY: {}", errno.describe()))?;
    let time = SendTime::of(Duration::from_millis(args.millis));
    let mut told = ErrorQueue::default();
    let mut bytes = 0;
    for piece in source.chunks_exact(args.write_bytes).cycle() {
        if !time.continues(bytes) {
            break;
        }
        let mut rest = piece;
        while !rest.is_empty() {
            match rustix::net::send(stream, rest, flags) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                // No more sends are possible until completions are read.
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

/// Connects, with the congestion control set before, so that no state of the default one is left.
fn connect(congestion: &str, from: Option<Ipv4Addr>) -> Result<TcpStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    cpu::set_congestion_control(&socket, congestion)
        .with_context(|| format!("congestion control {congestion}"))?;
    if let Some(from) = from {
        rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))
            .with_context(|| format!("bind to {from}"))?;
    }
    let to = SocketAddrV4::new(RECEIVER, PORT);
    rustix::net::connect(&socket, &to).with_context(|| format!("connect to {to}"))?;
    Ok(TcpStream::from(socket))
}

/// Handle of the sender process.
#[derive(Debug)]
pub struct SenderProcess {
    child: Helper,
    go: Option<ChildStdin>,
}

/// Network namespace of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// That of the benchmark, which has the kernel's end of the TAP.
    Shared,
    /// A new one, because the two ends of a veth must not be on one host.
    OfItsOwn,
}

impl SenderProcess {
    /// Starts the process, which waits for the start signal.
    pub fn start(sending: Sending, time: Duration, cpu: usize, home: Home) -> Result<Self> {
        let Sending {
            congestion,
            write_bytes,
            source_bytes,
            mode,
            connections,
            offered,
            from,
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
        if let Some(Connections { busy, idle }) = connections {
            command.args(["--busy", &busy.to_string(), "--idle", &idle.to_string()]);
        }
        if let Some(from) = from {
            command.args(["--from", &from.to_string()]);
        }
        if let Some(gbits) = offered {
            command.args(["--offered", &gbits.to_string()]);
        }
        // Use huge pages for large allocations, as for our device memory (glibc 2.35; other C libraries ignore it).
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if home == Home::OfItsOwn {
            netns::start_in_new(&mut command);
        }
        let mut child = Helper::start(&mut command).context("start the sender")?;
        let go = child.take_stdin();
        Ok(Self { child, go })
    }

    /// Opens the network namespace of the process.
    pub fn namespace(&self) -> Result<NetNs> {
        Ok(NetNs::open(&format!("pid:{}", self.child.id()))?)
    }

    /// Takes the starter of the process, which can be used from another thread.
    pub fn starter(&mut self) -> Result<Starter> {
        self.go
            .take()
            .map(Starter)
            .context("the sender was started twice")
    }

    /// Waits for the end of the process and returns its report.
    pub fn finish(mut self) -> Result<SenderReport> {
        let mut said = String::new();
        let stdout = self.child.take_stdout();
        stdout
            .context("the sender has no stdout")?
            .read_to_string(&mut said)
            .context("read the output of the sender")?;
        let status = self.child.wait().context("wait for the sender")?;
        if !status.success() {
            bail!("the sender failed: {status}");
        }
        serde_json::from_str(&said).with_context(|| format!("parse the sender's output {said:?}"))
    }
}

/// Starts the sender.
#[derive(Debug)]
pub struct Starter(ChildStdin);

impl Starter {
    /// Writes the byte on which the sender starts. The receiver must be ready.
    pub fn go(mut self) -> io::Result<()> {
        self.0.write_all(b"g")
    }
}

/// Waits until `fd` is readable, at most `limit`; returns false if it is not.
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

/// Waits until `fd` is readable; fails if the sender is silent for too long.
pub fn wait_for_sender(fd: impl AsFd) -> Result<()> {
    if wait_readable(fd, crate::meter::SILENCE)? {
        return Ok(());
    }
    bail!(
        "no data from the sender for {} s",
        crate::meter::SILENCE.as_secs()
    )
}
