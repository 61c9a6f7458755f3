//! `bench rx`: this receiver, the kernel's own, the bare ceiling, and others.

use std::thread;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use devmem_linux::cpu;

use super::accounting::Accounting;
use super::cases::{CASES, Case, Cores, Receiver};
use super::meter::Received;
use super::network::Veth;
use super::plan::{MeasureArgs, Plan};
use super::report::{self, End, Subject};
use super::runner::{self, Bench};
use super::sample::Sample;
use super::sender::{Home, SenderProcess, Starter};
use super::{bare, kernel_rx, ours};
use tool::output::Failure;

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
/// Receive from a stock kernel sender: this receiver next to the kernel's own, the bare ceiling, and others
///
/// Every repetition runs all rows one after another, for as long as --seconds says. A row's figures are the median
/// over the repetitions, with the least and the most. Runs that the rest of the machine disturbed are repeated, up
/// to three tries. Processor time is in seconds per 10^9 bytes of payload: that of the receiver's process, and the
/// total with the sender's process and the kernel's softirq threads. Needs what `devmem-tcp demo` needs for a TAP.
#[derive(Debug, Args)]
pub struct RxArgs {
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// There is no network to be had, or a row has no figures at the end.
pub fn run(args: &RxArgs) -> Result<(), Failure> {
    let plan = Plan::new(&args.measure, CASES)?;
    if plan.list {
        report::list(&plan.cases);
        return Ok(());
    }
    runner::run(&plan, SUBJECT, run_once)
}

fn run_once(bench: &Bench<Case>, case: &Case) -> Result<Sample> {
    let sender_cpu = match case.cores {
        Cores::Two => bench.sender_cpu,
        Cores::One => bench.receiver_cpu,
    };
    let home = if case.receiver.is_kernel() {
        Home::OfItsOwn
    } else {
        Home::Shared
    };
    let mut sender = SenderProcess::start(case.sending(), bench.plan.time, sender_cpu, home)?;
    let _veth = match home {
        Home::OfItsOwn => Some(Veth::new(&sender.namespace()?, bench.plan.mtu, None)?),
        Home::Shared => None,
    };
    let starter = sender.starter()?;
    let before = Accounting::now(&bench.softirq_threads);
    // A thread of its own, so that the pinning ends with the run.
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            cpu::pin_current_thread(bench.receiver_cpu).context("pin the receiver")?;
            receive(bench, case, starter)
        });
        receiver
            .join()
            .map_err(|_| anyhow!("the receiver panicked"))
    })?;
    let machine = Accounting::now(&bench.softirq_threads).since(before);
    // The receiver's reason comes first: the sender only notices that nobody is there.
    let received = received?;
    Sample::new(received, sender.finish()?, machine)
}

fn receive(bench: &Bench<Case>, case: &Case, starter: Starter) -> Result<Received> {
    let memory = &bench.memory;
    match case.receiver {
        Receiver::KernelCopy => kernel_rx::copy(memory, starter),
        Receiver::KernelDirect => kernel_rx::direct(memory, starter),
        Receiver::Bare(placement) => bare::receive(memory, placement, bench.plan.mtu, starter),
        Receiver::Ours(niov) => ours::receive(memory, niov, bench.plan.mtu, starter),
        #[cfg(feature = "bench-smoltcp")]
        Receiver::Smoltcp => super::smoltcp::receive(memory, bench.plan.mtu, starter),
    }
}
