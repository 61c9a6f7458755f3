//! A UNIX wire whose two ends share memory: payload crosses it by reference, and is copied once, by the receiving NIC.
//!
//! A frame is sent as its headers and a list of ranges of memory files ([`record`]). These are memory of this link, which no other
//! peer gets ([`own_memory`]), and memory that its program has marked as shared: the other end maps whole files, and so no other
//! file of this process reaches it. It has mapped these files for reading; its NIC reads the headers first, and then copies the payload to the memory of the right queue, or to the place that
//! the program chose. So no prediction is needed, and no byte is ever misplaced.
//!
//! The sender holds the memory of a frame until the receiver has let go of it ([`outgoing`]), as a NIC holds it until its
//! DMA is done; the receiver tells so in memory that the sender has mapped ([`notes`]). TCP holds it in addition until it is
//! acknowledged. All other payload is copied to memory of this link first. Short frames are sent whole.
//!
//! Records and short frames cross in memory, too, in one [`ring`] for each direction: while both ends look for packets by themselves, nothing on
//! the way is a system call. The socket remains for files, for long frames whose payload cannot be named, for waking an end that sleeps
//! ([`arrivals`]), and to show that the other end has left.
//!
//! What a peer can do: it may change bytes while they are copied, which changes the received bytes and nothing else (`mapped`
//! copies each byte once); name ranges or files that do not exist, which drops the frame; send files that may get shorter, or
//! anything else that is no record, which ends the wire; not let go of memory, which keeps at most [`limits::SLOTS`] frames
//! in use until the wire ends; write nonsense into its ring, which ends the wire, or change it while it is read, which changes what it has sent
//! and nothing else, because each packet is copied before it is parsed. Descriptors that come with a packet are closed in another thread unless they are memory files, because
//! closing may wait, and one call takes a few records of files only.

mod arrivals;
mod departures;
mod incoming;
mod limits;
mod notes;
mod outgoing;
mod own_memory;
mod record;
mod ring;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use ::wire::{Instant, VnetHeader};
use netmem::{FragList, MemoryProvider, Payload};
use peer_socket::{PeerFds, PeerSocket};
use rustix::io::Errno;

use super::definition::{Link, LinkCaps, MAX_FRAME_LEN};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::hello::WireHello;
use crate::drops::DropReason;
use arrivals::Arrivals;
use departures::{Departures, Full};
use incoming::Incoming;
use limits::{LONGEST_FRAME, SHARED_PACKET_LEN};
use notes::{OwnNotes, PeerNotes};
use outgoing::{Found, Outgoing};
use record::{FileRecord, FrameRecord, Packet};

/// Payload of fewer bytes is sent inline: a copy through the ring is cheaper than a reference.
const MIN_REFERENCE: usize = 2048;

/// Records about files that one call receives: each of them may map memory, which takes some tens of microseconds.
const RX_FILES: usize = 8;

/// One end of a wire with shared memory.
#[derive(Debug)]
pub(super) struct SharedWire {
    arrivals: Arrivals,
    departures: Departures,
    outgoing: Outgoing,
    incoming: Incoming,
    notes: OwnNotes,
    /// The notes of the other end, which sends them first of all.
    peer: Option<PeerNotes>,
    /// The packet that is being sent.
    record: Vec<u8>,
    hello: WireHello,
    /// When the NIC last looked for frames.
    last_look: Instant,
}

/// Returns the capabilities of a link with the hello `ours` over which payload crosses by reference.
pub(super) fn shared_caps(ours: WireHello) -> LinkCaps {
    LinkCaps {
        name: "unix",
        mtu: ours.mtu,
        tso: true,
        max_super_packet: SHARED_PACKET_LEN,
        max_rx_packet: SHARED_PACKET_LEN,
        tx_checksum: true,
        borrows: true,
    }
}

impl SharedWire {
    /// Returns the end of a wire over a connected, non-blocking socket whose other end shares memory, too.
    ///
    /// # Errors
    /// There is no memory for what both ends map.
    pub(super) fn new(socket: Arc<PeerSocket>, hello: WireHello) -> io::Result<Self> {
        let notes = OwnNotes::new()?;
        Ok(Self {
            arrivals: Arrivals::new(Arc::clone(&socket), &notes),
            departures: Departures::new(socket)?,
            outgoing: Outgoing::new()?,
            incoming: Incoming::new(),
            notes,
            peer: None,
            record: Vec::new(),
            hello,
            last_look: Instant::ZERO,
        })
    }

