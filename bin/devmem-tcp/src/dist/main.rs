//! Writes the man pages and the shell completions of `devmem-tcp` for packages.
//!
//! ```sh
//! cargo run --package devmem-tcp-cli --features dist --bin devmem-tcp-dist FOLDER
//! ```
//!
//! A program with a feature of its own and no build script, so that `cargo build` and `cargo install` neither compile the generators nor
//! run them; and no example, which would build all that the tool consists of once more, with the features that tests need. It reads the
//! same `args.rs` as the tool.

#![forbid(unsafe_code)]

mod completions;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1) else {
        eprintln!("usage: dist FOLDER\n  writes FOLDER/man/*.1 and FOLDER/completions/*");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dist: cannot write to {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    completions::write(&folder.join("completions"))?;
    let man = folder.join("man");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(completions::command(), &man)
}
