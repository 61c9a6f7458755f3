//! A UNIX wire whose two ends share memory: payload crosses it by reference, and is copied once, by the receiving NIC.
//!
//! A frame is sent as its headers and a list of ranges of memory files ([`record`]). These are memory of this link, which no other
//! peer gets ([`own_memory`]), and memory that its program has marked as shared: the other end maps whole files, and so no other
//! file of this process reaches it. It has mapped these files for reading; its NIC reads the headers first, and then copies the payload to the memory of the right queue, or to the place that
//! the program chose. So no prediction is needed, and no byte is ever misplaced.
//!
//! The sender holds the memory of a frame until the receiver has let go of it ([`outgoing`]), as a NIC holds it until its
//! DMA is done; the receiver tells so in memory that the sender has mapped ([`incoming`]). TCP holds it in addition until it is
//! acknowledged. All other payload is copied to memory of this link first. Short frames are sent as on any
//! UNIX wire.
//!
//! What a peer can do: it may change bytes while they are copied, which changes the received bytes and nothing else (`mapped`
//! copies each byte once); name ranges or files that do not exist, which drops the frame; send files that may get shorter, or
//! anything else that is no record, which ends the wire; not let go of memory, which keeps at most [`outgoing::SLOTS`] frames
//! in use until the wire ends. Descriptors that come with a packet are closed in another thread unless they are memory files, because
//! closing may wait, and one call takes a few records of files only.

mod incoming;
mod outgoing;
mod own_memory;
mod record;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ::wire::{EthernetHeader, Instant, VnetHeader};
use netmem::{FragList, HostProvider, Payload};
use peer_socket::{PeerFds, PeerSocket, ReceivedPacket, receive};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::vnet_fd::FrameWriter;
use super::{
    BIG_PACKET_LEN, LinkReceived, LinkSent, MAX_FRAME_LEN, Posted, TxFrame, VnetFd, VnetHeaderLen,
};
use crate::drops::DropReason;
use incoming::Incoming;
use outgoing::{Found, Outgoing};
use record::{FileRecord, FrameRecord, MAX_RECORD, Packet};

/// Payload of fewer bytes is sent inline: a copy through the socket is cheaper than a reference.
const MIN_REFERENCE: usize = 2048;

/// Bytes of the longest super-packet of such a wire. A send of 512 KiB fits, with headers and whatever the length of its segments.
pub(super) const SHARED_PACKET_LEN: usize = BIG_PACKET_LEN + (16 << 10);

/// Bytes of the longest frame of such a wire.
const LONGEST_FRAME: usize = SHARED_PACKET_LEN + EthernetHeader::TAGGED_LEN;

/// Bytes of the longest packet on the socket: an inline frame with its virtio-net header. One more, to detect longer ones.
const PACKET_BYTES: usize = VnetHeader::LEN + MAX_FRAME_LEN + 1;

/// Records about files that one call receives: each of them may map memory, which takes some tens of microseconds.
const RX_FILES: usize = 8;

/// Descriptors of one packet.
const PACKET_FDS: usize = 1;

/// One end of a wire with shared memory.
#[derive(Debug)]
pub(super) struct SharedWire {
    socket: VnetFd,
    writer: FrameWriter,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The packet that is being received.
    packet: Box<[u8]>,
    /// The packet that is being sent.
    record: Vec<u8>,
}

impl SharedWire {
    /// Returns the end of a wire over a connected, non-blocking socket whose other end shares memory, too.
    ///
    /// # Errors
    /// There is no memory for what both ends map.
    pub(super) fn new(socket: Arc<PeerSocket>) -> io::Result<Self> {
        const { assert!(MAX_RECORD <= PACKET_BYTES) };
        Ok(Self {
            socket: VnetFd::of_socket(socket, VnetHeaderLen::Ten),
            writer: FrameWriter::default(),
            outgoing: Outgoing::new()?,
            incoming: Incoming::new()?,
            packet: vec![0; PACKET_BYTES].into_boxed_slice(),
            record: Vec::new(),
        })
    }

