//! The link between the stack and a script, which injects IP packets and takes those that leave.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nic::{Link, LinkCaps, LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
use wire::{Checksum, EtherType, EthernetHeader, Instant, MacAddr, TxChecksum};

/// The script's hardware address.
pub(crate) const SCRIPT_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0xfe]);
/// The stack's.
pub(crate) const STACK_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 1]);

/// Most packets that wait for the script to take them; with more, the link is busy.
const MAX_WAITING: usize = 65_536;

/// Version nibble of an IP packet.
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// A packet that left the stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sniffed {
    /// IP header and all that follows.
    pub(crate) packet: Vec<u8>,
    /// When it left.
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
struct Lanes {
    to_stack: VecDeque<Vec<u8>>,
    from_stack: VecDeque<Sniffed>,
}

/// The link; clones are handles of the same link.
#[derive(Debug, Clone)]
pub(crate) struct ScriptLink {
    lanes: Arc<Mutex<Lanes>>,
    mtu: u16,
    tso: bool,
}

impl ScriptLink {
    pub(crate) fn new(mtu: u16, tso: bool) -> Self {
        Self {
            lanes: Arc::default(),
            mtu,
            tso,
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // The queues are consistent between any two operations on them.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Injects a packet; false if it is not an IP packet.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let ethertype = match packet.first().map(|byte| byte >> 4) {
            Some(IPV4) => EtherType::IPV4,
            Some(IPV6) => EtherType::IPV6,
            _ => return false,
        };
        let mut frame = vec![0; EthernetHeader::LEN];
        let header = EthernetHeader {
            dst: STACK_MAC,
            src: SCRIPT_MAC,
            ethertype,
            vlan: None,
        };
        header.emit(&mut frame);
        frame.extend_from_slice(packet);
        self.lanes().to_stack.push_back(frame);
        true
    }

    /// Takes the oldest packet that left.
    pub(crate) fn sniff(&self) -> Option<Sniffed> {
        self.lanes().from_stack.pop_front()
    }
}

impl Link for ScriptLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "packetdrill",
            mtu: self.mtu,
            tso: self.tso,
            max_super_packet: nic::MAX_PACKET_LEN,
            max_rx_packet: nic::MAX_PACKET_LEN,
            tx_checksum: true,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _: Instant) -> io::Result<LinkReceived> {
        let Some(frame) = self.lanes().to_stack.pop_front() else {
            return Ok(LinkReceived::None);
        };
        *posted.frame = frame;
        Ok(LinkReceived::Frame {
            meta: VnetMeta::default(),
        })
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        let mut lanes = self.lanes();
        if lanes.from_stack.len() >= MAX_WAITING {
            return Ok(LinkSent::Busy);
        }
        let mut bytes = Vec::with_capacity(frame.frame_len());
        frame.copy_to(&mut bytes);
        if let Some(what) = frame.checksum {
            finish_checksum(&mut bytes, what);
        }
        let packet = bytes.split_off(EthernetHeader::LEN.min(bytes.len()));
        lanes.from_stack.push_back(Sniffed { packet, at: now });
        Ok(LinkSent::Done)
    }
}

/// Finishes a checksum whose field holds the pseudo-header's sum, of a whole super-segment if it is one.
fn finish_checksum(frame: &mut [u8], what: TxChecksum) {
    let start = usize::from(what.start);
    let Some(transport) = frame.get_mut(start..) else {
        return;
    };
    let mut sum = Checksum::new();
    sum.add_bytes(transport);
    let at = usize::from(what.offset);
    if let Some(field) = transport.get_mut(at..at + 2) {
        field.copy_from_slice(&sum.finish().to_be_bytes());
    }
}
