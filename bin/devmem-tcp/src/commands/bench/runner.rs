//! `bench rx`: all cases, one after another, again and again.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use devmem_linux::{cpu, netns};
use netmem::{Dmabuf, NiovSize};
use serde::Serialize;

use super::accounting::{Accounting, softirq_threads};
use super::cases::{CASES, Case, Cores, Receiver};
use super::meter::Received;
use super::network::Veth;
use super::report::{Report, Settings};
use super::sender::{Home, SenderProcess, Sent, Starter};
use super::{bare, kernel_rx, ours};

/// Fewer repetitions say nothing about the range.
const REPS_ADVISED: usize = 5;
/// Tries of one run while something else keeps the machine busy.
const TRIES: usize = 3;
/// Share of one processor that the rest of the machine may take before a run counts as disturbed.
const OTHERS_MAX: f64 = 0.15;

/// Receive from a stock kernel sender: this receiver next to the kernel's own, the bare ceiling, and others
///
/// Every repetition runs all rows one after another, for as long as --seconds says. A row's figures are the median
/// over the repetitions, with the least and the most. Runs that the rest of the machine disturbed are repeated, up
/// to three tries. Processor time is in seconds per 10^9 bytes of payload: that of the receiver's process, and the
/// total with the sender's process and the kernel's softirq threads. Needs what `devmem-tcp demo` needs for a TAP.
#[derive(Debug, Args)]
pub struct RxArgs {
    /// Repetitions of all rows; 5 at least to tell the spread
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    /// Time the sender sends in each run
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Device memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    mem_mib: usize,
    /// Processors of receiver and sender [default: the first two]
    #[arg(long, value_name = "R,S", value_delimiter = ',', num_args = 2)]
    cpus: Vec<usize>,
    /// Only these rows
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// List the rows and end
    #[arg(long)]
    list: bool,
    /// Print one JSON object to stdout at the end
    #[arg(long)]
    json: bool,
}

/// What one run came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Payload bytes received.
    pub bytes: u64,
    /// From the first of them to the end of the stream.
    pub seconds: f64,
    /// Payload bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// Processor seconds of the receiver per 10^9 bytes.
    pub receiver_cpu_s_per_gb: f64,
    /// The same with the sender and the kernel's softirq threads.
    pub total_cpu_s_per_gb: f64,
    /// Processors that the rest of the machine kept busy meanwhile.
    pub other_cpus_busy: f64,
}

impl Sample {
    fn new(received: Received, sent: Sent, machine: Accounting) -> Result<Self> {
        let Received {
            bytes,
            elapsed,
            cpu,
        } = received;
        if bytes != sent.bytes {
            bail!("{} bytes were sent and {bytes} received", sent.bytes);
        }
        let gigabytes = bytes as f64 / 1e9;
        if gigabytes == 0.0 || elapsed.is_zero() {
            bail!("nothing was received");
        }
        let total = cpu + Duration::from_nanos(sent.cpu_ns) + machine.softirq_threads;
        let others = machine.busy.saturating_sub(total);
        let seconds = elapsed.as_secs_f64();
        Ok(Self {
            bytes,
            seconds,
            gbit_per_s: gigabytes * 8.0 / seconds,
            receiver_cpu_s_per_gb: cpu.as_secs_f64() / gigabytes,
            total_cpu_s_per_gb: total.as_secs_f64() / gigabytes,
            other_cpus_busy: others.as_secs_f64() / seconds,
        })
    }

    /// Tells whether the rest of the machine had more than a little to do.
    pub fn is_disturbed(&self) -> bool {
        self.other_cpus_busy > OTHERS_MAX
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &RxArgs) -> Result<()> {
    let cases = chosen(&args.only)?;
    if args.list {
        for case in cases {
            let variant = case.variant();
            let separator = if variant.is_empty() { "" } else { ", " };
            eprintln!("{:<12} {}{separator}{variant}", case.name, case.what);
        }
        return Ok(());
    }
    if args.reps < REPS_ADVISED {
        eprintln!(
            "note: {} repetitions say little about the spread, take {REPS_ADVISED} at least",
            args.reps
        );
    }
    let bench = Bench::new(args)?;
    let mut report = Report::new(bench.settings(args), &cases);
    for repetition in 1..=args.reps.max(1) {
        for (row, case) in cases.iter().enumerate() {
            match bench.sample(case) {
                Ok(sample) => report.add(row, sample),
                // One congestion control or one machine's quirk must not cost the other rows.
                Err(error) => report.fail(row, format!("{error:#}")),
            }
        }
        eprintln!("repetition {repetition} of {} done", args.reps);
    }
    eprint!("{report}");
    if args.json {
        println!("{}", report.json()?);
    }
    match report.rows_without_samples() {
        0 => Ok(()),
        failed => bail!("{failed} rows have no figures"),
    }
}

fn chosen(only: &[String]) -> Result<Vec<Case>> {
    if let Some(unknown) = only
        .iter()
        .find(|name| !CASES.iter().any(|case| case.name == name.as_str()))
    {
        bail!("there is no row {unknown}; --list shows them");
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|name| name == case.name);
    Ok(CASES.iter().filter(wanted).copied().collect())
}

/// What all runs share.
struct Bench {
    memory: Dmabuf,
    time: Duration,
    mtu: u16,
    receiver_cpu: usize,
    sender_cpu: usize,
    softirq_threads: Vec<u32>,
}

impl Bench {
    fn new(args: &RxArgs) -> Result<Self> {
        // Before any thread: an unprivileged caller gets a user namespace with it.
        netns::enter_new()?;
        let cpus = match args.cpus.as_slice() {
            [] => cpu::allowed_cpus(),
            chosen => chosen.to_vec(),
        };
        let receiver_cpu = *cpus
            .first()
            .context("no processor is allowed to this process")?;
        let bytes = args.mem_mib << 20;
        if bytes == 0 || !bytes.is_multiple_of(NiovSize::MAX.bytes()) {
            bail!("--mem-mib {}: take an even number", args.mem_mib);
        }
        Ok(Self {
            memory: Dmabuf::anonymous(bytes)?,
            time: Duration::try_from_secs_f64(args.seconds)
                .map_err(|error| anyhow!("--seconds: {error}"))?,
            mtu: args.mtu,
            receiver_cpu,
            sender_cpu: cpus.get(1).copied().unwrap_or(receiver_cpu),
            softirq_threads: softirq_threads(),
        })
    }

