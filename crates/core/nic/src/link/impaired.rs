//! A link with impairments.

use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;

use ::wire::{ChecksumState, Instant, RxHeaders, fill_checksum};
use netmem::{DmaPort, FragList, MemoryProvider};

use super::conditioner::{Conditioner, ImpairedStats};
use super::cut::FrameCutter;
use super::definition::{Link, LinkCaps, LinkState, MAX_FRAME_LEN, MAX_PACKET_LEN};
use super::frames::{HeaderBuf, LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
use super::impairment::Impairment;
use crate::drops::DropReason;
use crate::packet::RxPacket;

/// Maximum number of frames received from the inner link in one call, so that a flood cannot keep a poll busy.
const RX_BATCH_FRAMES: usize = 64;

/// A link with an impairment (loss, delay and others) in each direction.
///
/// It works on single frames with complete checksums: super-packets of the inner link are cut, and none are sent on it.
pub struct Impaired {
    inner: Box<dyn Link>,
    rx: Conditioner,
    tx: Conditioner,
    /// Buffers that the inner link scatters into.
    head: HeaderBuf,
    spill: Box<[u8]>,
    /// The frame between the inner link and the conditioner.
    incoming: Vec<u8>,
    /// The frame between the conditioner and the inner link.
    outgoing: Vec<u8>,
    /// `outgoing` is a frame that waits until the inner link has room.
    waiting: bool,
    /// Frames that the inner link refused when they were due.
    refused: u64,
    nothing: FragList,
    /// Payload in memory of the inner link's sender; empty in between.
    borrowed: FragList,
    gathered: Vec<u8>,
    cutter: FrameCutter,
}

impl Impaired {
    /// Returns a link over `inner` with one impairment for each direction.
    pub fn new(inner: Box<dyn Link>, rx: Impairment, tx: Impairment) -> Self {
        Self {
            rx: Conditioner::new(rx),
            tx: Conditioner::new(tx),
            head: HeaderBuf::new(0),
            spill: vec![0; inner.caps().max_rx_frame() + 1].into_boxed_slice(),
            inner,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            waiting: false,
            refused: 0,
            nothing: FragList::default(),
            borrowed: FragList::default(),
            gathered: Vec::new(),
            cutter: FrameCutter::default(),
        }
    }

    /// Returns a link over `inner` with the same impairment in both directions, with different seeds.
    pub fn both(inner: Box<dyn Link>, impairment: Impairment) -> Self {
        let tx = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        Self::new(inner, impairment, tx)
    }

    /// Moves frames from the inner link to the conditioner, up to one that has to be dropped; returns the reason for that.
    fn take_in(&mut self, port: &DmaPort, now: Instant) -> io::Result<Option<DropReason>> {
        for _ in 0..RX_BATCH_FRAMES {
            let mut posted = Posted {
                head: &mut self.head,
                predicted_header: 0,
                spans: &[],
                spill: &mut self.spill,
                frame: &mut self.incoming,
                borrowed: &mut self.borrowed,
                port,
            };
            let received = self.inner.receive(&mut posted, now)?;
            if let LinkReceived::Borrowed { head_len, .. } = received {
                posted.gather_borrowed(head_len, &mut self.gathered);
                std::mem::swap(&mut self.gathered, &mut self.incoming);
                self.borrowed = FragList::default();
            }
            let (frame, meta) = match received {
                LinkReceived::None => break,
                LinkReceived::Dropped(reason) => return Ok(Some(reason)),
                // A frame as long as no cable carries it.
                LinkReceived::Borrowed { frame_len, .. } if frame_len > MAX_FRAME_LEN => {
                    return Ok(Some(DropReason::RxOversize));
                }
                LinkReceived::Frame { meta } | LinkReceived::Borrowed { meta, .. } => {
                    (&mut self.incoming[..], meta)
                }
                LinkReceived::Scattered { frame_len, meta } => {
                    let len = frame_len.min(self.spill.len());
                    (&mut self.spill[..len], meta)
                }
            };
            if let Some(size) = NonZeroU16::new(meta.gso_size) {
                let rx = &mut self.rx;
                let cut = self
                    .cutter
                    .cut(frame, size, |segment| rx.push(segment, now));
                if cut.is_ok() {
                    continue;
                }
                // The NIC finds what is wrong with it.
            }
            if matches!(meta.checksum, ChecksumState::Partial(_)) {
                complete_checksum(frame);
            }
            self.rx.push(frame, now);
        }
        Ok(None)
    }

    /// Sends frames that are due on the inner link.
    fn let_out(&mut self, port: &DmaPort, now: Instant) {
        loop {
            if !self.waiting && !self.tx.pop(now, &mut self.outgoing) {
                return;
            }
            let frame = TxFrame {
                head: &self.outgoing,
                payload: &self.nothing,
                checksum: None,
                gso_size: 0,
                port,
            };
            match self.inner.send(&frame, now) {
                Ok(LinkSent::Busy) => {
                    self.waiting = true;
                    return;
                }
                Ok(LinkSent::Done) => self.waiting = false,
                Ok(LinkSent::TooLong) | Err(_) => {
                    self.waiting = false;
                    self.refused += 1;
                }
            }
        }
    }
}

/// Completes the partial TCP or UDP checksum of a frame, so that later corruption of the frame can be detected. Leaves
/// other frames unchanged.
pub fn complete_checksum(frame: &mut [u8]) {
    let Ok(headers) = RxHeaders::parse(frame, frame.len()) else {
        return;
    };
    let Some(what) = headers.tx_checksum() else {
        return;
    };
    if let Some(packet) = frame.get_mut(..headers.header_len + headers.payload_len) {
        fill_checksum(packet, 0, what);
    }
}

impl Link for Impaired {
    fn caps(&self) -> LinkCaps {
        // Without checksum offload the NIC completes every checksum before it sends.
        LinkCaps {
            name: "impaired",
            tso: false,
            max_super_packet: MAX_PACKET_LEN,
            max_rx_packet: MAX_PACKET_LEN,
            tx_checksum: false,
            borrows: false,
            ..self.inner.caps()
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.let_out(posted.port, now);
        let taken = self.take_in(posted.port, now);
        // Delayed frames arrive even if the link has failed meanwhile.
        if self.rx.pop(now, posted.frame) {
            let meta = VnetMeta::default();
            return Ok(LinkReceived::Frame { meta });
        }
        taken.map(|dropped| dropped.map_or(LinkReceived::None, LinkReceived::Dropped))
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        if self.inner.state() != LinkState::Up {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        // `incoming` is free between two calls.
        frame.copy_to(&mut self.incoming);
        self.tx.push(&self.incoming, now);
        self.let_out(frame.port, now);
        Ok(LinkSent::Done)
    }

    fn inner(&self) -> Option<&dyn Link> {
        Some(&*self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut *self.inner)
    }

    fn tells_of_room(&self) -> bool {
        // Frames for the inner link wait here, not in the NIC.
        false
    }

    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        // Frames are copied.
        None
    }

    fn is_near(&self) -> bool {
        // They come late.
        false
    }

    fn accepted(&mut self, _packet: &RxPacket) {
        // It is none of the frames that the inner link has received.
    }

    fn next_due(&self) -> Option<Instant> {
        // If the inner link does not report room, the delayed frame has to be retried.
        let late = (self.waiting && !self.inner.tells_of_room()).then_some(Instant::ZERO);
        // Further frames have to wait for the delayed one.
        let tx = self.tx.next_due().filter(|_| !self.waiting);
        [late, self.rx.next_due(), tx, self.inner.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn state(&self) -> LinkState {
        match self.inner.state() {
            // Delayed frames still arrive.
            LinkState::Gone if !self.rx.is_empty() => LinkState::Down,
            state => state,
        }
    }

    fn impairment_stats(&self) -> Option<ImpairedStats> {
        let (rx, tx) = (self.rx.stats(), self.tx.stats());
        Some(ImpairedStats {
            rx,
            tx,
            tx_refused: self.refused,
        })
    }
}
