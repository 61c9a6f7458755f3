//! `bench tx`: this sender and the kernel's, each to a kernel receiver.

mod bare;
mod cases;
mod many;
mod ours;

use anyhow::Result;
use clap::Args;
use nic::BIG_PACKET_LEN;

use crate::accounting::Accounting;
use crate::network::{NearEnd, Veth, steer_receiving};
use crate::plan::MeasureArgs;
use crate::processors::pinned;
use crate::receiver::{ReceiverProcess, Receiving};
use crate::report::{End, Subject};
use crate::row::{CONGESTION, Packets};
use crate::runner::{self, Bench};
use crate::sample::Sample;
use crate::sender::{Home, Mode, SenderProcess, SenderReport, Sending};
use cases::{CASES, LOW_WATER, MANY_CASES, SendPath, Tuning, TxCase};
use tool::output::Failure;

/// The reported comparisons: ours with the faster of the kernel's two ways to send, and each of these with bare `writev`.
const SUBJECT: Subject = Subject {
    end: End::Sender,
    ratios: &[
        ("ours", &["kernel-send", "kernel-zerocopy"]),
        ("ours", &["writev"]),
        ("writev", &["kernel-send", "kernel-zerocopy"]),
        ("ours", &["kernel-send/512k-packets"]),
        ("ours/64k-packets", &["kernel-send", "kernel-zerocopy"]),
        ("ours/64k-packets", &["writev/64k-packets"]),
        (
            "ours/1core",
            &["kernel-send/1core", "kernel-zerocopy/1core"],
        ),
        ("ours/1core", &["writev/1core"]),
        (
            "ours/64k-sends",
            &["kernel-send/64k-sends", "kernel-zerocopy/64k-sends"],
        ),
        ("ours/rps", &["kernel-send/rps"]),
        ("ours/rps", &["writev/rps"]),
        ("ours/wake-256k", &["kernel-send/wake-256k"]),
        ("ours/discard", &["kernel-send/discard"]),
        ("ours/discard", &["writev/discard"]),
    ],
};

/// The comparisons of `--connections`: many connections with one.
const MANY: Subject = Subject {
    end: End::Sender,
    ratios: &[
        ("kernel-send/8", &["kernel-send/1"]),
        ("kernel-send/64", &["kernel-send/1"]),
        ("kernel-send/1000", &["kernel-send/1"]),
        ("ours/8", &["ours/1"]),
        ("ours/64", &["ours/1"]),
        ("ours/1000", &["ours/1"]),
        ("ours/1", &["kernel-send/1"]),
        ("ours/64", &["kernel-send/64"]),
        ("ours/1000", &["kernel-send/1000"]),
    ],
};

/// Send to a stock kernel receiver: this sender from device memory, the kernel's send and MSG_ZEROCOPY, bare writev
///
/// Every repetition runs all rows one after another, each for --seconds. Every sender sends all of its memory repeatedly,
/// so that the bytes are not in the cache. The figures of a row are the median over the repetitions, with minimum and
/// maximum. A run that was disturbed by other load is repeated, up to three tries. CPU time is in seconds per 10^9
/// bytes of payload: that of the sender's process, in which the kernel also does most of the receiving TCP's work, and the
/// total with the receiver's process and the kernel's softirq threads. Has the same requirements as `devmem-tcp demo` with a
/// TAP.
#[derive(Debug, Args)]
pub struct TxArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    /// Run other rows: 1, 8, 64 and 1,000 connections, sent on by one thread
    #[arg(long)]
    connections: bool,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a row has no valid run.
pub fn run(args: &TxArgs) -> Result<(), Failure> {
    let TxArgs {
        measure,
        connections,
    } = args;
    match connections {
        true => runner::run(measure, MANY_CASES, MANY, run_once),
        false => runner::run(measure, CASES, SUBJECT, run_once),
    }
}

fn run_once(bench: &Bench, case: &TxCase) -> Result<Sample> {
    let sender_cpu = bench.sender_cpu(case.cores);
    let receiving = match (case.connections, case.tuning) {
        (Some(connections), _) => Receiving::Many(connections),
        (None, Tuning::None | Tuning::Steering) => Receiving::ToTheEnd,
        (None, Tuning::LowWater) => Receiving::InPortions(LOW_WATER),
        (None, Tuning::Discard) => Receiving::Discarded,
    };
    let is_steered = case.tuning == Tuning::Steering;
    steer_receiving(is_steered.then_some(bench.receiver_cpu))?;
    let receiver = ReceiverProcess::start(receiving, bench.receiver_cpu, Home::Shared)?;
    let before = Accounting::now(&bench.softirq_threads);
    let sent = match case.sender {
        SendPath::Kernel | SendPath::KernelZerocopy => send_by_kernel(bench, case, sender_cpu),
        SendPath::Bare => pinned(sender_cpu, || bare::send(bench, case.packets)),
        SendPath::Ours => pinned(sender_cpu, || match case.connections {
            Some(connections) => many::send(bench, case, connections),
            None => ours::send(bench, case),
        }),
    }?;
    let received = receiver.finish()?;
    let machine = Accounting::now(&bench.softirq_threads).since(before);
    Sample::new(received, sent, machine)
}

fn send_by_kernel(bench: &Bench, case: &TxCase, cpu: usize) -> Result<SenderReport> {
    let sending = Sending {
        congestion: CONGESTION,
        write_bytes: case.write_bytes,
        source_bytes: bench.memory.size(),
        mode: match case.sender {
            SendPath::KernelZerocopy => Mode::Zerocopy,
            SendPath::Kernel | SendPath::Bare | SendPath::Ours => Mode::Copy,
        },
        connections: case.connections,
        offered: None,
        from: None,
    };
    let mut sender = SenderProcess::start(sending, bench.time, cpu, Home::OfItsOwn)?;
    let longest = (case.packets == Packets::Big).then_some(BIG_PACKET_LEN);
    let _veth = Veth::new(&sender.namespace()?, NearEnd::Kernel, bench.mtu, longest)?;
    sender.starter()?.go()?;
    sender.finish()
}
