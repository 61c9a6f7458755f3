//! `bench lossy`: this sender and the kernel's, with the same congestion control, over the same impaired cable.

mod cable;
mod report;
mod sender_counters;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use devmem_linux::{cpu, netns};
use devmem_tcp::{Dmabuf, tcp::TcpOptions};
use nic::Impairment;
use serde::Serialize;

use crate::form::FormArgs;
use crate::network::require_tap;
use crate::processors::first_two;
use crate::receiver::{ReceiverProcess, Receiving};
use crate::repetitions::Repetitions;
use crate::sender::{Home, Mode, PORT, RECEIVER, SenderProcess, Sending};
use cable::{Cable, SenderTcp};
pub use cable::{CableArgs, run as run_cable};
use report::{LossyReport, Sample};
use sender_counters::SenderCounters;
use tool::output::Failure;
use tool::sender::pattern_of;
use tool::source::{GeneratedPattern, Source};
use tool::transmit::Transmit;

/// The default cables, by their impairments.
const CABLES: &[&str] = &[
    "delay=20ms",
    "loss=1%",
    "loss=5%",
    "reorder=1%",
    "dup=1%",
    "loss=1%,delay=20ms",
    "loss=5%,delay=20ms",
    "loss=1%,reorder=1%,dup=1%,delay=20ms,jitter=1ms,ordered",
    "loss=0.1%,delay=20ms",
    "loss=1%,delay=500us",
    "loss=1%,delay=50ms",
    // A bottleneck with 170 frames on their way, and a queue of 50, then of 670.
    "rate=200mbit,delay=10ms,limit=220",
    "rate=200mbit,delay=10ms,limit=840",
    // Marks instead of losses, for DCTCP.
    "ce=1%,delay=1ms",
];

/// Bytes per send call.
const WRITE_BYTES: usize = 256 << 10;
/// Device memory of our sender: room for the bytes in its send buffer and for the bytes being written meanwhile.
const RING_BYTES: usize = 8 << 20;

/// Send over an impaired cable to a kernel receiver: this sender and the kernel's, with the same congestion control
///
/// For each kind of cable and each seed, the kernel's sender and then this one send for --seconds through
/// `devmem-tcp wire`. The receiver checks every byte and counts those delivered in order. A ratio compares the bytes of
/// all seeds. Runs in a new network namespace and has the same requirements as `devmem-tcp wire`.
#[derive(Debug, Args)]
pub struct LossyArgs {
    /// Number of seeds of the cable; everything is run once for each
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
    /// Duration of each run, measured at the receiver
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// MTU: largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Congestion control of both senders
    #[arg(long, value_enum, default_value_t = Congestion::Cubic)]
    congestion: Congestion,
    /// Impairments of a cable without the seed, as in `devmem-tcp wire`; may be repeated [default: a list of typical cables]
    #[arg(long, value_name = "LIST")]
    impair: Vec<String>,
    #[command(flatten)]
    form: FormArgs,
}

/// Congestion control that both stacks implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Congestion {
    Cubic,
    Reno,
    Bbr,
    Dctcp,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a run failed, for example with a wrong byte.
pub fn run(args: &LossyArgs) -> Result<(), Failure> {
    let time = Duration::try_from_secs_f64(args.seconds)
        .ok()
        .filter(|time| (Duration::from_millis(100)..=Duration::from_secs(600)).contains(time))
        .ok_or_else(|| Failure::usage(format_args!("--seconds {}: 0.1 to 600", args.seconds)))?;
    let cables = cables(&args.impair)?;
    let seeds = Repetitions::new("seed", "--seeds", args.seeds)?;
    require_tap()?;
    // Before any thread is started, because an unprivileged caller also enters a user namespace.
    netns::enter_new()?;
    let bench = Bench {
        time,
        mtu: args.mtu,
        congestion: args.congestion,
        memory: Dmabuf::anonymous(RING_BYTES)?,
        cpus: first_two(&cpu::allowed_cpus())?,
    };
    let mut report = LossyReport::new(args.congestion, time, args.mtu, &cables);
    let measure = |seed, cable: &String| {
        let impairment = format!("{cable},seed={seed}");
        let (kernel_bytes, kernel) = bench.run_once(SenderTcp::Kernel, &impairment)?;
        seeds.check()?;
        let (our_bytes, ours) = bench.run_once(SenderTcp::Ours, &impairment)?;
        Ok(Sample {
            seed,
            kernel_bytes,
            our_bytes,
            kernel,
            ours,
        })
    };
    let progress = seeds.run(&cables, measure, |row, sample| report.add(row, sample))?;
    args.form.print(progress, &report, &report.chart())
}

