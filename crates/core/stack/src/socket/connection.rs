//! A connection with the state that its program and the stack keep for it.

mod place;
mod relief;

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::{
    CmsgSink, DmabufToken, OffenderFamily, SCM_TIMESTAMPING_LEN, SockExtendedErr, cmsg_space,
};
use netmem::{FragList, Netmem, Payload};
use steer::RxQueueId;
use tcp::{Connection, Disposition, Push, Segment, SeqNum, StateKind, TcpError};
use wire::{FourTuple, Instant};

use super::error::{DontneedError, RecvError};
use super::errqueue::ErrQueue;
use super::readiness::{Pollable, Readiness, Snapshot};
use super::recvmsg::{RecvOutcome, Stopped};
use super::sockopt::SocketSettings;
use super::timestamps::ArrivalTimes;
use super::token_memory::TokenMemory;
use super::token_table::TokenTable;
use crate::path_mtu::PathMtu;
use crate::received::ReceivedSegment;
use crate::window::{Promise, Windows};
pub(crate) use place::{Place, PlacedFrags, behind, range_of};
use relief::Relief;

/// A connection with the state that its program and the stack keep for it.
#[derive(Debug)]
pub(crate) struct ConnectionSocket {
    pub(crate) conn: Connection<FragList>,
    /// The four-tuple of received packets: the peer is the source.
    pub(crate) tuple: FourTuple,
    /// The connection still has its four-tuple.
    pub(crate) is_named: bool,
    pub(crate) next_hop: IpAddr,
    pub(crate) promise: Promise,
    pub(crate) relief: Relief,
    /// Total payload bytes read by its program.
    pub(crate) read: u64,
    /// Arrival times of unread bytes, if enabled.
    pub(crate) arrival_times: ArrivalTimes,
    /// Position in the stream of the byte that the peer last called urgent, until it is read.
    pub(crate) urgent: Option<u64>,
    /// A segment has arrived already. The first one only completes the handshake, and is no probe.
    pub(crate) is_old: bool,
    /// Where the next bytes belong, if its program has said so.
    pub(crate) place: Option<Place>,
    /// Frags in its places that are lent. `None`: it was given no place yet.
    pub(crate) placed_frags: Option<Box<PlacedFrags>>,
    pub(crate) tokens: TokenTable<TokenMemory>,
    pub(crate) options: SocketSettings,
    /// Zero-copy sends, complete or not.
    pub(crate) errors: ErrQueue,
    /// Kind of memory of the last bytes in the send queue: packets do not mix the kinds.
    pub(crate) last_sent: Option<SourceMemory>,
    /// Packets have DF clear: the path has links that carry less than the smallest packets of TCP.
    pub(crate) routers_fragment: bool,
    /// Identification of the next packet, if routers may fragment them.
    pub(crate) next_ident: Option<u16>,
    /// The program has shut down reading.
    pub(crate) read_shutdown: bool,
    pub(crate) holder: Holder,
    /// Why the connection failed, until a call has reported it.
    pub(crate) error: Option<TcpError>,
}

/// Kind of memory that bytes are sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceMemory {
    Host,
    Device,
}

/// The holder of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A program has its id.
    Program,
    /// The accept queue of its listener; no program has its id yet.
    AcceptQueue,
    /// The program has closed the socket, and the connection finishes without it. TCP limits the time without progress
    /// and the time in FIN-WAIT-2.
    Nobody,
}

impl ConnectionSocket {
    pub(crate) fn new(
        conn: Connection<FragList>,
        options: SocketSettings,
        tuple: FourTuple,
        next_hop: IpAddr,
        holder: Holder,
    ) -> Self {
        Self {
            conn,
            tuple,
            is_named: true,
            next_hop,
            promise: Promise::new(RxQueueId::default()),
            relief: Relief::default(),
            read: 0,
            arrival_times: ArrivalTimes::default(),
            urgent: None,
            is_old: false,
            place: None,
            placed_frags: None,
            tokens: TokenTable::default(),
            options,
            errors: ErrQueue::default(),
            last_sent: None,
            routers_fragment: false,
            next_ident: None,
            read_shutdown: false,
            holder,
            error: None,
        }
    }

