//! An ordinary kernel TCP receiver in a separate process: the receiver of all rows of `bench tx`, `bench lossy` and `bench fairness`.

mod two;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use devmem_linux::helper::Helper;
use devmem_linux::socket::set_receive_low_water;
use devmem_linux::{cpu, netns};
use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};

use crate::connections::Connections;
use crate::meter::{Meter, MeterReading, SILENCE};
use crate::sender::{Home, PORT, wait_for_sender};
use crate::wait_set::receive_from_kernel;
use pattern::{Expected, Verifier};
use tool::output::print_line;
use tool::sender::pattern_of;
pub use two::TwoReceived;

/// Bytes of one receive call; a buffer of this size stays in the cache.
const CHUNK: usize = 256 << 10;
/// Context of the error if a socket refuses a time limit.
const TIME_LIMIT: &str = "set a time limit";

/// Receives one stream and reports its cost.
#[derive(Debug, Args)]
pub struct ReceiverArgs {
    #[arg(long)]
    cpu: usize,
    /// Time after which to end; by default at the end of the stream.
    #[arg(long)]
    millis: Option<u64>,
    /// Check that the stream is the sender's pattern.
    #[arg(long)]
    verify: bool,
    /// Wake up only when at least this number of bytes is available.
    #[arg(long)]
    low_water: Option<usize>,
    /// Discard the bytes in the kernel, without a copy.
    #[arg(long)]
    discard: bool,
    /// Number of connections to receive on at the same time; by default one, with blocking calls.
    #[arg(long)]
    busy: Option<usize>,
    /// Receive on two connections at the same time for `millis`, once both have lasted for this time.
    #[arg(long, requires = "millis")]
    warm_up_millis: Option<u64>,
    /// Congestion control of the connections: one with its own answer to marks also echoes them in its own way.
    #[arg(long)]
    congestion: Option<String>,
}

/// Its report, one line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReceiverReport {
    bytes: u64,
    bad_bytes: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
}

/// The receiver process: listens, prints that it listens, and receives.
pub fn run(args: &ReceiverArgs) -> Result<()> {
    cpu::pin_current_thread(args.cpu).with_context(|| format!("pin to processor {}", args.cpu))?;
    let listener =
        TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT)).context("listen")?;
    if let Some(name) = &args.congestion {
        cpu::set_congestion_control(&listener, name)
            .with_context(|| format!("congestion control {name}"))?;
    }
    if let Some(busy) = args.busy {
        let connections = Connections { busy, idle: 0 };
        connections.raise_fd_limit()?;
        print_line("ready")?;
        let received = receive_from_kernel(&listener, connections, |_| Ok(()))?;
        return say(&ReceiverReport::of(received, 0)?);
    }
    print_line("ready")?;
    let limit = args.millis.map(Duration::from_millis);
    if let (Some(warm_up), Some(time)) = (args.warm_up_millis, limit) {
        let received = two::receive(&listener, Duration::from_millis(warm_up), time)?;
        print_line(serde_json::to_string(&received)?)?;
        park();
    }
    wait_for_sender(&listener)?;
    let (stream, peer) = listener.accept().context("accept")?;
    if let Some(bytes) = args.low_water {
        set_receive_low_water(stream.as_fd(), bytes)
            .map_err(|errno| anyhow!("SO_RCVLOWAT: {}", errno.describe()))?;
    }
    if args.discard {
        return say(&discard(&stream)?);
    }
    let verifier = args
        .verify
        .then(|| Verifier::new(Expected::Position(pattern_of(peer.port()))));
    say(&receive(&stream, verifier, limit)?)?;
    if limit.is_some() {
        park();
    }
    Ok(())
}

/// Waits until the benchmark kills this process: the sender does not end by itself, and its counters are read before its connection is
/// reset.
fn park() -> ! {
    loop {
        std::thread::park();
    }
}

fn say(said: &ReceiverReport) -> Result<()> {
    print_line(serde_json::to_string(said)?)
}

/// Counts the bytes of the stream and discards them in the kernel (tcp(7): `MSG_TRUNC`).
fn discard(stream: &TcpStream) -> Result<ReceiverReport> {
    let mut meter = Meter::default();
    stream.set_read_timeout(Some(SILENCE)).context(TIME_LIMIT)?;
    let mut unused = vec![0; CHUNK];
    loop {
        let (_, len) =
            rustix::net::recv(stream, &mut *unused, RecvFlags::TRUNC).context("receive")?;
        if len == 0 {
            return ReceiverReport::of(meter.finish(), 0);
        }
        meter.add(len);
    }
}

