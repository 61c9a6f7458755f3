//! The other programs of this workspace, which lie in the folder of the running one.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::output::Failure;

/// Returns the path of the running program.
///
/// # Errors
///
/// It is not known.
pub fn this_program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe().context("find the path of this program")?)
}

/// Returns the program `name` in the folder of the running one.
///
/// # Errors
///
/// There is none.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    let program = this_program()?.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(Failure::unsupported(format_args!("there is no {}", program.display()))
            .with_remedy(format!(
                "in a clone of the repository, `cargo build --release --bin {name}` builds it, and \
                 `cargo install --locked --path bin/{name}` installs it; the Debian package has it"
            ))),
    }
}

/// Replaces this process by the program `name` in the folder of the running one.
///
/// # Errors
///
/// There is none, or it cannot be run.
pub fn become_program(
    name: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<(), Failure> {
    let program = find(name)?;
    let error: io::Error = Command::new(&program).args(arguments).exec();
    let shown = program.display();
    Err(Failure::failed(format_args!("run {shown}: {error}")))
}
