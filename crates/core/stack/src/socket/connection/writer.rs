//! The writing side of a connection: what its sends are made of, and what is reported of them.

use std::net::IpAddr;

use devmem_uapi::{CmsgSink, OffenderFamily, SCM_TIMESTAMPING_LEN, SockExtendedErr, cmsg_space};
use netmem::FragList;
use tcp::{Connection, Push, Segment, StateKind};
use wire::Instant;

use crate::path_mtu::PathMtu;
use crate::socket::error::RecvError;
use crate::socket::errqueue::ErrQueue;
use crate::socket::recv_msg::{RecvOutcome, Stopped};

/// Kind of memory that bytes are sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceMemory {
    Host,
    Device,
}

/// The writing side of a connection.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Zero-copy sends, complete or not, and what is reported of sends.
    pub(crate) errors: ErrQueue,
    /// Kind of memory of the last bytes in the send queue: packets do not mix the kinds.
    last_sent: Option<SourceMemory>,
    /// Packets have DF clear: the path has links that carry less than the smallest packets of TCP.
    routers_fragment: bool,
    /// Identification of the next packet, if routers may fragment them.
    next_ident: Option<u16>,
}

impl Writer {
    /// Queues a piece, after a boundary if the bytes before are in another kind of memory; returns the stream offset after
    /// it, or `None` if the send queue is full.
    pub(crate) fn queue(
        &mut self,
        conn: &mut Connection<FragList>,
        piece: FragList,
        memory: SourceMemory,
        push: Push,
    ) -> Option<u64> {
        let last = self.last_sent.replace(memory);
        if last.is_some_and(|last| last != memory) {
            conn.push_boundary();
        }
        conn.send(piece, push).ok()
    }

    /// Takes over what an earlier connection discovered about the path.
    pub(crate) fn take_path(&mut self, path: Option<PathMtu>) {
        self.routers_fragment = path.is_some_and(|path| path.routers_fragment);
    }

    /// Notes what was discovered about the path.
    pub(crate) fn note_path(&mut self, path: &PathMtu) {
        self.routers_fragment |= path.routers_fragment;
    }

    /// Returns the identification of a packet that routers may fragment, and those of the packets of a super-packet after
    /// it; `None`: they must not. It begins at the low bits of a sequence number, which is not predictable.
    pub(crate) fn identify(
        &mut self,
        may_fragment: bool,
        segment: &Segment<FragList>,
    ) -> Option<u16> {
        if !may_fragment && !self.routers_fragment {
            return None;
        }
        let ident = self.next_ident.unwrap_or(segment.seq.0 as u16);
        let packets = u16::try_from(segment.gso_segments()).unwrap_or(u16::MAX);
        self.next_ident = Some(ident.wrapping_add(packets));
        Some(ident)
    }

    /// Returns whether the NIC, or the queue of a neighbour, still holds packets of a send that the peer has
    /// acknowledged, or that will not be acknowledged because the connection has ended.
    pub(crate) fn is_draining(&self, conn: &Connection<FragList>) -> bool {
        self.errors.is_held_below(acked_offset(conn))
    }

    /// Adds the timestamps of sends that are due to the error queue.
    pub(crate) fn note_times(&mut self, conn: &Connection<FragList>, now: Instant) {
        let acked = match conn.state() {
            // After an orderly end, all bytes are acknowledged.
            StateKind::TimeWait => u64::MAX,
            StateKind::Closed if conn.error().is_none() => u64::MAX,
            _ => conn.acked_offset(),
        };
        self.errors.note_times(conn.sent_offset(), acked, now);
    }

    /// Reports the oldest entry of the error queue of a connection from `local`.
    pub(crate) fn recv_error(
        &mut self,
        local: IpAddr,
        sink: &mut dyn CmsgSink,
    ) -> Result<RecvOutcome, RecvError> {
        let (family, address_len) = match local {
            IpAddr::V4(_) => (OffenderFamily::Ip, 16),
            IpAddr::V6(_) => (OffenderFamily::Ipv6, 28),
        };
        let time = match self.errors.is_time() {
            true => cmsg_space(SCM_TIMESTAMPING_LEN),
            false => 0,
        };
        match self.errors.report(family, sink) {
            None => Err(RecvError::ErrorQueueEmpty),
            Some(Ok(())) => Ok(RecvOutcome::without_bytes(Stopped::ErrorQueue)),
            Some(Err(_)) => Err(RecvError::NoControlSpace {
                need: time + cmsg_space(size_of::<SockExtendedErr>() + address_len),
            }),
        }
    }
}

/// Returns the stream offset at which the send queue begins.
pub(crate) fn acked_offset(conn: &Connection<FragList>) -> u64 {
    match conn.state() {
        // The send queue is empty.
        StateKind::Closed | StateKind::TimeWait => u64::MAX,
        _ => conn.acked_offset(),
    }
}
