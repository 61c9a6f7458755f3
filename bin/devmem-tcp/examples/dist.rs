//! Writes the man pages and the shell completions of `devmem-tcp` for packages.
//!
//! ```sh
//! cargo run --package devmem-tcp-cli --example dist FOLDER
//! ```
//!
//! An example and no build script, so that `cargo build` and `cargo install` neither compile the generators nor run them.
//! It reads the same `args.rs` as the tool.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use clap::CommandFactory;
use clap_complete::Shell;

// The folder of an inline module is where its files are searched.
#[path = "../src"]
mod tool_sources {
    #[expect(
        unused_imports,
        reason = "the tool names more of it than its command line"
    )]
    pub mod args;
}

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
    // `help COMMAND` would have a page for each command, with the text of that command's page.
    let mut command = tool_sources::args::Cli::command().disable_help_subcommand(true);
    command = command.mut_subcommand("lab", |lab| lab.disable_help_subcommand(true));
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "devmem-tcp", &completions)?;
    }
    clap_mangen::generate_to(command, &man)
}
