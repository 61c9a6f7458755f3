//! What the kernel says of an interface.

/// Facts about an interface, reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Whether its frames have an Ethernet header.
    pub ethernet: bool,
    /// The link-layer address, if the interface has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Super-packets of as many bytes or more are cut by the kernel before it passes them to the interface; IPv6, and IPv4 before
    /// Linux 6.3. `None` before Linux 4.16.
    pub gso_max_size: Option<u32>,
    /// The same of IPv4; `None` if the kernel does not support more than 65,535 (Linux before 6.3).
    pub gso_ipv4_max_size: Option<u32>,
    /// Bytes up to which the kernel merges received packets (GRO); IPv6, and IPv4 before Linux 6.3. `None` before Linux 5.19.
    pub gro_max_size: Option<u32>,
    /// The same of IPv4; `None` before Linux 6.3.
    pub gro_ipv4_max_size: Option<u32>,
}

/// The most that Linux permits for these limits, in bytes (linux include/linux/netdevice.h `GSO_MAX_SIZE`).
pub const GSO_MAX_SIZE: u32 = 8 * 65_535;

/// The default of these limits, in bytes (linux include/linux/netdevice.h `GSO_LEGACY_MAX_SIZE`).
pub(crate) const LEGACY_GSO_MAX_SIZE: u32 = 65_536;

/// Bytes of the longest Ethernet header, with a tag.
const ETHERNET_LEN: u32 = 18;

impl InterfaceFacts {
    /// Returns the bytes up to which the kernel merges received packets (GRO), of both families.
    pub fn max_merged_packet(&self) -> u32 {
        of_both(self.gro_max_size, self.gro_ipv4_max_size)
    }

    /// Returns the bytes from which on the kernel cuts super-packets before it passes them to the interface, of both families.
    pub(crate) fn gso_limit(&self) -> u32 {
        of_both(self.gso_max_size, self.gso_ipv4_max_size)
    }

    /// Returns the bytes of the longest IP packet that the kernel passes to the interface as a super-packet, of both families.
    pub fn max_super_packet(&self) -> u32 {
        // linux v6.18 net/core/dev.c `gso_features_check`: the length with Ethernet header must be smaller.
        self.gso_limit().saturating_sub(ETHERNET_LEN + 1)
    }
}

/// Returns the smaller one of the limits of two address families.
fn of_both(v6: Option<u32>, v4: Option<u32>) -> u32 {
    let limit = |limit: Option<u32>| limit.unwrap_or(LEGACY_GSO_MAX_SIZE);
    limit(v6).min(limit(v4))
}
