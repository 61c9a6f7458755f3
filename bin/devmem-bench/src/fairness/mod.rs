//! `bench fairness`: this sender and the kernel's at the same time, with the same congestion control, through the same bottleneck; and
//! two of one kind, which shows how far equal senders differ.

mod pair;
mod report;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use devmem_linux::netif::Interface;
use devmem_linux::{cpu, netns};
use devmem_tcp::Dmabuf;
use rustix::net::{AddressFamily, SocketType};
use serde::Serialize;
use tool::output::{Failure, note};

use crate::form::FormArgs;
use crate::lossy::{Cable, Congestion, NearEnd, RING_BYTES, SenderCounters, impairments};
use crate::network::{FAR_VETH, VETH, require_tap};
use crate::processors::first_two;
use crate::receiver::{ReceiverProcess, Receiving};
use crate::repetitions::Repetitions;
use crate::sender::{Home, PREFIX};
use pair::{ADDRESSES, Means, Pair, Ready, Running};
use report::{FairnessReport, Sample};

/// The default bottlenecks: 170 frames are on their way, and a queue of 50, then of 670. The round trip is 4 ms, so that there are as many
/// losses in ten seconds as in a minute of a path across a country.
const CABLES: &[&str] = &[
    "rate=1gbit,delay=2ms,limit=220",
    "rate=1gbit,delay=2ms,limit=840",
];

/// The default bottleneck for DCTCP, which marks from a queue of 50 frames on: a sixth of a round trip (RFC 8257 3.1).
const MARKING_CABLES: &[&str] = &["rate=1gbit,delay=2ms,limit=840,ce_threshold=600us"];

/// The default congestion controls.
const CONGESTIONS: &[Congestion] = &[
    Congestion::Cubic,
    Congestion::Reno,
    Congestion::Bbr,
    Congestion::Dctcp,
];

const MTU: u16 = 1500;
/// The default pairs.
const PAIRS: &[Pair] = &[Pair::Mixed, Pair::Kernel, Pair::Ours];

/// Send beside the kernel through one bottleneck: how this sender and the kernel's share it
///
/// For each congestion control and each cable, both send at the same time through `devmem-tcp wire` to a kernel receiver: the kernel's
/// TCP through a veth interface, this one through a packet socket on it. In odd repetitions this one begins, a quarter of --warm-up before
/// the other. The receiver checks every byte, and counts those of --seconds from --warm-up after both have begun. Two senders of the
/// kernel, and two of this stack, show how far equal senders differ in this time. Runs in a new network namespace and has the same
/// requirements as `devmem-tcp wire`; without the privilege to raise its priority the cable is late more often.
#[derive(Debug, Args)]
pub struct FairnessArgs {
    /// Repetitions of all rows; an even number, so that each sender begins as often as the other
    #[arg(long, value_name = "N", default_value_t = 2)]
    reps: u64,
    /// Duration of each measurement, at the receiver
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Time before each measurement in which both find their windows, in seconds
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    warm_up: f64,
    /// Congestion controls [default: cubic,reno,bbr,dctcp]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,...")]
    congestion: Vec<Congestion>,
    /// Which two senders [default: mixed,kernel,ours]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PAIR,...")]
    pairs: Vec<Pair>,
    /// The bottleneck, as an impairment of `devmem-tcp wire`; may be repeated [default: a short and a long queue; for DCTCP one that
    /// marks]
    #[arg(long, value_name = "LIST")]
    impair: Vec<String>,
    #[command(flatten)]
    form: FormArgs,
}

/// The sender that begins: the second, or the first. In a mixed pair the second is ours, the first the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum First {
    Ours,
    Kernel,
}

/// A congestion control, two senders and a bottleneck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub congestion: Congestion,
    pub pair: Pair,
    pub impair: String,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a run failed, for example with a wrong byte.
pub fn run(args: &FairnessArgs) -> Result<(), Failure> {
    let time = duration("--seconds", args.seconds)?;
    let warm_up = duration("--warm-up", args.warm_up)?;
    // Asked for or not, they are validated before anything is set up.
    let cables = impairments(&args.impair, CABLES)?;
    let marking = impairments(&args.impair, MARKING_CABLES)?;
    let repetitions = Repetitions::new("repetition", "--reps", args.reps)?;
    require_tap()?;
    // Before any thread is started, because an unprivileged caller also enters a user namespace.
    netns::enter_new()?;
    let rows = rows(args, [&cables, &marking])?;
    let bench = Bench {
        time,
        warm_up,
        memory: [
            Dmabuf::anonymous(RING_BYTES)?,
            Dmabuf::anonymous(RING_BYTES)?,
        ],
        cpus: first_two(&cpu::allowed_cpus())?,
    };
    let mut report = FairnessReport::new(time, &rows);
    let measure = |number: u64, row: &Row| {
        let first = match number % 2 {
            1 => First::Ours,
            _ => First::Kernel,
        };
        bench.run_once(row, first)
    };
    let progress = repetitions.run(&rows, measure, |row, sample| report.add(row, sample))?;
    args.form.print(progress, &report, &report.chart())
}

