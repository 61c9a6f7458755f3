//! The kernel selftests' `ncdevmem`: the same flags, messages and exit codes, implemented with `devmem-linux`.
//!
//! It behaves for scripts as linux tools/testing/selftests/drivers/net/hw/ncdevmem.c does: a server prints or checks the
//! bytes that arrive in device memory, a client sends the lines of its standard input from device memory, and without an
//! address a probe checks that the kernel refuses invalid requests. Intended differences:
//!
//! - the previous settings are restored exactly, also after SIGINT, SIGTERM and SIGHUP, and after a crash by
//!   `devmem-tcp restore`; `ethtool` is not run,
//! - bytes in host memory (`SCM_DEVMEM_LINEAR`) are printed and checked in stream order,
//! - a single wrong byte fails the run, not only the twenty-first,
//! - unknown flags and invalid numbers are refused,
//! - lines that are longer than the memory, or have too many chunks for a send or a packet, are sent in pieces,
//! - every failure has exit code 1, and there is the flag `-h`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod client;
mod flags;
mod memory;
mod probe;
mod server;
mod setup;
mod validate;

use std::ffi::OsString;
use std::path::Path;

use devmem_linux::ethtool::Ethtool;
use devmem_linux::netdev::Netdev;

use flags::{Flags, HELP, NcdevmemPlan};
use tool::output::{Exit, Failure, print_line, say};

/// The program name that selects this tool, and the prefix of its messages.
pub const NAME: &str = "ncdevmem";

/// Returns the flags if the program was called by a name that ends with [`NAME`]. The selftests' scripts copy it to other
/// machines as `xyzncdevmem`.
pub fn flags_by_name(mut args: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let program = args.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    name.ends_with(NAME).then(|| args.collect())
}

/// Runs the mode that the flags select.
///
/// # Errors
///
/// All have exit code 1, as the selftests' scripts expect.
pub fn run(flags: Vec<OsString>) -> Result<(), Failure> {
    start(flags).map_err(|failure| failure.ending_with(Exit::Failed))
}

fn start(flags: Vec<OsString>) -> Result<(), Failure> {
    let flags = Flags::parse(flags)?;
    if flags.help {
        return Ok(print_line(HELP.trim_end())?);
    }
    let name = flags.interface()?.to_owned();
    let netdev = Netdev::by_name(&name)?;
    say!("using ifindex={}", netdev.index().0);
    let job = flags.judge(netdev.index(), || rx_queue_count(&name))?;
    match job {
        NcdevmemPlan::Probe(plan) => probe::run(netdev, &plan),
        NcdevmemPlan::Server(plan) => server::run(netdev, &plan),
        NcdevmemPlan::Client(plan) => client::run(netdev, &plan),
    }
}

/// Returns the number of RX queues, from the channels.
fn rx_queue_count(interface: &str) -> Result<u32, Failure> {
    let channels = Ethtool::by_name(interface).and_then(|mut ethtool| ethtool.channels());
    match channels {
        Ok(channels) => Ok(channels.rx_queues()),
        Err(error) => Err(Failure::failed(format!(
            "couldn't detect number of queues: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_name_selects_the_tool() {
        let flags = |line: &str| {
            let words = line.split_whitespace().map(OsString::from);
            flags_by_name(words.collect::<Vec<_>>().into_iter())
        };
        let taken = Some(vec![OsString::from("-l")]);
        assert_eq!(flags("ncdevmem -l"), taken);
        assert_eq!(flags("/selftests/hw/ncdevmem -l"), taken);
        assert_eq!(flags("/tmp/qwertyui/asdfghjkncdevmem -l"), taken);
        assert_eq!(flags("/usr/bin/devmem-tcp ncdevmem -l"), None);
        assert_eq!(flags(""), None);
    }
}
