//! The reading side of a connection: what the program has read, holds by tokens, and wants where.

use std::ops::Range;

use devmem_uapi::{DmabufId, DmabufToken};
use netmem::{FragList, Netmem};
use nic::Nic;
use tcp::{Connection, SeqNum, StateKind};
use wire::{FourTuple, Instant};

use crate::socket::place::{Place, PlacedFrags};
use crate::socket::timestamps::ArrivalTimes;
use crate::socket::token_table::{TokenMemory, TokenTable};

/// The reading side of a connection.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Total payload bytes read by the program.
    read: u64,
    /// Arrival times of unread bytes, if enabled.
    arrival_times: ArrivalTimes,
    /// Position in the stream of the byte that the peer last called urgent, until it is read.
    urgent: Option<u64>,
    /// Where the next bytes belong, if the program has said so.
    place: Option<Place>,
    /// Frags in its places that are lent. `None`: it was given no place yet.
    pub(crate) placed_frags: Option<Box<PlacedFrags>>,
    /// The frags that are lent. What is released is not needed at its place any more, either ([`Reader::note_gathered`]).
    pub(crate) tokens: TokenTable<TokenMemory>,
    /// The program has shut down reading.
    is_shut_down: bool,
}

impl Reader {
    /// Notes that the program has read the next `bytes`.
    pub(super) fn note_read(&mut self, bytes: usize) {
        self.read += bytes as u64;
        self.arrival_times.forget(self.read);
    }

    /// Returns whether nothing follows what was received: the connection is over, or reading was shut down.
    pub(super) fn is_at_end(&self, state: StateKind) -> bool {
        match state {
            StateKind::SynSent | StateKind::SynReceived => false,
            StateKind::Established | StateKind::FinWait1 | StateKind::FinWait2 => self.is_shut_down,
            _ => true,
        }
    }

    /// Returns the total number of payload bytes that became readable in order.
    pub(crate) fn delivered(&self, conn: &Connection<FragList>) -> u64 {
        self.read + conn.readable_len() as u64
    }

    /// Returns the arrival time of the segment with the last of the next `bytes`, if it was noted.
    pub(crate) fn arrival_of_next(&self, bytes: usize) -> Option<Instant> {
        self.arrival_times.of(self.read..self.read + bytes as u64)
    }

    /// Notes that the program has shut down reading.
    pub(crate) fn shut_down(&mut self) {
        self.is_shut_down = true;
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.is_shut_down
    }

    /// Forgets the arrival times: the program does not want them any more.
    pub(crate) fn forget_times(&mut self) {
        self.arrival_times = ArrivalTimes::default();
    }

    /// Notes the arrival time of the payload of a segment, `len` bytes from `seq` on, before TCP processes it.
    pub(super) fn note_time(
        &mut self,
        conn: &Connection<FragList>,
        seq: SeqNum,
        len: usize,
        now: Instant,
    ) {
        let in_order = self.delivered(conn);
        let Some(start) = self.position_of(conn, seq) else {
            return;
        };
        let behind = start.saturating_add(len as u64);
        if behind > in_order {
            self.arrival_times.note(start.max(in_order)..behind, now);
        }
    }

    /// Notes the arrival time of payload in the segment that completed the handshake.
    pub(super) fn note_first_time(&mut self, conn: &Connection<FragList>, now: Instant) {
        let arrived = conn.readable_len() as u64;
        if arrived > 0 {
            self.arrival_times.note(0..arrived, now);
        }
    }

    /// Returns the position in the stream of the byte numbered `seq`.
    fn position_of(&self, conn: &Connection<FragList>, seq: SeqNum) -> Option<u64> {
        // Relative to RCV.NXT; valid segments are less than half of the sequence space away.
        let ahead = |nxt: SeqNum| i64::from(seq.0.wrapping_sub(nxt.0).cast_signed());
        let in_order = self.delivered(conn);
        in_order.checked_add_signed(conn.rcv_nxt().map(ahead)?)
    }

    /// Notes the urgent pointer of a segment from `seq` on, before TCP processes it: the byte before the one that it points to
    /// is urgent (linux `tcp_check_urg`; RFC 6093 3.1 describes it). The byte stays in the stream.
    pub(super) fn note_urgent(&mut self, conn: &Connection<FragList>, seq: SeqNum, pointer: u16) {
        let position = self.position_of(conn, seq + usize::from(pointer - 1));
        if let Some(position) = position.filter(|position| *position >= self.read) {
            self.urgent = Some(position);
        }
    }

    /// Returns how many bytes lie before the urgent byte; `None` if there is none, or it was read.
    pub(crate) fn until_urgent(&self) -> Option<u64> {
        self.urgent?.checked_sub(self.read)
    }

    /// Takes all tokens back.
    pub(crate) fn release_tokens(&mut self, mut home: impl FnMut(Netmem)) {
        self.tokens
            .release_all(|memory| memory.into_iter().for_each(&mut home));
    }

    /// Returns the number of tokens that have not been given back.
    pub(crate) fn tokens_outstanding(&self) -> usize {
        self.tokens.outstanding()
    }

    /// Returns the net_iovs that are lent.
    pub(crate) fn lent(&self) -> impl Iterator<Item = &Netmem> {
        self.tokens.held().flat_map(TokenMemory::netmems)
    }

    /// Notes that the bytes of these frags are not needed any more at their place.
    pub(crate) fn note_gathered(&mut self, ranges: &[DmabufToken]) {
        if let Some(placed) = &mut self.placed_frags {
            placed.forget(ranges);
        }
    }

    /// Returns the bytes that are lent of `target`, frags of `except` aside.
    pub(crate) fn lent_of(
        &self,
        target: DmabufId,
        except: &[DmabufToken],
    ) -> impl Iterator<Item = &Range<usize>> {
        let placed = self.placed_frags.as_deref().into_iter();
        placed.flat_map(move |placed| placed.of(target, except))
    }

    /// Sets the place of the next `len` bytes: `ranges` of `target`.
    pub(crate) fn set_place(&mut self, target: DmabufId, ranges: &[Range<usize>], len: usize) {
        self.place = Some(Place {
            target,
            ranges: ranges.to_vec(),
            end: self.read + len as u64,
        });
        self.placed_frags.get_or_insert_default().watch(target);
    }

    /// Returns the place of the next bytes.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Tells the NIC where the next byte of the connection belongs, or that its place is full. Returns whether the first bytes behind
    /// the place have arrived: the program may tell from them where the next ones belong.
    #[must_use]
    pub(super) fn advance_place(
        &mut self,
        conn: &Connection<FragList>,
        flow: &FourTuple,
        nic: &mut Nic,
    ) -> bool {
        let Some(end) = self.place.as_ref().map(|place| place.end) else {
            return false;
        };
        let delivered = self.delivered(conn);
        let left = end.saturating_sub(delivered);
        match (conn.rcv_nxt(), usize::try_from(left)) {
            (Some(seq), Ok(left)) if left > 0 => nic.ddp().resync(flow, seq.0, left),
            (Some(_), _) if delivered == end => nic.ddp().remove(flow),
            _ => {
                self.end_place(flow, nic);
                return true;
            }
        }
        false
    }

    /// Ends the placement of the connection, if there is one: no later packet changes the bytes of its place.
    pub(crate) fn end_place(&mut self, flow: &FourTuple, nic: &mut Nic) {
        if self.place.take().is_some() {
            nic.ddp().remove(flow);
        }
    }
}
