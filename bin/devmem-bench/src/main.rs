//! `devmem-bench`, or `devmem-tcp bench`: measures receiver, sender and page pool.
//!
//! Figures are comparable only within one run: every repetition runs all cases one after another, each row has its range next
//! to its median, and the report describes the machine.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod accounting;
mod chart;
mod connections;
mod exchange;
mod fairness;
mod form;
mod latency;
mod load;
mod loopback;
mod lossy;
mod meter;
mod network;
mod plan;
mod pool;
mod processes;
mod processors;
mod receiver;
mod repetitions;
mod report;
mod row;
mod runner;
mod rx;
mod sample;
mod send_time;
mod sender;
mod shards;
mod shuffle;
mod spread;
mod station;
mod tx;
mod wait_set;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tool::explain::Explained;
use tool::output::{Exit, Failure};

/// Measure receiver, sender and page pool against the kernel and against bare system calls
///
/// SIGINT (Ctrl-C), SIGTERM and SIGHUP end a benchmark with the report of what was measured until then, and with exit status 1 if
/// anything was left to measure; the JSON object says so in `interrupted`.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Rx(rx::RxArgs),
    Tx(tx::TxArgs),
    Lossy(lossy::LossyArgs),
    Fairness(fairness::FairnessArgs),
    Loopback(loopback::LoopbackArgs),
    Shards(shards::ShardsArgs),
    Pool(pool::PoolArgs),
    Load(load::LoadArgs),
    Exchange(exchange::ExchangeArgs),
    Latency(latency::LatencyArgs),
}

/// A process that a benchmark starts. A program of its own and no hidden command, which a misspelt one would be told to be
/// similar to.
#[derive(Debug, Parser)]
#[command(name = PROGRAM)]
struct HelperCli {
    #[command(subcommand)]
    what: Helper,
}

#[derive(Debug, Subcommand)]
enum Helper {
    #[command(name = "__sender")]
    Sender(sender::SenderArgs),
    #[command(name = "__receiver")]
    Receiver(receiver::ReceiverArgs),
    /// The cable of `lossy`, `fairness` and `exchange`.
    #[command(name = "__cable")]
    Cable(lossy::CableArgs),
    /// The NVMe target of `load`.
    #[command(name = "__nvme-target")]
    NvmeTarget(load::NvmeTargetArgs),
    /// A rank of `exchange`.
    #[command(name = "__rank")]
    Rank(exchange::RankArgs),
    /// The other end of `latency`.
    #[command(name = "__far")]
    Far(latency::FarArgs),
}

/// The name that errors and notes begin with.
const PROGRAM: &str = "devmem-bench";

fn main() -> ExitCode {
    tool::output::set_program(PROGRAM);
    tool::explain::set_explainer(explain);
    let first = std::env::args_os().nth(1);
    let name = first.as_deref().and_then(|name| name.to_str());
    let ended = match name.is_some_and(Helper::has_subcommand) {
        true => run_helper(HelperCli::parse().what),
        false => run(Cli::parse().what),
    };
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(failure) => failure.report(PROGRAM),
    };
    exit.into()
}

/// Returns the reason and the remedy of an error of a load or an exchange.
fn explain(error: &(dyn std::error::Error + 'static)) -> Option<Explained> {
    if let Some((reason, remedy)) = ::exchange::explain(error) {
        return Some((reason, remedy.map(|remedy| remedy.to_string())));
    }
    let (reason, remedy) = transfer::explain(error)?;
    Some((reason, remedy.map(|remedy| remedy.to_string())))
}

fn run(what: What) -> Result<(), Failure> {
    match what {
        What::Rx(args) => rx::run(&args),
        What::Tx(args) => tx::run(&args),
        What::Lossy(args) => lossy::run(&args),
        What::Fairness(args) => fairness::run(&args),
        What::Loopback(args) => loopback::run(&args),
        What::Shards(args) => shards::run(&args),
        What::Pool(args) => pool::run(&args),
        What::Load(args) => load::run(&args),
        What::Exchange(args) => exchange::run(&args),
        What::Latency(args) => latency::run(&args),
    }
}

fn run_helper(what: Helper) -> Result<(), Failure> {
    match what {
        Helper::Rank(args) => Ok(exchange::run_rank(&args)?),
        Helper::Far(args) => Ok(latency::run_far(&args)?),
        Helper::NvmeTarget(args) => Ok(load::run_nvme_target(&args)?),
        Helper::Sender(args) => Ok(sender::run(&args)?),
        Helper::Cable(args) => lossy::run_cable(args),
        Helper::Receiver(args) => Ok(receiver::run(&args)?),
    }
}
