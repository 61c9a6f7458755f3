//! A connection with the state that its program and the stack keep for it.

mod memory;
mod reader;
mod window;
mod writer;

use std::net::{IpAddr, SocketAddr};

use netmem::{FragList, Payload};
use nic::Nic;
use steer::RxQueueId;
use tcp::{Connection, Disposition, TcpError};
use wire::{FourTuple, Instant};

use super::error::RecvError;
use super::recv_msg::{RecvOutcome, Stopped};
use super::sockopt::SocketSettings;
use crate::received::ReceivedSegment;
use crate::window::Windows;
use memory::ReceiveMemory;
use reader::Reader;
use writer::Writer;
pub(crate) use writer::{SourceMemory, acked_offset};

/// A connection with the state that its program and the stack keep for it.
///
/// Its visible parts are used beside each other: TCP takes the options as an argument, and a receive moves what `conn` delivers to
/// `reader`. What each of them has inside is its own.
#[derive(Debug)]
pub(crate) struct ConnectionSocket {
    pub(crate) conn: Connection<FragList>,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) options: SocketSettings,
    memory: ReceiveMemory,
    /// The four-tuple of received packets: the peer is the source.
    tuple: FourTuple,
    /// The connection still has its four-tuple.
    is_named: bool,
    next_hop: IpAddr,
    owner: Owner,
    /// Why the connection failed, until a call has reported it.
    error: Option<TcpError>,
}

/// The owner of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
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
        owner: Owner,
    ) -> Self {
        Self {
            conn,
            reader: Reader::default(),
            writer: Writer::default(),
            memory: ReceiveMemory::default(),
            options,
            tuple,
            is_named: true,
            next_hop,
            owner,
            error: None,
        }
    }

    /// Returns the four-tuple of received packets: the peer is the source.
    pub(crate) fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Returns the host on the link that packets are sent to.
    pub(crate) fn next_hop(&self) -> IpAddr {
        self.next_hop
    }

    /// Returns whether the connection still has its four-tuple.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Gives the four-tuple up, and keeps the reason of a failure; returns whether the connection had it.
    pub(super) fn forget_name(&mut self) -> bool {
        if self.is_named {
            self.error = self.conn.error();
        }
        std::mem::take(&mut self.is_named)
    }

    /// Returns the queue on which the last segment arrived.
    pub(crate) fn rx_queue(&self) -> RxQueueId {
        self.memory.queue()
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Sets the owner.
    pub(crate) fn hand_to(&mut self, owner: Owner) {
        self.owner = owner;
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

    /// Returns whether the connection has failed, and no call has reported it.
    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Takes the error of a failed connection, which is reported once.
    pub(crate) fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    /// Notes that the program has read the next `bytes`.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        let Self { conn, reader, .. } = self;
        reader.note_read(bytes);
        if conn.readable_len() == 0 {
            conn.on_read();
        }
    }

    /// Returns the result of a receive from an empty queue: the error of the connection, the end of the stream, or
    /// `WouldBlock`.
    pub(crate) fn end_of_queue(&mut self) -> Result<RecvOutcome, RecvError> {
        match self.take_error() {
            Some(error) => Err(RecvError::Connection(error)),
            None if self.reader.is_at_end(self.conn.state()) => {
                self.conn.on_read();
                Ok(RecvOutcome::without_bytes(Stopped::Eof))
            }
            None => Err(RecvError::WouldBlock),
        }
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
        let Self {
            conn,
            reader,
            memory,
            options,
            ..
        } = self;
        let len = segment.payload.len();
        memory.note_arrival(conn, slot, queue, len, windows);
        if options.timestamping.received && len > 0 {
            reader.note_time(conn, segment.seq, len, now);
        }
        if let Some(pointer) = urgent.filter(|pointer| *pointer > 0) {
            reader.note_urgent(conn, segment.seq, pointer);
        }
        match is_unplaced {
            false => conn.on_segment(segment, &options.tcp, now),
            true => conn.on_unplaced(segment, &options.tcp, now),
        }
    }

    /// Notes the segment that has completed the handshake, with `len` bytes of payload.
    pub(crate) fn note_first(
        &mut self,
        slot: u32,
        queue: RxQueueId,
        len: usize,
        windows: &mut Windows,
        now: Instant,
    ) {
        self.memory
            .note_arrival(&self.conn, slot, queue, len, windows);
        if self.options.timestamping.received {
            self.reader.note_first_time(&self.conn, now);
        }
    }

    /// Returns the total number of payload bytes that became readable in order.
    pub(crate) fn delivered(&self) -> u64 {
        self.reader.delivered(&self.conn)
    }

    /// Returns the bytes that are not read yet, in order or out of order.
    pub(crate) fn unread(&self) -> u64 {
        (self.conn.readable_len() + self.conn.out_of_order_len()) as u64
    }

    /// Tells the NIC where the next byte belongs, if it has a place; returns whether the first bytes behind the place have arrived.
    #[must_use]
    pub(crate) fn advance_place(&mut self, nic: &mut Nic) -> bool {
        self.reader.advance_place(&self.conn, &self.tuple, nic)
    }

    /// Ends the placement of the connection, if there is one.
    pub(crate) fn end_place(&mut self, nic: &mut Nic) {
        self.reader.end_place(&self.tuple, nic);
    }
}
