//! `devmem-lab`: the acceptance tests of device memory TCP in guests of the lab, and what runs the Linux kernel's own NIC tests
//! there. `devmem-tcp lab test`, `lab exchange` and `lab selftests` run it.
//!
//! On the host, `command` plans a run: [`suite::host`] and [`selftests::host`] start guests by the crate `lab`. The guests get this
//! program, too ([`places::PROGRAM_PATH`]), and run it with the commands of [`args::GuestCommand`]: [`suite::rows`] and
//! [`selftests::guest`] do the work there, and print what the host collects. The tool beside this program is process 1 of the
//! guests, serves their NICs, and is what is tested.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod command;
mod places;
mod root;
mod selftests;
mod suite;
mod verdict;

use std::process::ExitCode;

use clap::Parser;
use tool::output::{Exit, Failure};

use args::{Cli, Command, GuestCli, GuestCommand, PROGRAM};

fn main() -> ExitCode {
    tool::output::set_program(PROGRAM);
    let ended = match GuestCli::of_this_process() {
        Some(guest) => run_in_guest(&guest.command),
        None => run(Cli::parse().command),
    };
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(failure) => failure.report(PROGRAM),
    };
    exit.into()
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Test(args) => command::test(args),
        Command::Exchange(args) => command::exchange(args),
        Command::Selftests(args) => command::selftests(args),
    }
}

fn run_in_guest(command: &GuestCommand) -> Result<(), Failure> {
    match command {
        GuestCommand::Rows(args) => suite::rows::run(args),
        GuestCommand::Victim(args) => Ok(suite::devmem_rows::be_the_victim(args.bytes)?),
        GuestCommand::Pod(args) => Ok(suite::pods::be_the_pod(args)?),
        GuestCommand::Programs(args) => selftests::guest::run(args),
    }
}
