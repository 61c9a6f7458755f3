//! The commands that are about the kernel's own device memory.

use clap::Args;

use super::OutputArgs;

/// Say what this machine has for device memory, what is missing, and the command that mends it
///
/// Looks at the kernel, at what this user may do, at where dma-bufs can come from, and at every interface or at
/// IFNAME alone. Nothing is changed: what cannot be read is tried by requests that cannot succeed. The table goes to
/// stdout; with --json one object does instead.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLES)]
pub struct Doctor {
    /// Only this interface
    #[arg(value_name = "IFNAME")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

const DOCTOR_EXAMPLES: &str = "\
Exit status: 0 if device memory can be received through the kernel, at once or after set-up; 3 if not.

Examples:
  devmem-tcp doctor
      every interface; those that cannot are a line each
  devmem-tcp doctor eth1
      one interface, everything about it
  devmem-tcp doctor --json | jq '.nics[] | select(.verdict == \"ready\") | .name'";

/// Put back the NIC settings that a crashed run left changed
///
/// A run that prepares a NIC writes down what it changes before it changes it, and puts everything back when it ends. If
/// it was killed, this puts everything back in its place. The settings of runs that are alive are left alone.
#[derive(Debug, Args)]
#[command(after_long_help = RESTORE_EXAMPLES)]
pub struct Restore {
    /// Only this interface
    #[arg(value_name = "IFNAME")]
    pub interface: Option<String>,
    /// Say what is left changed, and by whom; change nothing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

const RESTORE_EXAMPLES: &str = "\
Exit status: 0 if nothing is left to restore; 1 if something could not be restored, or IFNAME's owner is alive.

Examples:
  devmem-tcp restore --list
  devmem-tcp restore eth1";

/// Act as the kernel selftests' ncdevmem
///
/// Takes its flags, prints its messages and ends as it does, so that scripts written for it can use it unchanged. A
/// link to this program named `ncdevmem` does the same. `ncdevmem -h` has the flags.
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
