//! The shell completions. The tests of the tool include this file, and run what it writes in the shells.

use std::path::Path;
use std::{fs, io};

use clap::CommandFactory;
use clap_complete::Shell;

/// The command that is completed.
const NAME: &str = "devmem-tcp";

// The folder of an inline module is where its files are searched.
#[path = ".."]
mod tool_sources {
    #[expect(
        dead_code,
        unused_imports,
        reason = "the tool names more of it than its command line"
    )]
    pub mod args;
}

/// Returns the command line of the tool. `help COMMAND` would have a page and completions for each command, with the text of that
/// command's own.
pub fn command() -> clap::Command {
    let command = tool_sources::args::Cli::command().disable_help_subcommand(true);
    command.mut_subcommand("lab", |lab| lab.disable_help_subcommand(true))
}

/// Writes the completions for bash, zsh and fish to `folder`.
///
/// # Errors
///
/// The folder or a file cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let path = clap_complete::generate_to(shell, &mut command, NAME, folder)?;
        if shell == Shell::Bash {
            let script = fs::read_to_string(&path)?;
            fs::write(&path, with_one_name(&script))?;
        }
    }
    Ok(())
}

/// Returns the script for bash with one name for each command. clap_complete 4.6 has a variable for the command that the line names so
/// far, sets it to `devmem__tcp__subcmd__recv`, and tests it for `devmem__subcmd__tcp__subcmd__recv`: it splits names at "__", which it
/// has put in place of the hyphen before.
fn with_one_name(script: &str) -> String {
    let [set, tested] = ["__", "__subcmd__"].map(|hyphen| NAME.replace('-', hyphen));
    script.replace(&tested, &set)
}
