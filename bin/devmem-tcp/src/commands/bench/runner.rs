//! `bench rx`: all cases, one after another, again and again.

use std::thread;

use anyhow::{Context, Result, anyhow};
use devmem_linux::{cpu, netns};
use netmem::Dmabuf;

use super::accounting::{Accounting, softirq_threads};
use super::cases::{Case, Cores, Receiver};
use super::meter::Received;
use super::network::Veth;
use super::plan::RxPlan;
use super::report::{End, Report, Settings, Subject};
use super::sample::{Sample, quietest};
use super::sender::{Home, SenderProcess, Starter};
use super::{bare, kernel_rx, ours};
use crate::output::{Failure, note, print_json};

/// Fewer repetitions say nothing about the range.
const REPS_ADVISED: usize = 5;
/// The comparisons that matter: ours with the bare ceiling and with the kernel's ways.
const SUBJECT: Subject = Subject {
    end: End::Receiver,
    ratios: &[
        ("ours", &["B"]),
        ("ours", &["A"]),
        ("ours", &["A0d"]),
        ("ours", &["smoltcp"]),
        ("ours/1core", &["B/1core"]),
        ("ours/1core", &["A/1core"]),
        ("ours/1core", &["A0d/1core"]),
        ("ours/bbr", &["A/bbr"]),
        ("ours/64k", &["A/64k"]),
    ],
};
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
    let mut report = Report::new(
        bench.settings(),
        SUBJECT,
        plan.cases.iter().map(Case::row_name),
    );
    for repetition in 1..=plan.repetitions {
        for (row, case) in plan.cases.iter().enumerate() {
            match quietest(|| bench.run_once(case)) {
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
        let mut sender = SenderProcess::start(case.sending(), self.plan.time, sender_cpu, home)?;
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
pub fn first_two(allowed: &[usize]) -> Result<(usize, usize)> {
    let receiver = *allowed
        .first()
        .context("no processor is allowed to this process")?;
    Ok((receiver, allowed.get(1).copied().unwrap_or(receiver)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_processor_serves_both_ends_if_there_is_no_other() {
        assert_eq!(first_two(&[3]).unwrap(), (3, 3));
        assert_eq!(first_two(&[3, 5, 7]).unwrap(), (3, 5));
        assert!(first_two(&[]).is_err());
    }
}
