//! A link with frames that a stack drops: traffic without a peer, for tests of the threads that poll.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nic::{Link, LinkCaps, LinkReceived, LinkSent, MAX_PACKET_LEN, Posted, TxFrame};
use wire::Instant;

/// A link that has a number of frames of a protocol that no stack knows, and calls a function whenever a thread asks it for one.
pub struct Flood {
    left: Arc<AtomicU64>,
    on_look: Box<dyn FnMut() + Send>,
}

impl Flood {
    /// Returns a link with `left` frames; each that is received is subtracted. `on_look` is called for each attempt to receive one.
    pub fn new(left: &Arc<AtomicU64>, on_look: impl FnMut() + Send + 'static) -> Self {
        Self {
            left: Arc::clone(left),
            on_look: Box::new(on_look),
        }
    }
}

impl Link for Flood {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "flood",
            mtu: 1500,
            tso: false,
            max_super_packet: MAX_PACKET_LEN,
            max_rx_packet: MAX_PACKET_LEN,
            tx_checksum: false,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        (self.on_look)();
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Ok(LinkReceived::None);
        }
        self.left.store(left - 1, Ordering::Relaxed);
        posted.frame.clear();
        posted.frame.resize(60, 0xff);
        // An EtherType for local experiments (IEEE 802).
        posted.frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
        let meta = Default::default();
        Ok(LinkReceived::Frame { meta })
    }

    fn send(&mut self, _frame: &TxFrame<'_>, _now: Instant) -> io::Result<LinkSent> {
        Ok(LinkSent::Done)
    }
}
