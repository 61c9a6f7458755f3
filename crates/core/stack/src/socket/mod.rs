//! Sockets: connections and listeners with the state of the socket interface.

mod calls;
pub(crate) mod cmsg;
mod early;
pub(crate) mod error;
pub(crate) mod errqueue;
mod free_map;
pub(crate) mod holders;
pub(crate) mod listener;
mod queries;
pub(crate) mod readiness;
pub(crate) mod recvmsg;
pub(crate) mod sendmsg;
pub(crate) mod sockets;
pub(crate) mod sockopt;
pub(crate) mod table;
pub(crate) mod timestamps;
pub(crate) mod token_table;
pub(crate) mod work;

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::DmabufToken;
use netmem::{Frag, FragList, Netmem};
use smallvec::SmallVec;
use tcp::{Connection, SeqNum, StateKind, TcpError, TimeWait};
use wire::{FourTuple, Instant};

use crate::direct::{LentPlaces, Placing};
use crate::pressure::PressureMarks;
use crate::window::Promise;
use error::{BadSocket, DontneedError};
use errqueue::ErrQueue;
use listener::Listener;
pub(crate) use listener::ListenerEnd;
use readiness::Readiness;
use sendmsg::SourceMemory;
use sockets::{Pollable, Snapshot};
use sockopt::SocketSettings;
pub(crate) use table::SocketId;
use timestamps::ArrivalTimes;
use token_table::TokenTable;

/// A socket.
#[derive(Debug)]
pub(crate) enum SocketKind {
    Connection(Box<ConnectionSocket>),
    Listener(Box<Listener>),
    /// A closed connection in TIME-WAIT. No program has its id.
    TimeWait(Box<TimeWaitSocket>),
}

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
    pub(crate) marks: PressureMarks,
    /// Total payload bytes read by its program.
    pub(crate) read: u64,
    /// Arrival times of unread bytes, if enabled.
    pub(crate) arrival_times: ArrivalTimes,
    /// Position in the stream of the byte that the peer last called urgent, until it is read.
    pub(crate) urgent: Option<u64>,
    /// A segment has arrived already. The first one only completes the handshake, and is no probe.
    pub(crate) is_old: bool,
    /// Where the next bytes belong, if its program has said so.
    pub(crate) placing: Option<Placing>,
    /// Frags in its places that are lent. `None`: it was given no place yet.
    pub(crate) lent_places: Option<Box<LentPlaces>>,
    pub(crate) tokens: TokenTable<Held>,
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

/// A connection in TIME-WAIT without a program.
#[derive(Debug)]
pub(crate) struct TimeWaitSocket {
    pub(crate) state: TimeWait,
    pub(crate) tuple: FourTuple,
    pub(crate) next_hop: IpAddr,
}

/// The memory of one token: one net_iov, or several adjacent ones.
#[derive(Debug, Default)]
pub(crate) struct Held(SmallVec<[Netmem; 2]>);

impl Held {
    /// Adds the memory of one more piece.
    pub(crate) fn keep(&mut self, piece: FragList) {
        self.0.reserve(piece.frag_count());
        for netmem in piece.into_iter().map(Frag::into_netmem) {
            // One reference is enough to keep a net_iov.
            if !self.0.last().is_some_and(|last| last.is_same(&netmem)) {
                self.0.push(netmem);
            }
        }
    }

    /// Iterates over the net_iovs.
    pub(crate) fn netmems(&self) -> impl Iterator<Item = &Netmem> {
        self.0.iter()
    }

    /// Passes each net_iov to `home`, which gives it back.
    pub(crate) fn release(self, home: impl FnMut(Netmem)) {
        self.0.into_iter().for_each(home);
    }
}

impl SocketKind {
    /// Returns what the socket is ready for.
    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Connection(connection) => connection.readiness(),
            Self::Listener(listener) => listener.readiness(),
            Self::TimeWait(_) => Readiness::NONE,
        }
    }

    /// Returns the total number of bytes received in order, or of connections at a listener.
    pub(crate) fn arrivals(&self) -> u64 {
        match self {
            Self::Connection(connection) => connection.delivered(),
            Self::Listener(listener) => listener.accepted_ever(),
            Self::TimeWait(_) => 0,
        }
    }

    /// Returns the total number of entries of the error queue.
    pub(crate) fn error_arrivals(&self) -> u64 {
        match self {
            Self::Connection(connection) => connection.errors.noted(),
            Self::Listener(_) | Self::TimeWait(_) => 0,
        }
    }
}

impl Pollable for SocketKind {
    fn snapshot(&self) -> Option<Snapshot> {
        match self {
            Self::Connection(connection) => connection.snapshot(),
            Self::Listener(listener) => listener.snapshot(),
            Self::TimeWait(_) => None,
        }
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

impl Pollable for Listener {
    fn snapshot(&self) -> Option<Snapshot> {
        Some(Snapshot {
            readiness: self.readiness(),
            arrivals: self.accepted_ever(),
            error_arrivals: 0,
        })
    }
}

impl ConnectionSocket {
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

    fn readiness(&self) -> Readiness {
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
        if let Some(lent) = &mut self.lent_places {
            lent.forget(ranges);
        }
        Ok(freed)
    }

    /// Returns whether the NIC, or the queue of a neighbour, still holds packets of a send that the peer has
    /// acknowledged, or that will not be acknowledged because the connection has ended.
    pub(crate) fn is_draining(&self) -> bool {
        self.errors.is_held_below(self.acked_offset())
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
    pub(crate) fn note_time(&mut self, seq: SeqNum, len: usize, now: Instant) {
        if !self.options.timestamping.received || len == 0 {
            return;
        }
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
    pub(crate) fn note_urgent(&mut self, seq: SeqNum, pointer: Option<u16>) {
        let Some(pointer) = pointer.filter(|pointer| *pointer > 0) else {
            return;
        };
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
        if self.errors.stamps.is_empty() {
            return;
        }
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

    /// Returns the bytes that are not read yet, in order or out of order.
    pub(crate) fn unread(&self) -> u64 {
        (self.conn.readable_len() + self.conn.out_of_order_len()) as u64
    }
}

impl crate::Stack {
    /// Returns how many unread bytes lie before the byte that the peer last called urgent; `None` if there is no such byte.
    ///
    /// Urgent bytes stay in the stream, as RFC 6093 6 recommends (SO_OOBINLINE).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn until_urgent(&self, id: SocketId) -> Result<Option<u64>, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => connection.until_urgent(),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => None,
        })
    }
}