fn duration(option: &str, seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| (Duration::from_millis(100)..=Duration::from_secs(600)).contains(time))
        .ok_or_else(|| Failure::usage(format_args!("{option} {seconds}: 0.1 to 600")))
}

/// Returns the rows; those whose congestion control this kernel lacks are left out with a note, unless it was asked for.
fn rows(args: &FairnessArgs, [usual, marking]: [&[String]; 2]) -> Result<Vec<Row>, Failure> {
    let asked = args.congestion.as_slice();
    let pairs = match args.pairs.as_slice() {
        [] => PAIRS,
        asked => asked,
    };
    let mut rows = Vec::new();
    let congestions = match asked {
        [] => CONGESTIONS,
        asked => asked,
    };
    for &congestion in congestions {
        let name = congestion.kernel_name();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
            .context("open a socket")?;
        match cpu::set_congestion_control(&socket, name) {
            Ok(()) => {}
            Err(errno) if asked.is_empty() => {
                note(format_args!("SKIP {name}: the kernel has none: {errno}"));
                continue;
            }
            Err(errno) => {
                return Err(Failure::unsupported(format_args!(
                    "congestion control {name} of the kernel: {errno}"
                )));
            }
        }
        let cables = match congestion {
            Congestion::Dctcp => marking,
            _ => usual,
        };
        for impair in cables {
            rows.extend(pairs.iter().map(|&pair| Row {
                congestion,
                pair,
                impair: impair.clone(),
            }));
        }
    }
    Ok(rows)
}

/// The veth pair of one run: both senders are at one end, the cable is at the other. A new one for each run, so that the kernel does not
/// send to the receiver of the last.
struct SharedVeth(Option<Interface>);

impl SharedVeth {
    fn new(pair: Pair) -> Result<Self> {
        let (near, mut far) = Interface::create_veth_pair(VETH, FAR_VETH)?;
        let mut veth = Self(Some(near));
        let near = veth.0.as_mut().context("it was just made")?;
        for address in pair.kernel_addresses() {
            near.add_address(IpAddr::V4(address), PREFIX)?;
        }
        for end in [near, &mut far] {
            end.quiet_ipv6();
            end.set_mtu(MTU.into())?;
            end.set_up()?;
        }
        Ok(veth)
    }
}

impl Drop for SharedVeth {
    fn drop(&mut self) {
        if let Some(near) = self.0.take() {
            // At worst it ends with the namespace.
            let _ = near.delete();
        }
    }
}

/// State shared by all runs.
struct Bench {
    time: Duration,
    /// One sender begins a quarter of it earlier than the other.
    warm_up: Duration,
    /// Of each of our senders.
    memory: [Dmabuf; 2],
    /// The processor of the senders and the receiver, and that of the cable, which must not wait for one. The kernel's TCP runs there,
    /// too, as part of the cable's calls.
    cpus: (usize, usize),
}

impl Bench {
    fn run_once(&self, row: &Row, first: First) -> Result<Sample> {
        let receiving = Receiving::Two {
            warm_up: self.warm_up,
            time: self.time,
            congestion: row.congestion.kernel_name(),
        };
        let mut receiver = ReceiverProcess::start(receiving, self.cpus.0, Home::OfItsOwn)?;
        let _veth = SharedVeth::new(row.pair)?;
        let near = NearEnd::Both(FAR_VETH);
        let _cable = Cable::new(near, &receiver, &row.impair, MTU, self.cpus.1)?;
        let sample = self.send_both(row, first, &mut receiver);
        sample.with_context(|| format!("{:?} through {}", row.congestion, row.impair))
    }

    fn send_both(&self, row: &Row, first: First, receiver: &mut ReceiverProcess) -> Result<Sample> {
        let before = SenderCounters::of_the_kernel()?;
        let is_over = AtomicBool::new(false);
        let means = self.memory.each_ref().map(|memory| Means {
            congestion: row.congestion,
            memory,
            cpu: self.cpus.0,
            is_over: &is_over,
        });
        let mut ready = Vec::with_capacity(2);
        for ((whose, address), means) in row.pair.whose().into_iter().zip(ADDRESSES).zip(means) {
            ready.push((Ready::new(whose, address, self.time, means)?, means));
        }
        if first == First::Ours {
            ready.reverse();
        }
        thread::scope(|scope| {
            let mut running = Vec::with_capacity(2);
            for (sender, means) in ready {
                if !running.is_empty() {
                    thread::sleep(self.warm_up / 4);
                }
                running.push(sender.begin(scope, means));
            }
            let received = receiver.received_two();
            let kernel = SenderCounters::of_the_kernel()?.since(before);
            is_over.store(true, Ordering::Relaxed);
            let ended = running.into_iter().map(|it| it.and_then(Running::end));
            let ours: Result<Vec<SenderCounters>> = ended.collect();
            // An error of the sender takes precedence: that of the receiver is only a consequence.
            match received {
                Ok(received) => Ok(Sample::new(
                    first,
                    &received,
                    kernel,
                    ours?.into_iter().sum(),
                )),
                Err(error) => Err(ours.err().unwrap_or(error)),
            }
        })
    }
}
