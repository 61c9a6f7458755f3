//! `bench tx`: this sender and the kernel's own, each to a kernel receiver.

mod cases;
mod ours;

use std::thread;

use anyhow::{Result, anyhow};
use clap::Args;

use super::accounting::Accounting;
use super::cases::Cores;
use super::network::Veth;
use super::plan::{MeasureArgs, Plan};
use super::receiver::{ReceiverProcess, Receiving};
use super::report::{self, End, Subject};
use super::runner::{self, Bench};
use super::sample::Sample;
use super::sender::{Home, Mode, SenderProcess, Sending, Sent};
use crate::output::Failure;
use cases::{CASES, Case, Sender};

/// The comparisons that matter: ours with the faster of the kernel's two ways.
const SUBJECT: Subject = Subject {
    end: End::Sender,
    ratios: &[
        ("ours", &["send", "zerocopy"]),
        ("ours/1core", &["send/1core", "zerocopy/1core"]),
        ("ours/64k", &["send/64k", "zerocopy/64k"]),
    ],
};

/// Send to a stock kernel receiver: from device memory, and with the kernel's own send and MSG_ZEROCOPY
///
/// Every repetition runs all rows one after another, for as long as --seconds says. Every sender sends the whole of its
/// memory again and again, so that it is not in the cache. A row's figures are the median over the repetitions, with the
/// least and the most; runs that the rest of the machine disturbed are repeated, up to three tries. Processor time is in
/// seconds per 10^9 bytes of payload: that of the sender's process, in which the kernel also does most of the receiving
/// TCP's work, and the total with the receiver's process and the kernel's softirq threads. Needs what `devmem-tcp demo`
/// needs for a TAP.
#[derive(Debug, Args)]
pub struct TxArgs {
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// There is no network to be had, or a row has no figures at the end.
pub fn run(args: &TxArgs) -> Result<(), Failure> {
    let plan = Plan::new(&args.measure, CASES)?;
    if plan.list {
        report::list(&plan.cases);
        return Ok(());
    }
    runner::run(&plan, SUBJECT, run_once)
}

fn run_once(bench: &Bench<'_, Case>, case: &Case) -> Result<Sample> {
    let sender_cpu = match case.cores {
        Cores::Two => bench.sender_cpu,
        Cores::One => bench.receiver_cpu,
    };
    let receiver = ReceiverProcess::start(Receiving::ToTheEnd, bench.receiver_cpu, Home::Shared)?;
    let before = Accounting::now(&bench.softirq_threads);
    let sent = if case.sender.is_kernel() {
        send_by_kernel(bench, case, sender_cpu)?
    } else {
        // A thread of its own, so that the pinning ends with the run.
        let sender = || ours::send(bench, case.write_bytes, sender_cpu);
        thread::scope(|scope| scope.spawn(sender).join())
            .map_err(|_| anyhow!("the sender panicked"))??
    };
    let received = receiver.finish()?;
    let machine = Accounting::now(&bench.softirq_threads).since(before);
    Sample::new(received, sent, machine)
}

fn send_by_kernel(bench: &Bench<'_, Case>, case: &Case, cpu: usize) -> Result<Sent> {
    let sending = Sending {
        congestion: Case::CONGESTION,
        write_bytes: case.write_bytes,
        source_bytes: bench.memory.size(),
        mode: match case.sender {
            Sender::KernelZerocopy => Mode::Zerocopy,
            Sender::Kernel | Sender::Ours => Mode::Copy,
        },
    };
    let mut sender = SenderProcess::start(sending, bench.plan.time, cpu, Home::OfItsOwn)?;
    let _veth = Veth::new(&sender.namespace()?, bench.plan.mtu)?;
    sender.starter()?.go()?;
    sender.finish()
}
