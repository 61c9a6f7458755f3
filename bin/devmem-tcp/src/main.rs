//! The `devmem-tcp` tool: device memory TCP on any Linux machine.
//!
//! A run goes `args.rs` (text) -> `plan.rs` (judged) -> `commands/` (done) -> `output.rs` (told). Receiving is
//! `receiver.rs` (a NIC with memory bound to it) and `transfer.rs` (its connections); sending is `source.rs` (the bytes) and
//! `transmit.rs` (a ring of device memory that they leave from). Called `ncdevmem` it is that: `ncdevmem/`.

#![forbid(unsafe_code)]
// They panic where nobody reads: `output.rs` has what to use.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod backend;
mod commands;
mod kernel;
mod ncdevmem;
mod plan;
mod receiver;
mod report;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use gvnic_server::plan::{GvnicPlan, WirePlan};
use plan::{DemoPlan, RecvPlan, SendPlan};
use tool::output::{Exit, Failure};

fn main() -> ExitCode {
    // One thread until a command starts more: `demo` enters a user namespace first.
    if let Some(ended) = lab::guest::run_by_name(std::env::args_os()) {
        return exit("devmem-tcp", ended);
    }
    let (program, ended) = match ncdevmem::flags_by_name(std::env::args_os()) {
        Some(flags) => (ncdevmem::NAME, ncdevmem::run(flags)),
        None => match Cli::parse().command {
            Command::Ncdevmem(args) => (ncdevmem::NAME, ncdevmem::run(args.flags)),
            command => ("devmem-tcp", run(command)),
        },
    };
    exit(program, ended)
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
        Command::Demo(args) => commands::demo::run(&DemoPlan::new(args)?),
        Command::Recv(args) => commands::recv::run(&RecvPlan::new(args)?),
        Command::Send(args) => commands::send::run(&SendPlan::new(args)?),
        Command::Wire(args) => gvnic_server::cable::run(&WirePlan::new(args)?),
        Command::Nic(args) => gvnic_server::nic::serve(&GvnicPlan::new(args)?),
        Command::Bench(args) => commands::bench::run(&args),
        Command::PacketdrillPath(args) => commands::packetdrill_path::run(&args),
        Command::Lab(args) => lab::run(*args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Restore(args) => commands::restore::run(&args),
        Command::Ncdevmem(args) => ncdevmem::run(args.flags),
        Command::DemoReceiver(args) => commands::receiver::run(&args),
        Command::DemoSender(args) => commands::sender::run(&args),
    }
}
