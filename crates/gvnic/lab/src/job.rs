//! The job of a guest: the host writes it into the initramfs, process 1 reads it there.

use std::net::IpAddr;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Path of the job in the guest.
pub const JOB_PATH: &str = "/lab/job.json";
/// Path of our program in the guest.
pub const TOOL_PATH: &str = "/bin/devmem-tcp";
/// Path of process 1 in the guest: a script that starts the tool as [`crate::guest`].
pub const INIT_PATH: &str = "/init";
/// The name of the control port; /sys/class/virtio-ports shows it.
pub const CONTROL_PORT: &str = "devmem-tcp.lab";
/// Network namespace of the first of two NICs in the guest.
pub const PEER_NETNS: &str = "peer";

/// A guest's job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables, in addition to the default ones.
    pub env: Vec<(String, String)>,
    /// Kernel modules to load, in this order: paths in the guest.
    pub modules: Vec<String>,
    /// Files to send back.
    pub get: Vec<String>,
    /// The NICs, in PCI order.
    pub nics: Vec<GuestNic>,
    /// Folders of the host to mount.
    pub shares: Vec<SharedFolder>,
    /// The kernel starts with one processor; process 1 starts the others.
    pub starts_processors: bool,
    /// The host passes its standard input to the command.
    pub stdin: bool,
    /// The command is an interactive shell: it uses the console, not pipes.
    pub interactive: bool,
}

impl Job {
    /// Reads the job of this guest.
    ///
    /// # Errors
    ///
    /// There is none: this is not a guest of the lab.
    pub fn read() -> anyhow::Result<Self> {
        serde_json::from_slice(&std::fs::read(JOB_PATH)?).context("read the job")
    }
}

/// A folder of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFolder {
    /// Name of the file system's device.
    pub tag: String,
    /// Where it is mounted.
    pub place: String,
}

/// Settings of one NIC in the guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuestNic {
    /// MAC address, by which the guest identifies the NIC.
    pub mac: [u8; 6],
    /// Interface name to set.
    pub name: String,
    /// Move it to [`PEER_NETNS`].
    pub peer: bool,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet.
    pub mtu: u16,
}

/// Returns the locally administered MAC address of NIC `index`.
pub fn mac(index: usize) -> [u8; 6] {
    [0x02, 0x64, 0x6d, 0x00, 0x00, (index % 0xff) as u8 + 1]
}

impl GuestNic {
    /// Returns NIC `index` of the topology in README: the first of two NICs is in the namespace `peer`.
    pub fn standard(index: u8, count: usize, mtu: u16) -> Self {
        let host = index.saturating_add(1);
        Self {
            mac: mac(usize::from(index)),
            name: format!("eth{index}"),
            peer: index == 0 && count > 1,
            addresses: vec![
                (IpAddr::from([10, 77, 0, host]), 24),
                (
                    IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)]),
                    64,
                ),
            ],
            mtu,
        }
    }

    /// Returns the only NIC of a guest, `eth0`, with the addresses of NIC `number`.
    pub fn alone(number: u8, mtu: u16) -> Self {
        Self {
            name: "eth0".to_owned(),
            ..Self::standard(number, 1, mtu)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nics_of_two_guests_have_one_name_and_two_addresses() {
        let [first, second] = [0, 1].map(|number| GuestNic::alone(number, 1500));
        assert_eq!([&*first.name, &*second.name], ["eth0", "eth0"]);
        assert_ne!(first.mac, second.mac);
        assert_eq!(first.addresses[0].0, IpAddr::from([10, 77, 0, 1]));
        assert_eq!(second.addresses[0].0, IpAddr::from([10, 77, 0, 2]));
        assert!(!first.peer && !second.peer);
    }
}
