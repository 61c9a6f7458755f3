//! `bench rx`: this receiver compared with the kernel's, with bare `readv`, and with others.

pub mod bare;
pub mod cases;
mod kernel;
mod many;
mod ours;
#[cfg(feature = "bench-smoltcp")]
mod smoltcp;

use anyhow::Result;
use clap::Args;
use netmem::NiovSize;
use nic::BIG_PACKET_LEN;

use crate::accounting::Accounting;
use crate::meter::MeterReading;
use crate::network::{NearEnd, Veth, steer_receiving};
use crate::plan::MeasureArgs;
use crate::processors::pinned;
use crate::report::{End, Subject};
use crate::row::Packets;
use crate::runner::{self, Bench};
use crate::sample::Sample;
use crate::sender::{Home, SenderProcess, Starter};
use cases::{CASES, MANY_CASES, ReceivePath, RxCase, Steering};
use tool::output::Failure;

/// The reported comparisons: ours with bare `readv` and with the kernel.
const SUBJECT: Subject = Subject {
    end: End::Receiver,
    ratios: &[
        ("ours", &["readv"]),
        ("ours", &["kernel-copy"]),
        ("ours", &["kernel-direct"]),
        ("ours", &["smoltcp"]),
        ("ours/packet", &["ours"]),
        ("ours/packet", &["kernel-copy"]),
        ("ours/packet/1core", &["ours/1core"]),
        ("ours/packet/1core", &["kernel-copy/1core"]),
        ("ours/packet/big-tcp", &["ours"]),
        ("ours/packet/big-tcp", &["kernel-copy/big-tcp"]),
        (
            "ours/packet/1core/big-tcp",
            &["kernel-direct/1core/big-tcp"],
        ),
        ("ours/macvtap", &["ours"]),
        ("ours/macvtap", &["kernel-copy"]),
        ("ours/macvtap/1core", &["kernel-direct/1core"]),
        ("ours/macvtap/big-tcp", &["kernel-copy/big-tcp"]),
        (
            "ours/macvtap/1core/big-tcp",
            &["kernel-direct/1core/big-tcp"],
        ),
        ("ours/1core", &["readv/1core"]),
        ("ours/1core", &["kernel-copy/1core"]),
        ("ours/1core", &["kernel-direct/1core"]),
        ("ours/bbr", &["kernel-copy/bbr"]),
        ("ours/64k-sends", &["kernel-copy/64k-sends"]),
    ],
};

/// The comparisons of `--connections`: many connections with one.
const MANY: Subject = Subject {
    end: End::Receiver,
    ratios: &[
        ("kernel-copy/8", &["kernel-copy/1"]),
        ("kernel-copy/64", &["kernel-copy/1"]),
        ("kernel-copy/1000", &["kernel-copy/1"]),
        ("ours/8", &["ours/1"]),
        ("ours/64", &["ours/1"]),
        ("ours/1000", &["ours/1"]),
        ("ours/1+10000-idle", &["ours/1"]),
        ("kernel-copy/1000/20g", &["kernel-copy/1/20g"]),
        ("ours/8/20g", &["ours/1/20g"]),
        ("ours/64/20g", &["ours/1/20g"]),
        ("ours/1000/20g", &["ours/1/20g"]),
        ("ours/1000/20g", &["kernel-copy/1000/20g"]),
        ("kernel-copy/1000/rps", &["kernel-copy/1/rps"]),
        ("ours/8/rps", &["ours/1/rps"]),
        ("ours/64/rps", &["ours/1/rps"]),
        ("ours/1000/rps", &["ours/1/rps"]),
        ("ours/1/epoll", &["ours/1"]),
        ("ours/64/epoll", &["ours/64"]),
        ("ours/1000/epoll", &["ours/1000"]),
        ("ours/1", &["kernel-copy/1"]),
        ("ours/64", &["kernel-copy/64"]),
        ("ours/1000", &["kernel-copy/1000"]),
    ],
};