/// Returns the requested cables, validated.
fn cables(asked: &[String]) -> Result<Vec<String>, Failure> {
    let cables: Vec<String> = match asked {
        [] => CABLES.iter().map(|&cable| cable.to_owned()).collect(),
        asked => asked.to_vec(),
    };
    for cable in &cables {
        let with_seed = format!("{cable},seed=1");
        with_seed
            .parse::<Impairment>()
            .map_err(|error| Failure::usage(format!("--impair {cable}: {error}")))?;
    }
    Ok(cables)
}

/// State shared by all runs.
struct Bench {
    time: Duration,
    mtu: u16,
    congestion: Congestion,
    memory: Dmabuf,
    /// The processor of the receiver, and that of the sender and the cable.
    cpus: (usize, usize),
}

impl Bench {
    /// Returns the number of bytes that arrived, and the sender's counters.
    fn run_once(&self, sender: SenderTcp, impairment: &str) -> Result<(u64, SenderCounters)> {
        let receiving = Receiving::Verified(self.time);
        let mut receiver = ReceiverProcess::start(receiving, self.cpus.0, Home::OfItsOwn)?;
        let cable = Cable::new(sender, &receiver, impairment, self.mtu, self.cpus.1)?;
        let sent = match sender {
            SenderTcp::Kernel => self.send_by_kernel(&mut receiver),
            SenderTcp::Ours => self.send_by_us(&cable, &mut receiver),
        };
        sent.with_context(|| format!("{sender:?} through {impairment}"))
    }

    fn send_by_kernel(&self, receiver: &mut ReceiverProcess) -> Result<(u64, SenderCounters)> {
        let before = SenderCounters::of_the_kernel()?;
        let sending = Sending {
            congestion: match self.congestion {
                Congestion::Cubic => "cubic",
                Congestion::Reno => "reno",
                Congestion::Bbr => "bbr",
                Congestion::Dctcp => "dctcp",
            },
            write_bytes: WRITE_BYTES,
            source_bytes: WRITE_BYTES,
            mode: Mode::Pattern,
            connections: None,
            offered: None,
        };
        let mut sender = SenderProcess::start(sending, self.time, self.cpus.1, Home::Shared)?;
        sender.starter()?.go()?;
        let bytes = receiver.received()?.bytes;
        // Dropping the handle ends the sender.
        Ok((bytes, SenderCounters::of_the_kernel()?.since(before)))
    }

    fn send_by_us(
        &self,
        cable: &Cable,
        receiver: &mut ReceiverProcess,
    ) -> Result<(u64, SenderCounters)> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send_until(cable, &is_over));
            let received = receiver.received();
            is_over.store(true, Ordering::Relaxed);
            let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
            // An error of the sender takes precedence: that of the receiver is only a consequence.
            match received {
                Ok(received) => Ok((received.bytes, sent?)),
                Err(error) => Err(sent.err().unwrap_or(error)),
            }
        })
    }

    /// Sends the pattern until the run ends; returns the sender's counters.
    fn send_until(&self, cable: &Cable, is_over: &AtomicBool) -> Result<SenderCounters> {
        cpu::pin_current_thread(self.cpus.1).context("pin the sender")?;
        let mut tcp = TcpOptions::default();
        tcp.congestion = match self.congestion {
            Congestion::Cubic => devmem_tcp::tcp::Congestion::Cubic,
            Congestion::Reno => devmem_tcp::tcp::Congestion::Reno,
            Congestion::Bbr => devmem_tcp::tcp::Congestion::Bbr,
            Congestion::Dctcp => devmem_tcp::tcp::Congestion::Dctcp,
        };
        let nic = cable.our_nic(self.mtu)?.tcp(tcp).open()?;
        let tx = nic.bind_tx(&self.memory)?;
        let mut stream = nic.connect(SocketAddr::from((RECEIVER, PORT)))?;
        let port = stream
            .local_addr()
            .context("the connection has ended")?
            .port();
        let mut source = Source::made(GeneratedPattern::Position(pattern_of(port)), u64::MAX);
        let mut transmit = Transmit::new(&mut stream, &tx, 0..RING_BYTES, WRITE_BYTES)
            .map_err(|failure| anyhow!("{failure}"))?;
        transmit
            .feed(&mut source, &mut |_| !is_over.load(Ordering::Relaxed))
            .map_err(|failure| anyhow!("{failure}"))?;
        let info = transmit.tcp_info();
        Ok(info
            .as_ref()
            .map(SenderCounters::of_ours)
            .unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_default_cables_are_valid_and_an_invalid_one_is_named() {
        assert_eq!(cables(&[]).unwrap().len(), CABLES.len());
        assert_eq!(cables(&["loss=2%".to_owned()]).unwrap(), ["loss=2%"]);
        let error = cables(&["loss=200%".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--impair loss=200%"), "{error}");
    }
}
