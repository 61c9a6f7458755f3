//! `bench lossy`: this sender and the kernel's, with the same congestion control, over the same impaired cable.

mod cable;
mod congestion;
mod our_sender;
mod report;
mod sender_counters;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use devmem_linux::{cpu, netns};
use devmem_tcp::Dmabuf;
use nic::Impairment;

use crate::form::FormArgs;
use crate::network::require_tap;
use crate::processors::first_two;
use crate::receiver::{ReceiverProcess, Receiving};
use crate::repetitions::Repetitions;
use crate::sender::{Home, SenderProcess};
pub use cable::{Cable, CableArgs, NearEnd, run as run_cable};
pub use congestion::Congestion;
pub use our_sender::{OurSender, RING_BYTES};
pub use report::Rates;
use report::{LossyReport, Sample};
pub use sender_counters::SenderCounters;
use tool::output::Failure;

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
    let cables = impairments(&args.impair, CABLES)?;
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
        let (kernel_bytes, kernel) = bench.run_once(NearEnd::Kernel, &impairment, |_, to| {
            bench.send_by_kernel(to)
        })?;
        seeds.check()?;
        let (our_bytes, ours) = bench.run_once(NearEnd::Ours, &impairment, |cable, to| {
            bench.send_by_us(cable, to)
        })?;
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

/// Returns the cables that are asked for, validated, or `usual` ones.
pub fn impairments(asked: &[String], usual: &[&str]) -> Result<Vec<String>, Failure> {
    let cables: Vec<String> = match asked {
        [] => usual.iter().map(|&cable| cable.to_owned()).collect(),
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
    fn run_once(
        &self,
        near: NearEnd,
        impairment: &str,
        send: impl FnOnce(&Cable, &mut ReceiverProcess) -> Result<(u64, SenderCounters)>,
    ) -> Result<(u64, SenderCounters)> {
        let receiving = Receiving::Verified(self.time);
        let mut receiver = ReceiverProcess::start(receiving, self.cpus.0, Home::OfItsOwn)?;
        let cable = Cable::new(near, &receiver, impairment, self.mtu, self.cpus.1)?;
        let sent = send(&cable, &mut receiver);
        sent.with_context(|| format!("{near:?} through {impairment}"))
    }

    fn send_by_kernel(&self, receiver: &mut ReceiverProcess) -> Result<(u64, SenderCounters)> {
        let before = SenderCounters::of_the_kernel()?;
        let sending = self.congestion.of_the_kernel();
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
        let ours = OurSender {
            congestion: self.congestion,
            memory: &self.memory,
            cpu: self.cpus.1,
        };
        let nic = cable.our_nic(self.mtu)?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| ours.send_until(&is_over, nic));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_default_cables_are_valid_and_an_invalid_one_is_named() {
        assert_eq!(impairments(&[], CABLES).unwrap().len(), CABLES.len());
        let asked = ["loss=2%".to_owned()];
        assert_eq!(impairments(&asked, CABLES).unwrap(), ["loss=2%"]);
        let error = impairments(&["loss=200%".to_owned()], CABLES)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--impair loss=200%"), "{error}");
    }
}
