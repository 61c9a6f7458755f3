//! `devmem-tcp bench`: runs the program of the benchmarks, which lies beside this one.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use tool::output::Failure;

use crate::args::Bench;

/// The program of the benchmarks.
const PROGRAM: &str = "devmem-bench";

/// Becomes the program of the benchmarks.
///
/// # Errors
///
/// It does not lie beside this program, or cannot be run.
pub fn run(args: &Bench) -> Result<(), Failure> {
    let me = std::env::current_exe().context("find our own program")?;
    let program = me.with_file_name(PROGRAM);
    let error = Command::new(&program).args(&args.arguments).exec();
    let shown = program.display();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::unsupported(format_args!("there is no {shown}"))
            .with_remedy(format!("build it: cargo build --release --bin {PROGRAM}")),
        _ => Failure::failed(format_args!("run {shown}: {error}")),
    })
}