    /// Returns the local address and that of the peer.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let FourTuple {
            src_ip,
            dst_ip,
            src_port,
            dst_port,
        } = self.tuple;
        (
            SocketAddr::new(dst_ip, dst_port),
            SocketAddr::new(src_ip, src_port),
        )
    }

    /// Takes the error of a failed connection, which is reported once.
    pub(crate) fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    pub(super) fn readiness(&self) -> Readiness {
        let (conn, settings, state) = (&self.conn, &self.options.tcp, self.conn.state());
        let is_over = matches!(state, StateKind::Closed | StateKind::TimeWait);
        let is_opening = matches!(state, StateKind::SynSent | StateKind::SynReceived);
        let has_error = self.error.is_some();
        let peer_finished = matches!(
            state,
            StateKind::CloseWait | StateKind::Closing | StateKind::LastAck
        );
        let read_closed = is_over || peer_finished || self.read_shutdown;
        let write_closed =
            !is_opening && !matches!(state, StateKind::Established | StateKind::CloseWait);
        Readiness::READABLE.when(conn.readable_len() > 0 || read_closed || has_error)
            | Readiness::WRITABLE.when(
                !is_opening
                    && conn.write_room(settings) >= self.options.write_low()
                    && conn.has_unsent_room(2, settings)
                    || write_closed
                    || has_error,
            )
            | Readiness::READ_CLOSED.when(read_closed)
            | Readiness::WRITE_CLOSED.when(write_closed)
            | Readiness::ERROR.when(has_error)
            | Readiness::ERROR_QUEUE.when(self.errors.has_entries())
            | Readiness::URGENT.when(self.has_urgent())
    }

    /// Takes tokens back; passes each net_iov to `home`.
    pub(crate) fn dontneed(
        &mut self,
        ranges: &[DmabufToken],
        mut home: impl FnMut(Netmem),
    ) -> Result<u32, DontneedError> {
        let freed = self
            .tokens
            .release(ranges, |held| held.release(&mut home))?;
        if let Some(lent) = &mut self.placed_frags {
            lent.forget(ranges);
        }
        Ok(freed)
    }

    /// Returns the stream offset at which the send queue begins.
    pub(crate) fn acked_offset(&self) -> u64 {
        match self.conn.state() {
            // The send queue is empty.
            StateKind::Closed | StateKind::TimeWait => u64::MAX,
            _ => self.conn.acked_offset(),
        }
    }

    /// Notes the arrival time of the payload of a segment, `len` bytes from `seq` on, before TCP processes it.
    fn note_time(&mut self, seq: SeqNum, len: usize, now: Instant) {
        let in_order = self.read + self.conn.readable_len() as u64;
        let Some(start) = self.position_of(seq) else {
            return;
        };
        let behind = start.saturating_add(len as u64);
        if behind > in_order {
            self.arrival_times.note(start.max(in_order)..behind, now);
        }
    }

    /// Returns the position in the stream of the byte numbered `seq`.
    fn position_of(&self, seq: SeqNum) -> Option<u64> {
        let in_order = self.read + self.conn.readable_len() as u64;
        // Relative to RCV.NXT; valid segments are less than half of the sequence space away.
        let ahead = |nxt: SeqNum| i64::from(seq.0.wrapping_sub(nxt.0).cast_signed());
        in_order.checked_add_signed(self.conn.rcv_nxt().map(ahead)?)
    }

    /// Notes the urgent pointer of a segment from `seq` on, before TCP processes it: the byte before the one that it points to
    /// is urgent (linux `tcp_check_urg`; RFC 6093 3.1 describes it). The byte stays in the stream.
    fn note_urgent(&mut self, seq: SeqNum, pointer: u16) {
        let position = self.position_of(seq + usize::from(pointer - 1));
        if let Some(position) = position.filter(|position| *position >= self.read) {
            self.urgent = Some(position);
        }
    }

    /// Returns how many bytes lie before the urgent byte; `None` if there is none, or it was read.
    pub(crate) fn until_urgent(&self) -> Option<u64> {
        self.urgent?.checked_sub(self.read)
    }

    /// Returns whether the urgent byte can be read (linux `TCP_URG_VALID`).
    fn has_urgent(&self) -> bool {
        let before = self.until_urgent();
        before.is_some_and(|before| before < self.conn.readable_len() as u64)
    }

    /// Adds the timestamps of sends that are due to the error queue.
    pub(crate) fn note_times(&mut self, now: Instant) {
        let sent = self.conn.sent_offset();
        let acked = match self.conn.state() {
            // After an orderly end, all bytes are acknowledged.
            StateKind::TimeWait => u64::MAX,
            StateKind::Closed if self.conn.error().is_none() => u64::MAX,
            _ => self.conn.acked_offset(),
        };
        self.errors.note_times(sent, acked, now);
    }

    /// Notes the arrival time of payload in the segment that completed the handshake.
    pub(crate) fn note_first_time(&mut self, now: Instant) {
        let arrived = self.conn.readable_len() as u64;
        if self.options.timestamping.received && arrived > 0 {
            self.arrival_times.note(0..arrived, now);
        }
    }

    /// Returns the total number of payload bytes that became readable in order.
    pub(crate) fn delivered(&self) -> u64 {
        self.read + self.conn.readable_len() as u64
    }

    /// Processes a segment; notes what TCP does not know of it.
    pub(crate) fn on_segment(
        &mut self,
        slot: u32,
        incoming: ReceivedSegment,
        windows: &mut Windows,
        now: Instant,
    ) -> Disposition {
        let ReceivedSegment {
            queue,
            segment,
            is_unplaced,
            urgent,
            ..
        } = incoming;
        let len = segment.payload.len();
        self.note_arrival(slot, queue, len, windows);
        if self.options.timestamping.received && len > 0 {
            self.note_time(segment.seq, len, now);
        }
        if let Some(pointer) = urgent.filter(|pointer| *pointer > 0) {
            self.note_urgent(segment.seq, pointer);
        }
        match is_unplaced {
            false => self.conn.on_segment(segment, &self.options.tcp, now),
            true => self.conn.on_unplaced(segment, &self.options.tcp, now),
        }
    }

    /// Notes that a segment with `len` bytes of payload arrived on `queue`.
    pub(crate) fn note_arrival(
        &mut self,
        slot: u32,
        queue: RxQueueId,
        len: usize,
        windows: &mut Windows,
    ) {
        if self.promise.queue() != queue {
            windows.migrate(slot, &mut self.promise, queue);
        }
        if len > 0 {
            windows.note_packet(&mut self.promise, len);
        } else if self.is_receiving() && self.conn.is_rcv_window_shut() && self.is_old {
            self.promise.note_probe();
        }
        self.is_old = true;
    }

    /// Takes over what an earlier connection discovered about the path.
    pub(crate) fn take_path(&mut self, path: Option<PathMtu>) {
        self.routers_fragment = path.is_some_and(|path| path.routers_fragment);
    }

    /// Returns the identification of a packet that routers may fragment, and those of the packets of a super-packet after
    /// it; `None`: they must not. It begins at the low bits of a sequence number, which is not predictable.
    pub(crate) fn identify(&mut self, segment: &Segment<FragList>) -> Option<u16> {
        if !self.options.may_fragment && !self.routers_fragment {
            return None;
        }
        let ident = self.next_ident.unwrap_or(segment.seq.0 as u16);
        let packets = u16::try_from(segment.gso_segments()).unwrap_or(u16::MAX);
        self.next_ident = Some(ident.wrapping_add(packets));
        Some(ident)
    }

    /// Returns whether the peer may still send payload.
    pub(crate) fn is_receiving(&self) -> bool {
        let state = self.conn.state();
        use StateKind::{Established, FinWait1, FinWait2, SynReceived, SynSent};
        matches!(
            state,
            SynSent | SynReceived | Established | FinWait1 | FinWait2
        )
    }

    /// Reports the oldest entry of the error queue.
    pub(crate) fn recv_error(&mut self, sink: &mut dyn CmsgSink) -> Result<RecvOutcome, RecvError> {
        let (family, address_len) = match self.tuple.dst_ip {
            IpAddr::V4(_) => (OffenderFamily::Ip, 16),
            IpAddr::V6(_) => (OffenderFamily::Ipv6, 28),
        };
        let time = match self.errors.is_time() {
            true => cmsg_space(SCM_TIMESTAMPING_LEN),
            false => 0,
        };
        match self.errors.report(family, sink) {
            None => Err(RecvError::ErrorQueueEmpty),
            Some(Ok(())) => Ok(RecvOutcome {
                bytes: 0,
                host_bytes: 0,
                arrived: None,
                stopped: Stopped::ErrorQueue,
            }),
            Some(Err(_)) => Err(RecvError::NoControlSpace {
                need: time + cmsg_space(size_of::<SockExtendedErr>() + address_len),
            }),
        }
    }

    /// Returns the result of a receive from an empty queue: the error of the connection, the end of the stream, or
    /// `WouldBlock`.
    pub(crate) fn end_of_queue(&mut self) -> Result<RecvOutcome, RecvError> {
        if let Some(error) = self.take_error() {
            return Err(RecvError::Connection(error));
        }
        let is_over = match self.conn.state() {
            StateKind::SynSent | StateKind::SynReceived => false,
            StateKind::Established | StateKind::FinWait1 | StateKind::FinWait2 => {
                self.read_shutdown
            }
            _ => true,
        };
        match is_over {
            true => Ok(RecvOutcome {
                bytes: 0,
                host_bytes: 0,
                arrived: None,
                stopped: Stopped::Eof,
            }),
            false => Err(RecvError::WouldBlock),
        }
    }

    /// Queues a piece, after a boundary if the bytes before are in another kind of memory; returns the stream offset after
    /// it, or `None` if the send queue is full.
    pub(crate) fn queue(
        &mut self,
        piece: FragList,
        memory: SourceMemory,
        more: bool,
    ) -> Option<u64> {
        if self
            .last_sent
            .replace(memory)
            .is_some_and(|last| last != memory)
        {
            self.conn.push_boundary();
        }
        self.conn
            .send(piece, if more { Push::Later } else { Push::Now })
            .ok()
    }

    /// Returns the bytes that are not read yet, in order or out of order.
    pub(crate) fn unread(&self) -> u64 {
        (self.conn.readable_len() + self.conn.out_of_order_len()) as u64
    }
}

impl Pollable for ConnectionSocket {
    fn snapshot(&self) -> Option<Snapshot> {
        (self.holder == Holder::Program).then(|| Snapshot {
            readiness: self.readiness(),
            arrivals: self.delivered(),
            error_arrivals: self.errors.noted(),
        })
    }
}
