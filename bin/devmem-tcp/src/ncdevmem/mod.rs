//! The kernel selftests' `ncdevmem`: its flags, its messages, its way to end, over this workspace's Linux side.
//!
//! What scripts see is the facts of linux tools/testing/selftests/drivers/net/hw/ncdevmem.c and of the scripts beside it
//! that run it, restated: a server that prints or checks what lands in device memory, a client that sends the lines of
//! its standard input from there, and without an address a probe that tries what must be refused. Where it differs, it
//! is on purpose:
//!
//! - settings are put back exactly as they were, after SIGINT, SIGTERM and SIGHUP too, and `devmem-tcp restore` does it after
//!   a crash; `ethtool` is not run,
//! - bytes that landed in host memory (`SCM_DEVMEM_LINEAR`) are printed and checked in their place,
//! - a single wrong byte fails the run, not only the twenty-first,
//! - an unknown flag, and a number that is none, are refused,
//! - lines longer than the memory, or of more chunks than a send or a packet can be made of, are sent in pieces,
//! - every failure ends with 1; and it takes `-h`.

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
use devmem_linux::netdev::{KernelRxQueueId, Netdev};

use flags::{Flags, HELP, NcdevmemPlan};
use tool::output::{Exit, Failure, print_line, say};

/// The name that makes this program it, and that its messages begin with.
pub const NAME: &str = "ncdevmem";

/// Returns the flags if the program was called by that name. The selftests' scripts copy it to other machines as
/// `xyzncdevmem`.
pub fn flags_by_name(mut args: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let program = args.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    name.ends_with(NAME).then(|| args.collect())
}

/// Does what the flags say.
///
/// # Errors
///
/// One line; all of them end with 1, as its callers expect.
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

/// Counts the RX queues, by the channels.
fn rx_queue_count(interface: &str) -> Result<u32, Failure> {
    let channels = Ethtool::by_name(interface).and_then(|mut ethtool| ethtool.channels());
    match channels {
        Ok(channels) => Ok(channels.rx_queues()),
        Err(error) => Err(Failure::failed(format!(
            "couldn't detect number of queues: {error}"
        ))),
    }
}

/// The queues of a bind request.
fn queue_ids(first: u32, count: u32) -> Vec<KernelRxQueueId> {
    (first..first.saturating_add(count))
        .map(KernelRxQueueId)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_it_is_called_by_decides() {
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
