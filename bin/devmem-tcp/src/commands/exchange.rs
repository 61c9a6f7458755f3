//! `devmem-tcp demo --exchange`: collectives of four processes in a ring, as a training job runs them.
//!
//! ```text
//!  rank 0 --wire 0-- rank 1 --wire 1-- rank 2 --wire 2-- rank 3 --wire 3-- rank 0
//! ```
//!
//! Each rank is a process with two NICs of ours. Wire N is a UNIX socket on which rank N listens, and to which the next rank connects: both
//! share memory. An impaired wire is a cable, a process that works like `devmem-tcp wire`. All of them are
//! helpers: they end with this process, however it ends. Their vectors are in the memory of a GPU, which adds them, if there is one that
//! works; otherwise in host memory, and the CPU adds.

mod rank;
mod ring;
mod vectors;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use devmem_linux::helper::Helper;
use pattern::floats::FLOAT_BYTES;
use tool::memory::MemoryKind;
use tool::output::{Failure, note};
use tool::peer::Peer;
use tool::signals::StopFlag;

use crate::plan::{ExchangePlan, RingWires};
use crate::report::{Collective, ExchangeReport, Reduction};
use rank::{POOL_BYTES, RankReport};

pub use rank::run as run_rank;

/// Rounds that are measured.
const ROUNDS: usize = 5;

/// Runs the exchange.
///
/// # Errors
///
/// A failed step; a result that differs from the serial one.
pub fn run(plan: &ExchangePlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let memory = memory(plan);
    let folder = tempfile::tempdir().context("make a folder for the sockets")?;
    let folder = folder.path();
    let mut cables = Vec::new();
    let cabled = match plan.wires() {
        RingWires::Shared => 0,
        RingWires::Cables => ExchangePlan::RANKS,
    };
    for wire in 0..cabled {
        cables.push(start_cable(plan, folder, wire, &stop)?);
    }
    let mut ranks = Vec::new();
    for rank in 0..ExchangePlan::RANKS {
        ranks.push(start_rank(plan, folder, rank, memory)?);
    }
    let mut tickets = Vec::new();
    for rank in &mut ranks {
        tickets.push(rank.hear(&stop)?);
    }
    // Each rank connects to the next one.
    tickets.rotate_left(1);
    for (rank, ticket) in ranks.iter_mut().zip(&tickets) {
        rank.tell(ticket.trim())?;
    }
    let reports = ranks.iter_mut().map(|rank| rank.hear_json(&stop));
    let reports = reports.collect::<Result<Vec<RankReport>, _>>()?;
    let report = report(plan, memory, &reports);
    plan.form.print(&report)?;
    match report.complaint() {
        Some(complaint) => Err(Failure::failed(complaint)),
        None => Ok(()),
    }
}

/// Returns the kind of memory of the vectors, and says which it is if the user has not chosen: that of the first GPU of NVIDIA, if it adds and
/// has room for all ranks, else host memory.
fn memory(plan: &ExchangePlan) -> MemoryKind {
    if let Some(kind) = plan.memory {
        return kind;
    }
    let (ranks, ordinal) = (usize::from(ExchangePlan::RANKS), 0);
    let bytes = plan.floats * FLOAT_BYTES;
    // A vector and a pool for each rank, and all their blocks. Freed at once, and allocated again by the ranks: they are processes, which
    // cannot use memory of this one, and whether there is room for all must be known before the first one starts, because all have
    // the same kind.
    let tried = vectors::on_gpu(ordinal, ranks * (bytes + POOL_BYTES), bytes);
    match tried {
        Ok(_there_is_room) => {
            let kind = MemoryKind::Cuda(ordinal);
            note(format_args!("{kind} holds the vectors and adds them"));
            kind
        }
        Err(error) => {
            let cause = tool::explain::reason(error.root_cause());
            note(format_args!(
                "the CPU adds the vectors, in host memory: no GPU does ({cause})"
            ));
            MemoryKind::Anonymous
        }
    }
}

fn report(plan: &ExchangePlan, memory: MemoryKind, ranks: &[RankReport]) -> ExchangeReport {
    let bytes = (plan.floats * FLOAT_BYTES) as u64;
    let n = f64::from(ExchangePlan::RANKS);
    let collective = |of: fn(&RankReport) -> &[f64], wrong: fn(&RankReport) -> u64, share| {
        // A round is over when the last rank is done.
        let rounds = (0..ROUNDS).map(|round| {
            let seconds = ranks.iter().filter_map(|rank| of(rank).get(round));
            seconds.copied().fold(0.0, f64::max)
        });
        let wrong = ranks.iter().map(wrong).sum();
        Collective::new(bytes, rounds.collect(), share, wrong)
    };
    ExchangeReport {
        backend: "user",
        link: match plan.wires() {
            RingWires::Shared => "unix-listen",
            RingWires::Cables => "unix",
        },
        ranks: ExchangePlan::RANKS,
        floats: plan.floats as u64,
        bytes,
        rounds: ROUNDS,
        memory: memory.to_string(),
        // All ranks have the same memory.
        reduction: ranks
            .first()
            .map_or_else(Reduction::default, |it| it.reduction),
        all_reduce: collective(
            |rank| &rank.all_reduce,
            |rank| rank.wrong_sums,
            2.0 * (n - 1.0) / n,
        ),
        all_gather: collective(
            |rank| &rank.all_gather,
            |rank| rank.wrong_gathered,
            (n - 1.0) / n,
        ),
        ranks_cpu_seconds: ranks.iter().map(|rank| rank.cpu_seconds).sum(),
        mtu: plan.mtu,
        ip_version: if plan.ipv6 { 6 } else { 4 },
        impair: plan.impairment.to_string(),
    }
}

/// Returns the path of the socket at end 1 or 2 of a wire; without a cable, both ends have that of end 1.
fn socket(folder: &Path, wire: u16, end: u16) -> PathBuf {
    folder.join(format!("wire{wire}-{end}"))
}

/// Starts the cable between the ranks `wire` and `wire + 1`; returns when it listens.
fn start_cable(
    plan: &ExchangePlan,
    folder: &Path,
    wire: u16,
    stop: &StopFlag,
) -> Result<Peer, Failure> {
    let mut command = Helper::this_program();
    command.args(["wire", "--mtu", &plan.mtu.to_string()]);
    command.args(["--impair", &plan.impairment.to_string()]);
    let ends = [1, 2].map(|end| socket(folder, wire, end));
    Peer::start_cable(format!("cable {wire}"), &mut command, &ends, stop)
}

fn start_rank(
    plan: &ExchangePlan,
    folder: &Path,
    rank: u16,
    memory: MemoryKind,
) -> Result<Peer, Failure> {
    let ranks = ExchangePlan::RANKS;
    let previous = (rank + ranks - 1) % ranks;
    let mut command = Helper::this_program();
    command.args(["__rank", "--rank", &rank.to_string()]);
    command.args(["--ranks", &ranks.to_string()]);
    command.args(["--floats", &plan.floats.to_string()]);
    command.args(["--rounds", &ROUNDS.to_string()]);
    command.args(["--mtu", &plan.mtu.to_string()]);
    command.args(["--memory", &memory.to_string()]);
    let end = match plan.wires() {
        RingWires::Shared => {
            command.arg("--listen");
            1
        }
        RingWires::Cables => 2,
    };
    command.arg("--left").arg(socket(folder, previous, end));
    command.arg("--right").arg(socket(folder, rank, 1));
    if plan.ipv6 {
        command.arg("--ipv6");
    }
    command.stdin(Stdio::piped());
    Peer::start(format!("rank {rank}"), &mut command)
}