/// Receive from a stock kernel sender: this receiver, the kernel's, bare readv, and others
///
/// Every repetition runs all rows one after another, each for --seconds. The figures of a row are the median over the
/// repetitions, with minimum and maximum. A run that was disturbed by other load is repeated, up to three tries. CPU
/// time is in seconds per 10^9 bytes of payload: that of the receiver's process, and the total with the sender's process
/// and the kernel's softirq threads. Has the same requirements as `devmem-tcp demo` with a TAP.
#[derive(Debug, Args)]
pub struct RxArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    /// Run other rows: 1, 8, 64 and 1,000 connections, received by one thread with a poller (and with epoll), and
    /// 10,000 idle ones; the sender sends as much as they accept, or offers 20 Gbit/s; in rows /rps its TCP runs on its own
    /// processor. Use --seconds 3 and --mem-size 4G: shorter runs of 1,000 connections are slow start, and the kernel has 6 MiB
    /// for each
    #[arg(long)]
    connections: bool,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a row has no valid run.
pub fn run(args: &RxArgs) -> Result<(), Failure> {
    let RxArgs {
        measure,
        connections,
    } = args;
    match connections {
        true => runner::run(measure, MANY_CASES, MANY, run_once),
        false => runner::run(measure, CASES, SUBJECT, run_once),
    }
}

fn run_once(bench: &Bench, case: &RxCase) -> Result<Sample> {
    let sender_cpu = bench.sender_cpu(case.cores);
    let home = if case.receiver.uses_veth() {
        Home::OfItsOwn
    } else {
        Home::Shared
    };
    let steered = case.steering == Steering::Sender;
    // Of both ends of a veth pair, because both are created here; the near end's packets come from that processor anyway.
    steer_receiving(steered.then_some(sender_cpu))?;
    let mut sender = SenderProcess::start(case.sending(), bench.time, sender_cpu, home)?;
    let _veth = match home {
        Home::OfItsOwn => {
            let near = match case.receiver {
                ReceivePath::OursOverVeth(_) => NearEnd::Bare,
                _ => NearEnd::Kernel,
            };
            let namespace = sender.namespace()?;
            let longest = (case.packets == Packets::Big).then_some(BIG_PACKET_LEN);
            Some(Veth::new(&namespace, near, bench.mtu, longest)?)
        }
        Home::Shared => None,
    };
    let starter = sender.starter()?;
    let before = Accounting::now(&bench.softirq_threads);
    let received = pinned(bench.receiver_cpu, || receive(bench, case, starter));
    let machine = Accounting::now(&bench.softirq_threads).since(before);
    // The receiver's error takes precedence: the sender's is only a consequence.
    let received = received?;
    Sample::new(received, sender.finish()?, machine)
}

fn receive(bench: &Bench, case: &RxCase, starter: Starter) -> Result<MeterReading> {
    let memory = &bench.memory;
    match (case.receiver, case.connections) {
        (ReceivePath::KernelCopy, Some(many)) => return many::kernel(memory, many, starter),
        (_, Some(many)) => {
            let nic = ours::on_tap(bench.mtu)?;
            return many::ours(nic, memory, many, case.waiting, starter);
        }
        (_, None) => {}
    }
    match case.receiver {
        ReceivePath::KernelCopy => kernel::copy(memory, starter),
        ReceivePath::KernelDirect => kernel::direct(memory, starter),
        ReceivePath::Bare(placement) => bare::receive(memory, placement, bench.mtu, starter),
        ReceivePath::Ours(niov) => {
            let nic = ours::on_tap(bench.mtu)?;
            ours::receive(nic, memory, niov, starter)
        }
        ReceivePath::OursOverVeth(link) => {
            let nic = ours::on_veth(link, bench.mtu)?;
            ours::receive(nic, memory, NiovSize::DEFAULT, starter)
        }
        #[cfg(feature = "bench-smoltcp")]
        ReceivePath::Smoltcp => smoltcp::receive(memory, bench.mtu, starter),
    }
}
