//! Sockets: what a program holds of a connection or a listener.

mod calls;
pub(crate) mod cmsg;
pub(crate) mod error;
pub(crate) mod errqueue;
mod free_map;
pub(crate) mod listener;
pub(crate) mod readiness;
pub(crate) mod recvmsg;
pub(crate) mod sendmsg;
pub(crate) mod sockets;
pub(crate) mod sockopt;
pub(crate) mod table;
pub(crate) mod timestamps;
pub(crate) mod token_table;

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::DmabufToken;
use netmem::{Frag, FragList, Netmem};
use smallvec::SmallVec;
use tcp::{Connection, SeqNum, StateKind, TcpError, TimeWait};
use wire::{FourTuple, Instant};

use crate::pressure::PressureMarks;
use crate::window::Promise;
use error::DontneedError;
use errqueue::ErrQueue;
use listener::Listener;
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
    /// What is left of a closed connection: nobody has its number any more.
    TimeWait(Box<TimeWaitSocket>),
}

/// A connection and what a program and the stack hold beside it.
#[derive(Debug)]
pub(crate) struct ConnectionSocket {
    pub(crate) conn: Connection<FragList>,
    /// As received packets bear it: the peer is the source.
    pub(crate) tuple: FourTuple,
    /// The four-tuple still leads here.
    pub(crate) is_named: bool,
    pub(crate) next_hop: IpAddr,
    pub(crate) promise: Promise,
    pub(crate) marks: PressureMarks,
    /// Payload bytes that its program ever took.
    pub(crate) read: u64,
    /// When bytes that wait to be read arrived, where that is asked for.
    pub(crate) arrival_times: ArrivalTimes,
    /// A segment arrived before: the next one says more than that the connection is open.
    pub(crate) is_old: bool,
    pub(crate) tokens: TokenTable<Held>,
    pub(crate) options: SocketSettings,
    /// Zero-copy sends under way and over.
    pub(crate) errors: ErrQueue,
    /// Where the last bytes sent lie: packets do not mix the kinds.
    pub(crate) last_sent: Option<SourceMemory>,
    /// Free bytes in the send queue from which on it counts as writable (linux: a third of the
    /// buffer).
    pub(crate) write_low: usize,
    /// The program said that it reads no more.
    pub(crate) read_shutdown: bool,
    pub(crate) holder: Holder,
    /// Why it died, until a call has told it.
    pub(crate) error: Option<TcpError>,
}

/// Who has a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A program, by its number.
    Program,
    /// The accept queue of its listener; no program knows its number yet.
    AcceptQueue,
    /// Nobody: it finishes by itself. TCP bounds how long that takes without progress, and
    /// FIN-WAIT-2 in any case.
    Nobody,
}

/// A connection in TIME-WAIT that nobody holds.
#[derive(Debug)]
pub(crate) struct TimeWaitSocket {
    pub(crate) state: TimeWait,
    pub(crate) tuple: FourTuple,
    pub(crate) next_hop: IpAddr,
}

/// The memory that one token keeps: one net_iov, or several that touch.
#[derive(Debug, Default)]
pub(crate) struct Held(SmallVec<[Netmem; 2]>);

impl Held {
    /// Keeps the memory of one more piece.
    pub(crate) fn keep(&mut self, piece: FragList) {
        for netmem in piece.into_iter().map(Frag::into_netmem) {
            // One reference is enough to keep a net_iov.
            if !self.0.last().is_some_and(|last| last.is_same(&netmem)) {
                self.0.push(netmem);
            }
        }
    }

    /// Gives each net_iov to `home`.
    pub(crate) fn release(self, mut home: impl FnMut(FragList)) {
        for netmem in self.0 {
            // A frag of one byte: what travels is the handle.
            home(FragList::from(Frag::new(netmem, 0, 1)));
        }
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

    /// Counts what ever came in for a reader: bytes in order, connections at a listener.
    pub(crate) fn arrivals(&self) -> u64 {
        match self {
            Self::Connection(connection) => connection.delivered(),
            Self::Listener(listener) => listener.accepted_ever(),
            Self::TimeWait(_) => 0,
        }
    }

    /// Counts what was ever put into the error queue.
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
    /// Returns the addresses of this side and of the peer.
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

    /// Takes the error of a dead connection, which is told once.
    pub(crate) fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    fn readiness(&self) -> Readiness {
        let (conn, state) = (&self.conn, self.conn.state());
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
                conn.write_room() >= self.write_low && self.has_unsent_room(2)
                    || write_closed
                    || has_error,
            )
            | Readiness::READ_CLOSED.when(read_closed)
            | Readiness::WRITE_CLOSED.when(write_closed)
            | Readiness::ERROR.when(has_error)
            | Readiness::ERROR_QUEUE.when(self.errors.has_entries())
    }

    /// Takes tokens back; each net_iov goes to `home`.
    pub(crate) fn dontneed(
        &mut self,
        ranges: &[DmabufToken],
        mut home: impl FnMut(FragList),
    ) -> Result<u32, DontneedError> {
        Ok(self
            .tokens
            .release(ranges, |held| held.release(&mut home))?)
    }

    /// Returns whether the NIC, or a neighbour's queue, still holds packets of a send that the peer has acknowledged,
    /// or that nobody will acknowledge any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.errors.is_held_below(self.acked_offset())
    }

    /// Returns the stream offset that the send queue keeps nothing before.
    pub(crate) fn acked_offset(&self) -> u64 {
        match self.conn.state() {
            // Nothing is left in the send queue.
            StateKind::Closed | StateKind::TimeWait => u64::MAX,
            _ => self.conn.acked_offset(),
        }
    }

    /// Notes when the payload of a segment arrived, before it is dealt with: `len` bytes from `seq` on.
    pub(crate) fn note_time(&mut self, seq: SeqNum, len: usize, now: Instant) {
        if !self.options.timestamping.received || len == 0 {
            return;
        }
        let in_order = self.read + self.conn.readable_len() as u64;
        // Within a window or so of what was received in order: less than half of the numbers.
        let ahead = |nxt: SeqNum| i64::from(seq.0.wrapping_sub(nxt.0).cast_signed());
        let start = self.conn.rcv_nxt().map(ahead);
        let Some(start) = start.and_then(|ahead| in_order.checked_add_signed(ahead)) else {
            return;
        };
        let behind = start.saturating_add(len as u64);
        if behind > in_order {
            self.arrival_times.note(start.max(in_order)..behind, now);
        }
    }

    /// Puts the times of sends into the error queue that are known now.
    pub(crate) fn note_times(&mut self, now: Instant) {
        if self.errors.stamps.is_empty() {
            return;
        }
        let sent = self.conn.sent_offset();
        let acked = match self.conn.state() {
            // An end in order has everything acknowledged.
            StateKind::TimeWait => u64::MAX,
            StateKind::Closed if self.conn.error().is_none() => u64::MAX,
            _ => self.conn.acked_offset(),
        };
        self.errors.note_times(sent, acked, now);
    }

    /// Notes when the payload arrived that came with the end of the handshake.
    pub(crate) fn note_first_time(&mut self, now: Instant) {
        let arrived = self.conn.readable_len() as u64;
        if self.options.timestamping.received && arrived > 0 {
            self.arrival_times.note(0..arrived, now);
        }
    }

    /// Returns bytes that wait unread, in order or not.
    pub(crate) fn unread(&self) -> u64 {
        (self.conn.readable_len() + self.conn.out_of_order_len()) as u64
    }
}
