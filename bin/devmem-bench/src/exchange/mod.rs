//! `bench exchange`: messages between two processes, compared with a bare stream of the same link and with an exchange over
//! the kernel's sockets.

mod bare;
mod link;
mod messages;
mod ours;
mod rank;
mod report;
mod rows;
mod run;
mod sockets;

use clap::Args;
use tool::output::Failure;

use crate::processes::RowsArgs;
use report::ExchangeReport;
use rows::ROWS;

pub use rank::{RankArgs, run as run_rank};

/// Measure messages between two processes against a bare stream and against kernel sockets
///
/// Rows named `ours` send messages of 4 MiB, or return messages of a few bytes, from and into host memory by
/// devmem-exchange; `device` sends from and receives into device memory; `stream` does the same as `ours` with one TCP connection of
/// the same stack on the same link. All rows use four buffers in turn. `tap` is a TAP for each process, between which the kernel
/// forwards; `veth` is a packet socket for each process, on the two ends of a veth pair; `unix` is a UNIX socket for each process
/// and a cable process between them; `shared` is a UNIX socket between the processes, which let each other read what they send from (`device/shared` uses memory files
/// that are marked as shared); `copied` is the same without asking for that: what is sent is copied to memory of the wire first. `sockets/veth` is an exchange made for this benchmark over the kernel's TCP and a veth pair: each message is cut into
/// pieces for four connections, and the thread polls, as NCCL's own transport does. Every repetition runs all rows one
/// after another.
#[derive(Debug, Args)]
pub struct ExchangeArgs {
    #[command(flatten)]
    rows: RowsArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a row fails.
pub fn run(args: &ExchangeArgs) -> Result<(), Failure> {
    args.rows
        .run::<ExchangeReport>(ROWS, link::forward_packets, run::run)
}
