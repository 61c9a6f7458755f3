//! The `devmem-tcp` tool: device memory TCP on any Linux machine.
//!
//! A run goes through `args.rs` (the command line as text), `plan.rs` (validated), `commands/` (executed) and
//! `tool::output` (printed). Receiving is in `receiver.rs` (a NIC with memory bound to it) and `tool::receive` (its
//! connections); sending is in `tool::source` (the bytes) and `tool::transmit` (a ring of device memory). `tool::watch` shows a
//! transfer live. Under the name `ncdevmem` the program acts as that tool: the crate `ncdevmem`.

#![forbid(unsafe_code)]
// These macros panic if the output is closed; use the functions of `tool::output`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod backend;
mod client;
mod commands;
mod kernel;
mod kernels_end;
mod load_failure;
mod plan;
mod receiver;
mod remedies;
mod report;
mod unused;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, HelperCli, HelperCommand};
use devmem_tcp::text::is_unprintable;
use gvnic_server::plan::{GvnicPlan, WirePlan};
use plan::{DemoPlan, ExchangePlan, LeasePlan, LoadPlan, RecvPlan, SendPlan, StorePlan};
use tool::output::{Exit, Failure, tell};

fn main() -> ExitCode {
    // The process has one thread here, which `demo` needs to enter a user namespace.
    if let Some(helper) = HelperCli::of_this_process() {
        return exit("devmem-tcp", run_helper(helper.command));
    }
    tool::explain::set_explainer(remedies::explain);
    let (program, ended) = match ncdevmem::flags_by_name(std::env::args_os()) {
        Some(flags) => (ncdevmem::NAME, ncdevmem::run(flags)),
        None => match command_line().command {
            Command::Ncdevmem(args) => (ncdevmem::NAME, ncdevmem::run(args.flags)),
            command => ("devmem-tcp", run(command)),
        },
    };
    exit(program, ended)
}

/// Parses the command line. A refused one is printed by clap, which shows arguments as they are; if one has what a terminal obeys,
/// by our own output.
fn command_line() -> Cli {
    Cli::try_parse().unwrap_or_else(|refused| {
        let mut args = std::env::args_os();
        if args.any(|arg| arg.to_string_lossy().contains(is_unprintable)) {
            tell(refused.render());
            std::process::exit(refused.exit_code());
        }
        refused.exit()
    })
}

fn exit(program: &str, ended: Result<(), Failure>) -> ExitCode {
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(failure) => failure.report(program),
    };
    exit.into()
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) if args.exchange => commands::exchange::run(&ExchangePlan::new(&args)?),
        Command::Demo(args) => commands::demo::run(&DemoPlan::new(args)?),
        Command::Recv(args) => commands::recv::run(&RecvPlan::new(args)?),
        Command::Send(args) => commands::send::run(&SendPlan::new(args)?),
        Command::Load(args) => commands::load::run(&LoadPlan::new(args)?),
        Command::Store(args) => commands::store::run(&StorePlan::new(args)?),
        Command::Wire(args) => gvnic_server::cable::run(&WirePlan::new(args)?),
        Command::Nic(args) => gvnic_server::nic::serve(&GvnicPlan::new(args)?),
        Command::Bench(args) => commands::bench::run(&args),
        Command::PacketdrillPath(args) => commands::packetdrill_path::run(&args),
        Command::Lab(args) => lab::run(*args),
        Command::Doctor(args) => tool::doctor::run(&args),
        Command::Lease(args) => commands::lease::run(&LeasePlan::new(args)?),
        Command::Broker(args) => commands::broker::run(args),
        Command::Restore(args) => commands::restore::run(&args),
        Command::Ncdevmem(args) => ncdevmem::run(args.flags),
    }
}

fn run_helper(command: HelperCommand) -> Result<(), Failure> {
    match command {
        HelperCommand::Receiver(args) => commands::receiver::run(&args),
        HelperCommand::Sender(args) => commands::sender::run(&args),
        HelperCommand::NvmeTarget(args) => commands::nvme_target::run(&args),
        HelperCommand::Rank(args) => commands::exchange::run_rank(&args),
        HelperCommand::Guest(_) => lab::guest::run(),
    }
}
