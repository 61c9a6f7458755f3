//! An ordinary kernel TCP receiver, in a process of its own: the other end of every row of `bench tx` and `bench lossy`.

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

use super::meter::{Meter, MeterReading, SILENCE};
use super::sender::{Home, PORT, wait_for_sender};
use tool::output::print_line;
use tool::pattern::{Expected, Verifier};
use tool::sender::pattern_of;

/// Bytes of one receive call: the buffer stays in the cache.
const CHUNK: usize = 256 << 10;
/// What fails when a socket takes no time limit.
const TIME_LIMIT: &str = "set a time limit";

/// Receives one stream, and says what that cost.
#[derive(Debug, Args)]
pub struct ReceiverArgs {
    #[arg(long)]
    cpu: usize,
    /// Ends after this time; without it with the stream.
    #[arg(long)]
    millis: Option<u64>,
    /// Checks that the stream is the sender's pattern.
    #[arg(long)]
    verify: bool,
    /// Is woken for so many bytes at least.
    #[arg(long)]
    low_water: Option<usize>,
    /// Takes the bytes without copying them.
    #[arg(long)]
    discard: bool,
}

/// What it says at its end, as one line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Said {
    bytes: u64,
    bad_bytes: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
}

/// The receiver process: listens, says so, receives.
pub fn run(args: &ReceiverArgs) -> Result<()> {
    cpu::pin_current_thread(args.cpu).with_context(|| format!("pin to processor {}", args.cpu))?;
    let listener =
        TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT)).context("listen")?;
    print_line("ready")?;
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
    let limit = args.millis.map(Duration::from_millis);
    say(&receive(&stream, verifier, limit)?)?;
    if limit.is_some() {
        // A sender without an end is looked at before it is reset: the benchmark ends this process.
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn say(said: &Said) -> Result<()> {
    print_line(serde_json::to_string(said)?)
}

/// Counts the stream's bytes where they are (tcp(7): `MSG_TRUNC` discards them).
fn discard(stream: &TcpStream) -> Result<Said> {
    let mut meter = Meter::default();
    stream.set_read_timeout(Some(SILENCE)).context(TIME_LIMIT)?;
    let mut unused = vec![0; CHUNK];
    loop {
        let (_, len) =
            rustix::net::recv(stream, &mut *unused, RecvFlags::TRUNC).context("receive")?;
        if len == 0 {
            return Said::of(meter.finish(), 0);
        }
        meter.add(len);
    }
}

fn receive(
    mut stream: &TcpStream,
    mut verifier: Option<Verifier>,
    limit: Option<Duration>,
) -> Result<Said> {
    let mut buffer = vec![0; CHUNK];
    let mut meter = Meter::default();
    let start = Instant::now();
    // Without a limit this is all the time keeping there is: a call per receive would be measured, too.
    let mut left = limit.unwrap_or(SILENCE);
    stream.set_read_timeout(Some(left)).context(TIME_LIMIT)?;
    while !left.is_zero() {
        let len = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            // Its time is over; without one, nobody is there any more.
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
    Said::of(
        meter.finish(),
        verifier.map_or(0, |verifier| verifier.bad_bytes()),
    )
}

impl Said {
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

/// What a receiver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// Count bytes until the stream ends.
    ToTheEnd,
    /// The same, woken for so many bytes at least.
    InPortions(usize),
    /// The same, without copying them out of the kernel.
    Discarded,
    /// Check every byte, for this long.
    Verified(Duration),
}

/// The receiver process, seen from the benchmark.
#[derive(Debug)]
pub struct ReceiverProcess {
    child: Helper,
    says: BufReader<ChildStdout>,
}

impl ReceiverProcess {
    /// Starts the process and waits until it listens, on any address that it has or gets.
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
            Receiving::Verified(limit) => {
                command.args(["--verify", "--millis", &limit.as_millis().to_string()]);
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

    /// Waits for the process's end and returns what it received.
    pub fn finish(mut self) -> Result<MeterReading> {
        let received = self.received()?;
        self.child.wait().context("wait for the receiver")?;
        Ok(received)
    }

    /// Waits until the process has received what it was to, and returns what that was. One with a time limit then keeps
    /// its connection, and reads no more of it, until this is dropped.
    pub fn received(&mut self) -> Result<MeterReading> {
        let line = self.hear()?;
        let said: Said =
            serde_json::from_str(&line).with_context(|| format!("the receiver said {line:?}"))?;
        if said.bad_bytes > 0 {
            bail!("{} of {} bytes arrived wrong", said.bad_bytes, said.bytes);
        }
        Ok(MeterReading {
            bytes: said.bytes,
            elapsed: Duration::from_nanos(said.elapsed_ns),
            cpu: Duration::from_nanos(said.cpu_ns),
        })
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.says.read_line(&mut line);
        if read.context("listen to the receiver")? == 0 {
            bail!("the receiver failed");
        }
        Ok(line)
    }
}
