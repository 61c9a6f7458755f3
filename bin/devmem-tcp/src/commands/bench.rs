//! `devmem-tcp bench`: runs the benchmark program, which is in the same directory as this one.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use tool::output::Failure;

use crate::args::Bench;

/// The benchmark program.
const PROGRAM: &str = "devmem-bench";

/// Replaces this process by the benchmark program.
///
/// # Errors
///
/// It is not in the directory of this program, or cannot be run.
pub fn run(args: &Bench) -> Result<(), Failure> {
    let me = std::env::current_exe().context("find the path of this program")?;
    let program = me.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.arguments).exec();
    let shown = program.display();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::unsupported(format_args!("there is no {shown}"))
            .with_remedy(format!("build it: cargo build --release --bin {PROGRAM}")),
        _ => Failure::failed(format_args!("run {shown}: {error}")),
    })
}
