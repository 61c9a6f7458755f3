//! Packets that this NIC sends to itself.
//!
//! The kernel sends packets for its own addresses through the loopback device, which has no DMA and so cannot carry
//! payload in device memory. This NIC receives such a packet itself: the payload stays in the sender's memory until it is
//! copied, as by DMA, to the memory of the queue that steering selects. No segments are cut and no checksum is computed,
//! because the packet does not leave the process.

use std::collections::VecDeque;

use netmem::Payload;
use wire::{EthernetHeader, MacAddr};

use crate::arrival::{Arrival, Body};
use crate::link::{BorrowedUntil, HeaderBuf, VnetMeta};
use crate::packet::{Origin, TxPacket};

/// Queue of packets from this NIC to itself, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LoopQueue {
    packets: VecDeque<TxPacket>,
    had_turn: bool,
}

impl LoopQueue {
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn push(&mut self, packet: TxPacket) {
        self.packets.push_back(packet);
    }

    pub(crate) fn pop(&mut self) -> Option<TxPacket> {
        self.packets.pop_front()
    }

    /// Returns whether this queue is read before the link this time: each second time, while it has packets.
    pub(crate) fn take_turn(&mut self) -> bool {
        self.had_turn = !self.had_turn && !self.packets.is_empty();
        self.had_turn
    }
}

/// Returns whether a packet is from the NIC with the address `mac` to itself.
pub(crate) fn is_own(mac: MacAddr, packet: &TxPacket) -> bool {
    EthernetHeader::parse(packet.head.as_slice())
        .is_ok_and(|ethernet| ethernet.dst == mac && ethernet.src == mac)
}

impl TxPacket {
    /// Returns the packet as a received frame, its headers in `buffer`.
    pub(crate) fn arrive(self, buffer: &mut HeaderBuf) -> Arrival {
        let len = self.frame_len();
        let TxPacket {
            head,
            payload,
            checksum,
            gso_size,
        } = self;
        let head = head.as_slice();
        buffer.write(0, head);
        let is_super = gso_size > 0 && payload.len() > usize::from(gso_size);
        Arrival {
            len,
            body: Body::Borrowed {
                head_len: head.len(),
                frags: payload,
                until: BorrowedUntil::Copied,
            },
            meta: VnetMeta {
                gso_size: if is_super { gso_size } else { 0 },
                checksum: checksum.into(),
            },
            origin: Origin::Loop,
        }
    }
}