    fn settings(&self, args: &RxArgs) -> Settings {
        Settings {
            seconds: self.time.as_secs_f64(),
            repetitions: args.reps,
            mtu: self.mtu,
            mem_bytes: self.memory.size(),
            page_kind: self.memory.page_kind().to_string(),
            receiver_cpu: self.receiver_cpu,
            sender_cpu: self.sender_cpu,
        }
    }

    /// Runs a case until a run was not disturbed, a few times at most. Returns the quietest.
    fn sample(&self, case: &Case) -> Result<Sample> {
        let mut best: Option<Sample> = None;
        for _ in 0..TRIES {
            let sample = self.run_once(case)?;
            if best.is_none_or(|best| sample.other_cpus_busy < best.other_cpus_busy) {
                best = Some(sample);
            }
            if !sample.is_disturbed() {
                break;
            }
        }
        best.context("at least one try was made")
    }

    fn run_once(&self, case: &Case) -> Result<Sample> {
        let sender_cpu = match case.cores {
            Cores::Two => self.sender_cpu,
            Cores::One => self.receiver_cpu,
        };
        let home = if case.receiver.is_kernel() {
            Home::OfItsOwn
        } else {
            Home::Shared
        };
        let mut sender = SenderProcess::start(case, self.time, sender_cpu, home)?;
        let _veth = match home {
            Home::OfItsOwn => Some(Veth::new(&sender.namespace()?, self.mtu)?),
            Home::Shared => None,
        };
        let starter = sender.starter()?;
        let before = Accounting::now(&self.softirq_threads);
        // A thread of its own, so that the pinning ends with the run.
        let received = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                cpu::pin_current_thread(self.receiver_cpu).context("pin the receiver")?;
                self.receive(case, starter)
            });
            receiver
                .join()
                .map_err(|_| anyhow!("the receiver panicked"))
        })?;
        let machine = Accounting::now(&self.softirq_threads).since(before);
        // The receiver's reason comes first: the sender only notices that nobody is there.
        let received = received?;
        Sample::new(received, sender.finish()?, machine)
    }

    fn receive(&self, case: &Case, starter: Starter) -> Result<Received> {
        let memory = &self.memory;
        match case.receiver {
            Receiver::KernelCopy => kernel_rx::copy(memory, starter),
            Receiver::KernelDirect => kernel_rx::direct(memory, starter),
            Receiver::Bare(placement) => bare::receive(memory, placement, self.mtu, starter),
            Receiver::Ours(niov) => ours::receive(memory, niov, self.mtu, starter),
            #[cfg(feature = "bench-smoltcp")]
            Receiver::Smoltcp => super::smoltcp::receive(memory, self.mtu, starter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: u64) -> Received {
        Received {
            bytes,
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_sample_adds_up_the_processor_time_of_all() {
        let sent = Sent {
            bytes: 10_000_000_000,
            cpu_ns: 1_500_000_000,
        };
        let machine = Accounting {
            softirq_threads: Duration::from_millis(500),
            busy: Duration::from_millis(3100),
        };
        let sample = Sample::new(received(10_000_000_000), sent, machine).unwrap();
        assert_eq!(
            (sample.gbit_per_s, sample.receiver_cpu_s_per_gb),
            (40.0, 0.1)
        );
        assert_eq!(
            (sample.total_cpu_s_per_gb, sample.is_disturbed()),
            (0.3, false)
        );
        let machine = Accounting {
            busy: Duration::from_millis(3400),
            ..machine
        };
        assert!(
            Sample::new(received(10_000_000_000), sent, machine)
                .unwrap()
                .is_disturbed()
        );
    }

    #[test]
    fn a_run_that_lost_bytes_is_no_sample() {
        let sent = Sent {
            bytes: 1000,
            cpu_ns: 1,
        };
        let error = Sample::new(received(999), sent, Accounting::default()).unwrap_err();
        assert_eq!(error.to_string(), "1000 bytes were sent and 999 received");
        let nothing = Sent {
            bytes: 0,
            cpu_ns: 1,
        };
        assert!(Sample::new(received(0), nothing, Accounting::default()).is_err());
    }

    #[test]
    fn an_unknown_row_is_refused() {
        assert!(chosen(&["nosuch".to_owned()]).is_err());
        assert_eq!(chosen(&["B".to_owned()]).unwrap().len(), 1);
        assert_eq!(chosen(&[]).unwrap().len(), CASES.len());
    }
}
