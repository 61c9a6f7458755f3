//! The NICs of a guest: one `devmem-tcp nic` for each, connected by wires.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::helper::Helper;

use tool::output::Failure;

/// Maximum time until a NIC server has created its socket.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Maximum time until the NIC servers end after a signal; after it they are killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Largest MTU that a guest may set.
pub const MAX_MTU: u16 = 9000;
const LOOK: Duration = Duration::from_millis(2);

/// The NICs of a guest.
#[derive(Clone, Debug, Default)]
pub struct NicsPlan {
    /// Number of NICs; two are connected to each other.
    pub count: usize,
    /// RX and TX queue pairs of each.
    pub queues: u16,
    /// Largest IP packet.
    pub mtu: u16,
    /// Impairments of the wires.
    pub impair: Option<String>,
    /// Write every packet of the first NIC to this file.
    pub capture: Option<PathBuf>,
    /// The other end of the only NIC's wire, as `devmem-tcp nic --wire` takes it.
    pub wire: Option<String>,
    /// More options for every server.
    pub options: Vec<String>,
    /// A program other than this one to serve them.
    pub program: Option<PathBuf>,
}

impl NicsPlan {
    /// Returns the sockets of the servers.
    pub fn sockets(&self, folder: &Path) -> Vec<PathBuf> {
        (0..self.count)
            .map(|index| folder.join(format!("nic{index}")))
            .collect()
    }

    /// Returns the `--wire` argument of NIC `index`: pairs are connected; the last of an odd number has no peer.
    fn wire(&self, index: usize, folder: &Path) -> String {
        let pair = folder
            .join(format!("wire{}", index / 2))
            .to_string_lossy()
            .into_owned();
        match (&self.wire, index % 2) {
            (Some(wire), _) if self.count == 1 => wire.clone(),
            (_, 0) => format!("unix-listen:{pair}"),
            _ => format!("unix:{pair}"),
        }
    }
}

/// The running servers.
#[derive(Debug, Default)]
pub struct NicServers {
    children: Vec<(Helper, PathBuf)>,
}

impl NicServers {
    /// Starts the servers and waits until each has created its socket.
    ///
    /// # Errors
    ///
    /// A server did not start; the error has its output.
    pub fn start(plan: &NicsPlan, folder: &Path) -> Result<Self, Failure> {
        let mut servers = Self::default();
        for (index, socket) in plan.sockets(folder).into_iter().enumerate() {
            let said = folder.join(format!("nic{index}.log"));
            let mut command = match &plan.program {
                Some(program) => Command::new(program),
                None => Helper::this_program(),
            };
            command
                .arg("nic")
                .arg("--socket")
                .arg(&socket)
                .arg("--wire")
                .arg(plan.wire(index, folder));
            command.args([
                "--queues",
                &plan.queues.to_string(),
                "--mac",
                &mac_text(super::job::mac(index)),
            ]);
            command.args([
                "--mtu",
                &plan.mtu.to_string(),
                "--max-mtu",
                &MAX_MTU.to_string(),
            ]);
            if let Some(impair) = &plan.impair {
                command.args(["--impair", impair]);
            }
            if let Some(capture) = plan.capture.as_ref().filter(|_| index == 0) {
                command.arg("--capture").arg(capture);
            }
            command.args(&plan.options);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&said)?);
            let child = Helper::start(&mut command).context("start a NIC server")?;
            servers.children.push((child, said));
            servers.wait_for(&socket)?;
        }
        Ok(servers)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<(), Failure> {
        let start = Instant::now();
        while !socket.exists() {
            if let Some(said) = self.ended() {
                return Err(Failure::failed(said));
            }
            if start.elapsed() > START_LIMIT {
                return Err(Failure::failed(format!(
                    "a NIC server did not create {}",
                    socket.display()
                )));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Returns a message if a server has ended.
    pub fn ended(&mut self) -> Option<String> {
        for (index, (child, said)) in self.children.iter_mut().enumerate() {
            if let Ok(Some(status)) = child.ended() {
                let said = std::fs::read_to_string(said).unwrap_or_default();
                return Some(format!(
                    "the server of NIC {index} ended ({status}): {}",
                    said.trim()
                ));
            }
        }
        None
    }

    /// Ends the servers: by a signal, and by force after a time.
    pub fn stop(&mut self) {
        for (child, _) in &self.children {
            child.terminate();
        }
        let start = Instant::now();
        for (child, _) in &mut self.children {
            // A server that has not ended by then is killed on drop.
            let _ended = child.wait_at_most(STOP_LIMIT.saturating_sub(start.elapsed()));
        }
        self.children.clear();
    }
}

impl Drop for NicServers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nics_share_a_wire_and_a_single_one_can_have_another_peer() {
        let folder = Path::new("/f");
        let two = NicsPlan {
            count: 2,
            ..NicsPlan::default()
        };
        assert_eq!(two.wire(0, folder), "unix-listen:/f/wire0");
        assert_eq!(two.wire(1, folder), "unix:/f/wire0");
        let one = NicsPlan {
            count: 1,
            wire: Some("tap:x".to_owned()),
            ..NicsPlan::default()
        };
        assert_eq!(one.wire(0, folder), "tap:x");
    }

    #[test]
    fn a_mac_address_is_written_with_colons() {
        assert_eq!(mac_text([2, 0x64, 0, 0xab, 0, 1]), "02:64:00:ab:00:01");
    }
}
