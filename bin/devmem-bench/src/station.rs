//! The station on a TAP that stands for the stack in rows without one: its address and its packets.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use nic::VnetFd;
use wire::{
    ArpPacket, ChecksumState, EtherType, EthernetHeader, IpRepr, MAX_HEADER_LEN, MacAddr,
    TcpHeader, VnetHeader, emit_arp_frame, emit_tcp_frame_headers, tcp_tx_checksum,
};

use crate::sender::RECEIVER;

/// Hardware address of the station.
pub const MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0x77, 0x02]);

/// Writes the headers of a segment with `payload_len` bytes for `address`, which has the hardware address `dst`, to the
/// start of `head`. Returns their length, and that the TCP checksum is partial; the kernel does not
/// complete it for packets that it receives itself.
pub fn emit_segment(
    dst: MacAddr,
    address: Ipv4Addr,
    tcp: &TcpHeader,
    payload_len: usize,
    head: &mut [u8],
) -> (usize, ChecksumState) {
    let ethernet = ethernet(dst, EtherType::IPV4);
    let ip = IpRepr::v4(RECEIVER, address);
    let len = emit_tcp_frame_headers(&ethernet, &ip, tcp, payload_len, head);
    (len, ChecksumState::Partial(tcp_tx_checksum(len, tcp)))
}

/// Sends an ARP packet to `dst`.
pub fn send_arp(tap: &VnetFd, arp: &ArpPacket, dst: MacAddr) -> Result<()> {
    let mut frame = [0; MAX_HEADER_LEN];
    let len = emit_arp_frame(&ethernet(dst, EtherType::ARP), arp, &mut frame);
    tap.write(VnetHeader::default(), &frame[..len])
        .context("write to the TAP")
}

fn ethernet(dst: MacAddr, ethertype: EtherType) -> EthernetHeader {
    EthernetHeader {
        dst,
        src: MAC,
        ethertype,
        vlan: None,
    }
}