fn receive(
    mut stream: &TcpStream,
    mut verifier: Option<Verifier>,
    limit: Option<Duration>,
) -> Result<ReceiverReport> {
    let mut buffer = vec![0; CHUNK];
    let mut meter = Meter::default();
    let start = Instant::now();
    // Without a limit the timeout is set only once, because a call per receive would distort the measurement.
    let mut left = limit.unwrap_or(SILENCE);
    stream.set_read_timeout(Some(left)).context(TIME_LIMIT)?;
    while !left.is_zero() {
        let len = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            // The time limit has passed. Without a limit this is an error: the sender is dead.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && limit.is_some() => break,
            Err(error) => return Err(error).context("receive"),
        };
        meter.add(len);
        if let Some(verifier) = &mut verifier {
            verifier.check(&buffer[..len]);
        }
        if let Some(limit) = limit {
            left = limit.saturating_sub(start.elapsed());
            if !left.is_zero() {
                stream.set_read_timeout(Some(left)).context(TIME_LIMIT)?;
            }
        }
    }
    ReceiverReport::of(
        meter.finish(),
        verifier.map_or(0, |verifier| verifier.bad_bytes()),
    )
}

impl ReceiverReport {
    fn of(received: MeterReading, bad_bytes: u64) -> Result<Self> {
        let MeterReading {
            bytes,
            elapsed,
            cpu,
        } = received;
        Ok(Self {
            bytes,
            bad_bytes,
            elapsed_ns: u64::try_from(elapsed.as_nanos())?,
            cpu_ns: u64::try_from(cpu.as_nanos())?,
        })
    }
}

/// Task of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// Count bytes until the stream ends.
    ToTheEnd,
    /// The same, but wake up only when at least this number of bytes is available.
    InPortions(usize),
    /// The same, but discard the bytes in the kernel.
    Discarded,
    /// Check every byte for this time.
    Verified(Duration),
    /// Count the bytes of all these connections until they end.
    Many(Connections),
    /// Check every byte of two connections at the same time, and count those of `time` once both have lasted for `warm_up`.
    Two {
        warm_up: Duration,
        time: Duration,
        /// Congestion control of both.
        congestion: &'static str,
    },
}

/// Handle of the receiver process.
#[derive(Debug)]
pub struct ReceiverProcess {
    child: Helper,
    says: BufReader<ChildStdout>,
}

impl ReceiverProcess {
    /// Starts the process and waits until it listens, on all addresses.
    pub fn start(receiving: Receiving, cpu: usize, home: Home) -> Result<Self> {
        let mut command = Helper::this_program();
        command.args(["__receiver", "--cpu", &cpu.to_string()]);
        match receiving {
            Receiving::ToTheEnd => {}
            Receiving::InPortions(bytes) => {
                command.args(["--low-water", &bytes.to_string()]);
            }
            Receiving::Discarded => {
                command.arg("--discard");
            }
            Receiving::Many(Connections { busy, .. }) => {
                command.args(["--busy", &busy.to_string()]);
            }
            Receiving::Verified(limit) => {
                command.args(["--verify", "--millis", &limit.as_millis().to_string()]);
            }
            Receiving::Two {
                warm_up,
                time,
                congestion,
            } => {
                command.args(["--congestion", congestion]);
                command.args(["--warm-up-millis", &warm_up.as_millis().to_string()]);
                command.args(["--millis", &time.as_millis().to_string()]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if home == Home::OfItsOwn {
            netns::start_in_new(&mut command);
        }
        let mut child = Helper::start(&mut command).context("start the receiver")?;
        let says = child.take_stdout().context("the receiver has no stdout")?;
        let mut receiver = Self {
            child,
            says: BufReader::new(says),
        };
        receiver.hear()?;
        Ok(receiver)
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the process and returns its measurement.
    pub fn finish(mut self) -> Result<MeterReading> {
        let received = self.received()?;
        self.child.wait().context("wait for the receiver")?;
        Ok(received)
    }

    /// Waits until the process has finished its task, and returns its measurement. A process with a time limit then keeps its
    /// connection open, without reading from it, until this is dropped.
    pub fn received(&mut self) -> Result<MeterReading> {
        let line = self.hear()?;
        let said: ReceiverReport = serde_json::from_str(&line)
            .with_context(|| format!("parse the receiver's output {line:?}"))?;
        if said.bad_bytes > 0 {
            bail!("{} of {} bytes are wrong", said.bad_bytes, said.bytes);
        }
        Ok(MeterReading {
            bytes: said.bytes,
            elapsed: Duration::from_nanos(said.elapsed_ns),
            cpu: Duration::from_nanos(said.cpu_ns),
        })
    }

    /// The same for two connections.
    pub fn received_two(&mut self) -> Result<TwoReceived> {
        let line = self.hear()?;
        serde_json::from_str(&line).with_context(|| format!("parse the receiver's output {line:?}"))
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.says.read_line(&mut line);
        if read.context("read the output of the receiver")? == 0 {
            bail!("the receiver failed");
        }
        Ok(line)
    }
}
