//! Our user-space stack at the other end of a guest's wire, in separate processes.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::helper::Helper;
use serde::{Deserialize, Serialize};

use super::traffic::{self, Family};
use tool::output::Failure;

/// Address of our stack, in the network of the guest's only NIC.
pub const FAR_ADDRESS: [u8; 4] = [10, 77, 0, 9];
/// Port of our stack when it receives.
pub const FAR_PORT: u16 = 5201;
/// Period of the pattern that it verifies, as for `devmem-tcp recv -v`.
pub const PERIOD: u16 = 7;

/// Maximum time to wait for a process after the end of its guest.
const LIMIT: Duration = Duration::from_secs(20);

/// A program that the guest may request the host to start at the other end of its wire. The guest is not trusted: it
/// chooses one of these, and the host chooses the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Wish {
    /// Our stack sends a pattern to the guest.
    Send {
        /// The guest's port.
        port: NonZeroU16,
    },
    /// Our stack receives on [`FAR_PORT`] and checks the pattern of [`PERIOD`].
    Receive,
}

impl Wish {
    /// Returns the arguments of `devmem-tcp`. A sender sends `bytes`.
    fn arguments(self, bytes: u64) -> Vec<String> {
        match self {
            Self::Send { port } => {
                let guest = traffic::address(0, Family::V4).to_string();
                let (port, bytes) = (port.to_string(), bytes.to_string());
                ["send", &guest, &port, "--bytes", &bytes, "--json"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Self::Receive => {
                let (port, period) = (FAR_PORT.to_string(), PERIOD.to_string());
                ["recv", "-l", "-p", &port, "-v", &period, "--json"]
                    .map(str::to_owned)
                    .to_vec()
            }
        }
    }
}

/// The processes at the other end, one after another.
#[derive(Debug)]
pub struct FarEnd {
    wire: PathBuf,
    /// Bytes of a sent stream.
    bytes: u64,
    /// Maximum number of processes for one guest.
    max: usize,
    children: Vec<(String, Helper)>,
}

impl FarEnd {
    /// Creates it for the socket `wire`, on which a NIC listens. It sends streams of `bytes`, and starts at most `max`
    /// processes.
    pub fn new(wire: &Path, bytes: u64, max: usize) -> Self {
        Self {
            wire: wire.to_owned(),
            bytes,
            max,
            children: Vec::new(),
        }
    }

    /// Starts `devmem-tcp` as requested, after the previous process has ended, because there is only one wire.
    ///
    /// # Errors
    ///
    /// It cannot be started, or the guest has already had as many processes as it has rows.
    pub fn start(&mut self, wish: Wish) -> Result<(), Failure> {
        if self.children.len() >= self.max {
            return Err(Failure::failed(format!(
                "the guest requests our stack more often than it has rows ({})",
                self.max
            )));
        }
        let arguments = wish.arguments(self.bytes);
        if let Some((_, last)) = self.children.last_mut() {
            wait(last);
        }
        let address = std::net::IpAddr::from(FAR_ADDRESS);
        let mut command = Helper::this_program();
        command.args(&arguments).arg("--backend").arg("user");
        command
            .arg("--link")
            .arg(format!("unix:{}", self.wire.display()));
        command.arg("--addr").arg(format!("{address}/24"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = Helper::start(&mut command).context("start our stack")?;
        self.children.push((arguments.join(" "), child));
        Ok(())
    }

    /// Waits for all processes. Returns for each its arguments, whether it succeeded, and its output: JSON, or an error.
    pub fn finish(self) -> Vec<(String, bool, String)> {
        let finish = |(what, mut child): (String, Helper)| {
            let ended = wait(&mut child);
            let output = child.wait_with_output();
            let (ok, said) = match output {
                Ok(output) if output.status.success() => (ended, output.stdout),
                Ok(output) => (false, output.stderr),
                Err(error) => (false, error.to_string().into_bytes()),
            };
            (what, ok, String::from_utf8_lossy(&said).trim().to_owned())
        };
        self.children.into_iter().map(finish).collect()
    }
}

/// Waits for a process, and kills it after a time limit. Returns whether it ended by itself.
fn wait(child: &mut Helper) -> bool {
    let ended = matches!(child.wait_at_most(LIMIT), Ok(Some(_)));
    if !ended {
        child.kill();
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_no_more_processes_than_it_has_rows() {
        let mut none = FarEnd::new(Path::new("/nowhere"), 1, 0);
        let refused = none.start(Wish::Receive).unwrap_err();
        assert!(refused.to_string().contains("more often"), "{refused}");
        assert!(none.children.is_empty());
    }

    #[test]
    fn the_host_chooses_the_arguments() {
        let port = NonZeroU16::new(4000).unwrap();
        let send = Wish::Send { port }.arguments(1 << 20);
        assert_eq!(send.join(" "), "send 10.77.0.1 4000 --bytes 1048576 --json");
        let receive = Wish::Receive.arguments(1 << 20);
        assert_eq!(receive.join(" "), "recv -l -p 5201 -v 7 --json");
    }
}
