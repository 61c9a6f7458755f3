//! `bench fairness`: this sender and the kernel's at the same time, with the same congestion control, through the same bottleneck.

mod report;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use devmem_linux::netif::Interface;
use devmem_linux::{cpu, netns};
use devmem_tcp::{Dmabuf, Netdev};
use rustix::net::{AddressFamily, SocketType};
use serde::Serialize;
use tool::output::{Failure, note};

use crate::form::FormArgs;
use crate::lossy::{
    Cable, Congestion, NearEnd, OurSender, RING_BYTES, SenderCounters, impairments,
};
use crate::network::{FAR_VETH, VETH, require_tap};
use crate::processors::first_two;
use crate::receiver::{ReceiverProcess, Receiving};
use crate::repetitions::Repetitions;
use crate::sender::{Home, PREFIX, SENDER, SenderProcess};
use report::{FairnessReport, Sample};

/// The default bottlenecks: 170 frames are on their way, and a queue of 50, then of 670. The round trip is 20 ms.
const CABLES: &[&str] = &[
    "rate=200mbit,delay=10ms,limit=220",
    "rate=200mbit,delay=10ms,limit=840",
];

/// The default congestion controls. Not DCTCP, which needs a bottleneck that marks when its queue grows.
const CONGESTIONS: &[Congestion] = &[Congestion::Cubic, Congestion::Reno, Congestion::Bbr];

/// Address of our sender; the kernel's is [`SENDER`].
const OUR_SENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const MTU: u16 = 1500;
/// How much earlier one sender begins than the other.
const HEAD_START: Duration = Duration::from_secs(1);
/// Time for both to find their windows.
const WARM_UP: Duration = Duration::from_secs(4);

/// Send beside the kernel through one bottleneck: how this sender and the kernel's share it
///
/// For each congestion control and each cable, both send at the same time through `devmem-tcp wire` to a kernel receiver: the kernel's
/// TCP through a veth interface, this one through a packet socket on it. In odd repetitions this one begins, one second before the
/// other. The receiver checks every byte, and counts those of --seconds from four seconds after both have begun. Runs in a new network
/// namespace and has the same requirements as `devmem-tcp wire`.
#[derive(Debug, Args)]
pub struct FairnessArgs {
    /// Repetitions of all rows; an even number, so that each sender begins as often as the other
    #[arg(long, value_name = "N", default_value_t = 2)]
    reps: u64,
    /// Duration of each measurement, at the receiver
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Congestion controls [default: cubic,reno,bbr]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,...")]
    congestion: Vec<Congestion>,
    /// The bottleneck, as an impairment of `devmem-tcp wire`; may be repeated [default: a short and a long queue]
    #[arg(long, value_name = "LIST")]
    impair: Vec<String>,
    #[command(flatten)]
    form: FormArgs,
}

/// The sender that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum First {
    Ours,
    Kernel,
}

/// A congestion control and a bottleneck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub congestion: Congestion,
    pub impair: String,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a run failed, for example with a wrong byte.
pub fn run(args: &FairnessArgs) -> Result<(), Failure> {
    let time = Duration::try_from_secs_f64(args.seconds)
        .ok()
        .filter(|time| (Duration::from_millis(100)..=Duration::from_secs(600)).contains(time))
        .ok_or_else(|| Failure::usage(format_args!("--seconds {}: 0.1 to 600", args.seconds)))?;
    let cables = impairments(&args.impair, CABLES)?;
    let repetitions = Repetitions::new("repetition", "--reps", args.reps)?;
    require_tap()?;
    // Before any thread is started, because an unprivileged caller also enters a user namespace.
    netns::enter_new()?;
    let rows = rows(&args.congestion, &cables)?;
    let bench = Bench {
        time,
        memory: Dmabuf::anonymous(RING_BYTES)?,
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

/// Returns the rows; those whose congestion control this kernel lacks are left out with a note, unless it was asked for.
fn rows(asked: &[Congestion], cables: &[String]) -> Result<Vec<Row>, Failure> {
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
        rows.extend(cables.iter().map(|impair| Row {
            congestion,
            impair: impair.clone(),
        }));
    }
    Ok(rows)
}

/// The veth pair of one run: both senders are at one end, the cable is at the other. A new one for each run, so that the kernel does not
/// send to the receiver of the last.
struct SharedVeth(Option<Interface>);

impl SharedVeth {
    fn new() -> Result<Self> {
        let (near, mut far) = Interface::create_veth_pair(VETH, FAR_VETH)?;
        let mut veth = Self(Some(near));
        let near = veth.0.as_mut().context("it was just made")?;
        near.add_address(IpAddr::V4(SENDER), PREFIX)?;
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
    memory: Dmabuf,
    /// The processor of our sender and the receiver, and that of the cable. The kernel's sender runs on that of the cable, which hands it
    /// the ACKs; a thread there would have to wait until the cable sleeps.
    cpus: (usize, usize),
}

impl Bench {
    fn run_once(&self, row: &Row, first: First) -> Result<Sample> {
        let receiving = Receiving::Two {
            warm_up: WARM_UP,
            time: self.time,
        };
        let mut receiver = ReceiverProcess::start(receiving, self.cpus.0, Home::OfItsOwn)?;
        let _veth = SharedVeth::new()?;
        let near = NearEnd::Both(FAR_VETH);
        let _cable = Cable::new(near, &receiver, &row.impair, MTU, self.cpus.1)?;
        let sample = self.send_both(row.congestion, first, &mut receiver);
        sample.with_context(|| format!("{:?} through {}", row.congestion, row.impair))
    }

    fn send_both(
        &self,
        congestion: Congestion,
        first: First,
        receiver: &mut ReceiverProcess,
    ) -> Result<Sample> {
        let before = SenderCounters::of_the_kernel()?;
        let sending = congestion.of_the_kernel();
        let mut kernel = SenderProcess::start(sending, self.time, self.cpus.1, Home::Shared)?;
        let starter = kernel.starter()?;
        let ours = OurSender {
            congestion,
            memory: &self.memory,
            cpu: self.cpus.0,
        };
        let nic = Netdev::builder(format!("packet:{VETH}"))?
            .address(&format!("{OUR_SENDER}/{PREFIX}"))?
            .mtu(MTU);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let run_ours = || ours.send_until(&is_over, nic);
            let started = match first {
                First::Ours => {
                    let ours = scope.spawn(run_ours);
                    thread::sleep(HEAD_START);
                    starter.go().map(|()| ours)
                }
                First::Kernel => starter.go().map(|()| {
                    thread::sleep(HEAD_START);
                    scope.spawn(run_ours)
                }),
            };
            let received = receiver.received_two();
            let kernel = SenderCounters::of_the_kernel()?.since(before);
            is_over.store(true, Ordering::Relaxed);
            let sent = started.context("start the kernel's sender")?.join();
            let sent = sent.map_err(|_| anyhow!("our sender panicked"))?;
            // An error of the sender takes precedence: that of the receiver is only a consequence.
            match received {
                Ok(received) => Ok(Sample::new(first, &received, kernel, sent?)),
                Err(error) => Err(sent.err().unwrap_or(error)),
            }
        })
    }
}
