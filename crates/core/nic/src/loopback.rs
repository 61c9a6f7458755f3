//! Packets that this NIC sends to itself.
//!
//! The kernel sends what is for one of its own addresses through a device without DMA, where payload in device
//! memory cannot go. This NIC takes such a packet back in: its payload lies in its sender's memory until it is
//! copied, memory to memory as DMA would, to the memory of the queue that steering selects. It is neither
//! segmented nor summed on the way, for nothing on the way could harm it.

use std::collections::VecDeque;

use netmem::Payload;
use wire::{EthernetHeader, MacAddr};

use crate::link::VnetMeta;
use crate::packet::TxPacket;
use crate::place::{Landed, Place, RxBuffers};

/// Where the next received packet is taken from first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Turn {
    /// The packets that this NIC sent to itself.
    Loop,
    /// The link.
    #[default]
    Link,
}

/// Packets on their way from this NIC to itself, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LoopQueue {
    packets: VecDeque<TxPacket>,
    /// The turn that was last.
    last: Turn,
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

    /// Begins a turn and returns which one it is: this queue's after one of the link's, if it has packets, else the
    /// link's.
    pub(crate) fn take_turn(&mut self) -> Turn {
        self.last = match self.last {
            Turn::Link if !self.packets.is_empty() => Turn::Loop,
            Turn::Link | Turn::Loop => Turn::Link,
        };
        self.last
    }
}

/// Returns whether a packet is from the NIC with the address `mac` to itself.
pub(crate) fn is_own(mac: MacAddr, packet: &TxPacket) -> bool {
    EthernetHeader::parse(packet.head.as_slice())
        .is_ok_and(|ethernet| ethernet.dst == mac && ethernet.src == mac)
}

impl TxPacket {
    /// Makes a packet land as if it had been received; its memory is free when the receive buffers let go of it.
    pub(crate) fn land(self, buffers: &mut RxBuffers) -> Landed {
        let frame_len = self.frame_len();
        let TxPacket {
            head,
            payload,
            checksum,
            gso_size,
        } = self;
        let head = head.as_slice();
        buffers.head.write(0, head);
        let is_super = gso_size > 0 && payload.len() > usize::from(gso_size);
        buffers.looped = payload;
        Landed {
            frame_len,
            meta: VnetMeta {
                gso_size: if is_super { gso_size } else { 0 },
                checksum: checksum.into(),
            },
            place: Place::Looped {
                head_len: head.len(),
            },
        }
    }
}
