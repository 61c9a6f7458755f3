//! What the guest is to do: written by the host into the initramfs, read there by process 1.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Where the guest finds its job.
pub const JOB_PATH: &str = "/lab/job.json";
/// Where our own program is in the guest.
pub const TOOL_PATH: &str = "/bin/devmem-tcp";
/// The same program under the name by which the kernel starts it as process 1.
pub const INIT_PATH: &str = "/init";
/// The same program under the name by which it runs the acceptance tests.
pub const ROWS_PATH: &str = "/lab/rows";
/// The name of the control port; /sys/class/virtio-ports shows it.
pub const CONTROL_PORT: &str = "devmem-tcp.lab";
/// The network namespace in the guest of the first NIC of two.
pub const PEER_NETNS: &str = "peer";

/// A guest's job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, beside the few variables that every command gets.
    pub env: Vec<(String, String)>,
    /// Kernel modules to load, in this order: paths in the guest.
    pub modules: Vec<String>,
    /// Files to send back.
    pub get: Vec<String>,
    /// The NICs, in PCI order.
    pub nics: Vec<GuestNic>,
    /// The host passes its standard input on to the command.
    pub stdin: bool,
    /// The command is a person's shell: it gets the console, not pipes.
    pub interactive: bool,
}

/// One NIC as the guest sets it up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GuestNic {
    /// Its MAC address: how the guest knows it.
    pub mac: [u8; 6],
    /// The name it gets.
    pub name: String,
    /// Move it to [`PEER_NETNS`].
    pub peer: bool,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet.
    pub mtu: u16,
}

/// The MAC address of the NIC number `index`: locally administered.
pub fn mac(index: usize) -> [u8; 6] {
    [0x02, 0x64, 0x6d, 0x00, 0x00, (index % 0xff) as u8 + 1]
}

impl GuestNic {
    /// The NIC number `index` of the topology that README shows: the first of two in the namespace `peer`.
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
}