    /// Makes memory of `bytes` for the send queues of the stack, which the other end can read: also what was not sent yet.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn share_send_memory(&mut self, bytes: usize) -> io::Result<()> {
        self.outgoing.share_send_memory(bytes)
    }

    /// Returns that memory.
    pub(super) fn send_memory(&self) -> Option<&Arc<HostProvider>> {
        self.outgoing.send_memory()
    }

    /// Sends one frame completely or not at all.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub(super) fn send(&mut self, frame: &TxFrame<'_>) -> io::Result<LinkSent> {
        self.incoming.let_go();
        self.outgoing.collect();
        if !self.announce()? {
            return Ok(LinkSent::Busy);
        }
        if frame.payload.len() < MIN_REFERENCE || !self.outgoing.is_ready() {
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

    fn send_inline(&mut self, frame: &TxFrame<'_>) -> io::Result<LinkSent> {
        match frame.frame_len() {
            ..=MAX_FRAME_LEN => self.writer.send(&self.socket, frame),
            _ => Ok(LinkSent::TooLong),
        }
    }

    /// Sends the headers of a frame, and where the other end finds `payload`.
    fn send_reference(
        &mut self,
        frame: &TxFrame<'_>,
        mut payload: FragList,
    ) -> io::Result<LinkSent> {
        let socket = self.socket.as_fd();
        let mut is_copy = false;
        loop {
            match self.outgoing.find(&payload, frame.port) {
                Found::Yes => break,
                Found::New(offer) => {
                    if !send_packet(socket, &offer.record.emit(), Some(offer.file.as_fd()))? {
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
        let sent = send_packet(socket, &self.record, None);
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
    }

    /// Returns whether the last [`LinkSent::Busy`] was for lack of room in the socket, which becomes writable then.
    pub(super) fn is_socket_full(&self) -> bool {
        !self.outgoing.is_full()
    }

    /// Returns when the peer's memory is to be looked at without an event.
    pub(super) fn next_due(&self, last: Instant) -> Option<Instant> {
        self.outgoing.next_due(last)
    }

    /// Sends what the other end has to know before the next frame. Returns false if the socket is full.
    fn announce(&mut self) -> io::Result<bool> {
        if let Some((file, record)) = self.incoming.unannounced() {
            if !send_packet(self.socket.as_fd(), &record.emit(), Some(file))? {
                return Ok(false);
            }
            self.incoming.announced();
        }
        while let Some(record) = self.outgoing.revocation() {
            if !send_packet(self.socket.as_fd(), &record.emit(), None)? {
                return Ok(false);
            }
            self.outgoing.revoked(record);
        }
        Ok(true)
    }

    /// Receives one frame.
    ///
    /// # Errors
    /// As recvmsg(2). `ENETDOWN` at the end of file, and after a packet that no such wire sends.
    pub(super) fn receive(&mut self, posted: &mut Posted<'_>) -> io::Result<LinkReceived> {
        self.incoming.let_go();
        self.outgoing.collect();
        // A full socket delays what is to be announced to the next call. An end that has left need not know it, and what it has
        // sent before is received.
        let _ = self.announce();
        // What is left in the socket then makes it readable, so that the caller comes back after its other work.
        for _ in 0..RX_FILES {
            let mut parts = [IoSliceMut::new(&mut self.packet)];
            let ReceivedPacket {
                bytes: len, fds, ..
            } = match receive(&self.socket, &mut parts) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(LinkReceived::None),
                Err(error) => return Err(error.into()),
            };
            let bytes = self.packet.get(..len).unwrap_or_default();
            if bytes.is_empty() {
                return Err(Errno::NETDOWN.into());
            }
            match Packet::parse(bytes) {
                Packet::Inline { header, frame } => {
                    posted.frame.clear();
                    posted.frame.extend_from_slice(frame);
                    let meta = header.offload().into();
                    return Ok(LinkReceived::Frame { meta });
                }
                Packet::File(record) => self.on_file(record, &fds, posted)?,
                Packet::Frame(record) => {
                    let received = self.incoming.lend(&record, posted.lent);
                    let lent = received.and_then(|()| land(&record, posted));
                    return Ok(lent.unwrap_or_else(|| {
                        *posted.lent = FragList::new();
                        LinkReceived::Dropped(DropReason::RxBadReference)
                    }));
                }
                Packet::Bad => return Ok(LinkReceived::Dropped(DropReason::RxBadReference)),
            }
        }
        Ok(LinkReceived::None)
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
            (FileRecord::Releases, Some(file)) => self.outgoing.map_releases(file),
            (FileRecord::Memory { .. } | FileRecord::Releases, None) => None,
        };
        accepted.ok_or_else(|| Errno::NETDOWN.into())
    }
}

/// Puts the headers of a frame into the header buffer; its payload is in `posted.lent`. `None`: there is no such frame.
fn land(record: &FrameRecord<'_>, posted: &mut Posted<'_>) -> Option<LinkReceived> {
    let head = record.head;
    let payload = posted.lent.len();
    if payload == 0 || head.len() + payload > LONGEST_FRAME || head.len() > posted.head.capacity() {
        return None;
    }
    posted.head.write(0, head);
    Some(LinkReceived::Lent {
        head_len: head.len(),
        frame_len: head.len() + payload,
        meta: record.header.offload().into(),
        until: record.until,
    })
}

/// Sends one packet. Returns false if the socket is full.
fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(file) = &file
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod reach_tests;
#[cfg(test)]
mod tests;