    /// Makes memory of `bytes` for the send queues of the stack, which the other end can read: also what was not sent yet.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn share_send_memory(&mut self, bytes: usize) -> io::Result<()> {
        self.outgoing.share_send_memory(bytes)
    }

    fn send_inline(&mut self, frame: &TxFrame<'_>) -> io::Result<LinkSent> {
        if frame.frame_len() > MAX_FRAME_LEN {
            return Ok(LinkSent::TooLong);
        }
        self.record.clear();
        self.record.resize(VnetHeader::LEN, 0);
        VnetHeader::new(frame.offload(), frame.head).emit(&mut self.record);
        self.record.extend_from_slice(frame.head);
        frame.copy_payload_to(&mut self.record);
        let sent = self
            .departures
            .send(&self.record, None, self.peer.as_ref())?;
        Ok(match sent {
            true => LinkSent::Done,
            false => LinkSent::Busy,
        })
    }

    /// Sends the headers of a frame, and where the other end finds `payload`.
    fn send_reference(
        &mut self,
        frame: &TxFrame<'_>,
        mut payload: FragList,
    ) -> io::Result<LinkSent> {
        let mut is_copy = false;
        loop {
            match self.outgoing.find(&payload, frame.port) {
                Found::Yes => break,
                Found::New(offer) => {
                    let (record, file) = (offer.record.emit(), offer.file.as_fd());
                    let peer = self.peer.as_ref();
                    if !self.departures.send(&record, Some(file), peer)? {
                        return Ok(LinkSent::Busy);
                    }
                    self.outgoing.offered(offer);
                }
                // Found out just now. The copy has a file that the other end accepts, if there is a place for it.
                Found::Private if !is_copy => match self.outgoing.stage(&payload, frame.port) {
                    Some(copy) => (payload, is_copy) = (copy, true),
                    None => return self.send_inline(frame),
                },
                Found::Private => return self.send_inline(frame),
            }
        }
        let Some(held) = self.outgoing.emit(frame, payload, &mut self.record) else {
            return self.send_inline(frame);
        };
        let sent = self.departures.send(&self.record, None, self.peer.as_ref());
        match sent {
            Ok(true) => {
                self.outgoing.sent(held);
                Ok(LinkSent::Done)
            }
            not_sent => {
                self.outgoing.not_sent(held);
                not_sent.map(|_| LinkSent::Busy)
            }
        }
    }

    /// Takes back all memory, and forgets that of the other end, which has left.
    pub(super) fn end(&mut self) {
        self.outgoing.end();
        self.incoming.end();
        self.peer = None;
    }

    /// Returns whether the last [`LinkSent::Busy`] was for lack of room in the socket, which becomes writable then.
    pub(super) fn is_socket_full(&self) -> bool {
        self.departures.full() == Full::Socket && !self.outgoing.is_full()
    }

    /// Sends what the other end has to know before the next frame. Returns false if there is no room for it.
    fn announce(&mut self) -> io::Result<bool> {
        let peer = self.peer.as_ref();
        if !self.departures.announce(&self.notes, peer)? {
            return Ok(false);
        }
        while let Some(record) = self.outgoing.revocation() {
            if !self.departures.send(&record.emit(), None, peer)? {
                return Ok(false);
            }
            self.outgoing.revoked(record);
        }
        Ok(true)
    }

    fn on_file(
        &mut self,
        record: FileRecord,
        fds: &PeerFds,
        posted: &Posted<'_>,
    ) -> io::Result<()> {
        let accepted = match (record, fds.first()) {
            (FileRecord::Memory { region, size }, Some(file)) => {
                self.incoming.map(region, file, size, posted.port)
            }
            (FileRecord::Revoked { region }, _) => self.incoming.unmap(region),
            (FileRecord::Notes, Some(file)) if self.peer.is_none() => {
                self.peer = PeerNotes::map(file);
                self.peer.as_ref().map(|_| ())
            }
            (FileRecord::Ring, Some(file)) => self.arrivals.open_ring(file),
            (FileRecord::Wake, _) => Some(()),
            (FileRecord::Notes, Some(_))
            | (FileRecord::Memory { .. } | FileRecord::Notes | FileRecord::Ring, None) => None,
        };
        accepted.ok_or_else(|| Errno::NETDOWN.into())
    }
}

