//! What the reports of several commands share: the memory and the link.

use std::net::IpAddr;

use devmem_tcp::{Dmabuf, Impairment, Netdev};
use serde::Serialize;

use tool::undelivered::Undelivered;

/// The memory and the link of a transfer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Circumstances {
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
    /// Packets that our NIC and stack did not deliver, by reason.
    #[serde(flatten)]
    pub undelivered: Undelivered,
}

impl Circumstances {
    /// Returns those of a transfer with `nic` that has ended, between `memory` and an address of the version of `address`.
    pub fn of(nic: &Netdev, memory: &Dmabuf, address: IpAddr, impairment: Impairment) -> Self {
        Self {
            mem_bytes: memory.size() as u64,
            page_kind: memory.page_kind().to_string(),
            mtu: nic.mtu(),
            ip_version: if address.is_ipv4() { 4 } else { 6 },
            impair: impairment.to_string(),
            undelivered: Undelivered::of(nic.drops()),
        }
    }
}
