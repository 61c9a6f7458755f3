//! What the reports of several commands share: the memory and the link.

use std::fmt;
use std::net::IpAddr;

use devmem_tcp::{Dmabuf, Impairment, Netdev};
use serde::Serialize;

use tool::spread::Spread;
use tool::undelivered::Undelivered;

/// The memory and the link of a transfer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryAndLink {
    /// Bytes of bound memory.
    pub mem_bytes: u64,
    /// Its pages: huge, transparent-huge or base.
    pub page_kind: String,
    /// Largest IP packet.
    pub mtu: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// Impairments of the link.
    pub impair: String,
    /// How the received packets were spread over the shards of the NIC.
    #[serde(flatten)]
    pub spread: Spread,
    /// Packets that our NIC and stack did not deliver, by reason.
    #[serde(flatten)]
    pub undelivered: Undelivered,
}

impl MemoryAndLink {
    /// Returns those of a transfer with `nic` to which no memory was bound.
    pub fn unbound(nic: &Netdev, address: IpAddr) -> Self {
        Self {
            mem_bytes: 0,
            page_kind: "none".to_owned(),
            mtu: nic.mtu(),
            ip_version: if address.is_ipv4() { 4 } else { 6 },
            impair: Impairment::default().to_string(),
            spread: Spread::of(nic),
            undelivered: Undelivered::of(nic.drops()),
        }
    }

    /// Returns those of a transfer with `nic` that has ended, between `memory` and an address of the version of `address`.
    pub fn of(nic: &Netdev, memory: &Dmabuf, address: IpAddr, impairment: Impairment) -> Self {
        Self {
            mem_bytes: memory.size() as u64,
            page_kind: memory.page_kind().to_string(),
            mtu: nic.mtu(),
            ip_version: if address.is_ipv4() { 4 } else { 6 },
            impair: impairment.to_string(),
            spread: Spread::of(nic),
            undelivered: Undelivered::of(nic.drops()),
        }
    }
}

impl fmt::Display for MemoryAndLink {
    /// Writes the last rows of a table: the shards, and what was not delivered.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.spread, self.undelivered)
    }
}
