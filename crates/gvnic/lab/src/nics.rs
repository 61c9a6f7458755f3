//! The NICs of a guest: one `devmem-tcp nic` for each, connected by wires.

use std::path::{Path, PathBuf};
use std::process::Command;

use tool::output::Failure;

use super::servers::Servers;

/// Largest MTU that a guest may set.
pub const MAX_MTU: u16 = 9000;

/// The NICs of a guest.
#[derive(Clone, Debug, Default)]
pub struct NicsPlan {
    /// Number of NICs; two are connected to each other.
    pub count: usize,
    /// Number of the first NIC, from which its addresses follow. The NIC of the second of two guests is number 1.
    pub first: u8,
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
    /// The tool that serves them.
    pub program: PathBuf,
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

    /// Starts one server for each NIC; the second NIC of a wire connects to the first.
    ///
    /// # Errors
    ///
    /// A server did not start; the error has its output.
    pub fn serve(&self, folder: &Path, servers: &mut Servers) -> Result<(), Failure> {
        for (index, socket) in self.sockets(folder).into_iter().enumerate() {
            let mut command = self.command(index, folder);
            command.arg("--socket").arg(&socket);
            servers.start(format!("the server of NIC {index}"), &mut command, &socket)?;
        }
        Ok(())
    }

    /// Returns the command that serves NIC `index`.
    fn command(&self, index: usize, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("nic")
            .arg("--wire")
            .arg(self.wire(index, folder));
        command.args([
            "--queues",
            &self.queues.to_string(),
            "--mac",
            &mac_text(super::job::mac(usize::from(self.first) + index)),
        ]);
        command.args([
            "--mtu",
            &self.mtu.to_string(),
            "--max-mtu",
            &MAX_MTU.to_string(),
        ]);
        if let Some(impair) = &self.impair {
            command.args(["--impair", impair]);
        }
        if let Some(capture) = self.capture.as_ref().filter(|_| index == 0) {
            command.arg("--capture").arg(capture);
        }
        command.args(&self.options);
        command
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
