//! Commands for the kernel's device memory TCP.

use clap::Args;

use tool::parse::OutputArgs;

/// Restore the NIC settings that a crashed run left changed
///
/// A run that sets up a NIC records each change in a state file before it makes it, and restores the previous settings at its
/// end. If the run was killed, this command restores them from that file. It does not touch settings of running processes.
#[derive(Debug, Args)]
#[command(after_long_help = RESTORE_EXAMPLES)]
pub struct Restore {
    /// Only this interface
    #[arg(value_name = "IFNAME")]
    pub interface: Option<String>,
    /// List the settings left changed and the runs that changed them; change nothing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

const RESTORE_EXAMPLES: &str = "\
Exit status: 0 if nothing is left to restore; 1 if something could not be restored, or if the run that set up IFNAME is
still alive.

Examples:
  devmem-tcp restore --list
  devmem-tcp restore eth1";

/// Act as the kernel selftests' ncdevmem
///
/// Takes the same flags, prints the same messages and has the same exit codes, so that scripts written for ncdevmem work
/// unchanged. A link to this program named `ncdevmem` does the same. `ncdevmem -h` lists the flags.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Ncdevmem {
    #[arg(
        value_name = "FLAGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub flags: Vec<std::ffi::OsString>,
}