impl Link for SharedWire {
    fn caps(&self) -> LinkCaps {
        shared_caps(self.hello)
    }

    /// # Errors
    /// As recvmsg(2). `ENETDOWN` when the other end has left, and after a packet that no such wire sends.
    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.last_look = now;
        self.incoming.let_go(&self.notes);
        self.outgoing.collect(self.peer.as_ref());
        // A lack of room delays what is to be announced to the next call. An end that has left need not know it, and what it has
        // sent before is received.
        let _ = self.announce();
        // What is left then makes the caller come back after its other work.
        for _ in 0..RX_FILES {
            let Some((len, fds)) = self.arrivals.next(&self.notes)? else {
                return Ok(LinkReceived::None);
            };
            let bytes = self.arrivals.packet(len);
            match Packet::parse(bytes) {
                Packet::Inline { header, frame } => {
                    posted.frame.clear();
                    posted.frame.extend_from_slice(frame);
                    let meta = header.offload().into();
                    return Ok(LinkReceived::Frame { meta });
                }
                Packet::File(record) => self.on_file(record, &fds, posted)?,
                Packet::Frame(record) => {
                    let received = self.incoming.borrow(&record, posted.borrowed);
                    let landed = received.and_then(|()| land(&record, posted));
                    return Ok(landed.unwrap_or_else(|| {
                        *posted.borrowed = FragList::new();
                        LinkReceived::Dropped(DropReason::RxBadReference)
                    }));
                }
                Packet::Bad => return Ok(LinkReceived::Dropped(DropReason::RxBadReference)),
            }
        }
        Ok(LinkReceived::None)
    }

    fn send(&mut self, frame: &TxFrame<'_>, _now: Instant) -> io::Result<LinkSent> {
        self.incoming.let_go(&self.notes);
        self.outgoing.collect(self.peer.as_ref());
        if !self.announce()? {
            return Ok(LinkSent::Busy);
        }
        // By reference only if the other end can say when it has let go.
        if frame.payload.len() < MIN_REFERENCE || self.peer.is_none() {
            return self.send_inline(frame);
        }
        if !self.outgoing.has_slot() {
            return Ok(LinkSent::Busy);
        }
        let payload = match self.outgoing.is_private(frame.payload, frame.port) {
            false => Some(frame.payload.share(0, frame.payload.len())),
            true => self.outgoing.stage(frame.payload, frame.port),
        };
        match payload {
            Some(payload) => self.send_reference(frame, payload),
            None => self.send_inline(frame),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.outgoing.next_due(self.last_look)
    }

    /// Returns whether the last [`LinkSent::Busy`] was for lack of room in the ring: the other end then sends a wake-up.
    fn tells_of_room(&self) -> bool {
        self.departures.full() == Full::Ring && !self.outgoing.is_full()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.arrivals.prepare_sleep(&self.notes)
    }

    fn end_sleep(&mut self) {
        self.arrivals.end_sleep(&self.notes);
    }

    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        self.outgoing.send_memory()
    }
}

/// Puts the headers of a frame into the header buffer; its payload is in `posted.borrowed`. `None`: there is no such frame.
fn land(record: &FrameRecord<'_>, posted: &mut Posted<'_>) -> Option<LinkReceived> {
    let head = record.head;
    let payload = posted.borrowed.len();
    if payload == 0 || head.len() + payload > LONGEST_FRAME || head.len() > posted.head.capacity() {
        return None;
    }
    posted.head.write(0, head);
    Some(LinkReceived::Borrowed {
        head_len: head.len(),
        frame_len: head.len() + payload,
        meta: record.header.offload().into(),
        until: record.until,
    })
}

#[cfg(test)]
mod reach_tests;
#[cfg(test)]
mod tests;
