//! `bench rx`: all cases, one after another, again and again.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use devmem_linux::{cpu, netns};
use netmem::Dmabuf;
use serde::Serialize;

use super::accounting::{Accounting, softirq_threads};
use super::cases::{Case, Cores, Receiver};
use super::meter::Received;
use super::network::Veth;
use super::plan::RxPlan;
use super::report::{Report, Settings};
use super::sender::{Home, SenderProcess, Sent, Starter};
use super::{bare, kernel_rx, ours};
use crate::output::{Failure, note, print_json};

/// Fewer repetitions say nothing about the range.
const REPS_ADVISED: usize = 5;
/// Tries of one run while something else keeps the machine busy.
const TRIES: usize = 3;
/// Share of one processor that the rest of the machine may take before a run counts as disturbed.
const OTHERS_MAX: f64 = 0.15;

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
///
/// # Errors
///
/// There is no network to be had, or a row has no figures at the end.
pub fn run(plan: &RxPlan) -> Result<(), Failure> {
    if plan.repetitions < REPS_ADVISED {
        let repetitions = plan.repetitions;
        note(format_args!(
            "{repetitions} repetitions say little about the spread, take {REPS_ADVISED} at least"
        ));
    }
    let bench = Bench::new(plan)?;
    let mut report = Report::new(bench.settings(), &plan.cases);
    for repetition in 1..=plan.repetitions {
        for (row, case) in plan.cases.iter().enumerate() {
            match bench.sample(case) {
                Ok(sample) => report.add(row, sample),
                // One congestion control or one machine's quirk must not cost the other rows.
                Err(error) => report.fail(row, format!("{error:#}")),
            }
        }
        note(format_args!(
            "repetition {repetition} of {} done",
            plan.repetitions
        ));
    }
    eprint!("{report}");
    if plan.json {
        print_json(&report.json())?;
    }
    match report.rows_without_samples() {
        0 => Ok(()),
        failed => Err(anyhow!("{failed} rows have no figures").into()),
    }
}

/// What all runs share.
struct Bench<'a> {
    plan: &'a RxPlan,
    memory: Dmabuf,
    receiver_cpu: usize,
    sender_cpu: usize,
    softirq_threads: Vec<u32>,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a RxPlan) -> Result<Self, Failure> {
        // Before any thread: an unprivileged caller gets a user namespace with it.
        netns::enter_new()?;
        let (receiver_cpu, sender_cpu) = match plan.cpus {
            Some(chosen) => chosen,
            None => first_two(&cpu::allowed_cpus())?,
        };
        Ok(Self {
            plan,
            memory: Dmabuf::anonymous(plan.mem_bytes)?,
            receiver_cpu,
            sender_cpu,
            softirq_threads: softirq_threads(),
        })
    }

    fn settings(&self) -> Settings {
        Settings {
            seconds: self.plan.time.as_secs_f64(),
            repetitions: self.plan.repetitions,
            mtu: self.plan.mtu,
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
        let mut sender = SenderProcess::start(case, self.plan.time, sender_cpu, home)?;
        let _veth = match home {
            Home::OfItsOwn => Some(Veth::new(&sender.namespace()?, self.plan.mtu)?),
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
            Receiver::Bare(placement) => bare::receive(memory, placement, self.plan.mtu, starter),
            Receiver::Ours(niov) => ours::receive(memory, niov, self.plan.mtu, starter),
            #[cfg(feature = "bench-smoltcp")]
            Receiver::Smoltcp => super::smoltcp::receive(memory, self.plan.mtu, starter),
        }
    }
}

/// Returns the processors of receiver and sender: one for both where there is only one.
fn first_two(allowed: &[usize]) -> Result<(usize, usize)> {
    let receiver = *allowed
        .first()
        .context("no processor is allowed to this process")?;
    Ok((receiver, allowed.get(1).copied().unwrap_or(receiver)))
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
    fn one_processor_serves_both_ends_if_there_is_no_other() {
        assert_eq!(first_two(&[3]).unwrap(), (3, 3));
        assert_eq!(first_two(&[3, 5, 7]).unwrap(), (3, 5));
        assert!(first_two(&[]).is_err());
    }
}
