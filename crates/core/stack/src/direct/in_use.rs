//! Which bytes of targets must not be written: those that the NIC will write, and received ones that the program has not
//! taken yet.
//!
//! A connection knows its unread bytes and its lent frags exactly. [`Placements`] says which connections to ask: those with
//! a place in the same memory of which frags are left. Without direct placement there are none, and nothing is asked.

use std::fmt;
use std::ops::Range;

use devmem_uapi::{DmabufCmsg, DmabufId, DmabufToken, FragToken};
use netmem::{Dmabuf, Frag, TxObserver};

use crate::Stack;
use crate::direct::PlaceError;
use crate::socket::error::{BadSocket, UnknownBinding};
use crate::socket::sockets::Sockets;
use crate::socket::table::SocketId;
use crate::socket::{ConnectionSocket, SocketKind};

/// What bytes of a target are needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceUse {
    /// A connection has received them there, and they were not read.
    Unread,
    /// They are lent: neither gathered nor released.
    Lent,
    /// A connection will receive bytes there.
    Named,
}

impl fmt::Display for PlaceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unread => "hold received bytes that were not read; receive and gather them first",
            Self::Lent => {
                "hold received bytes that were neither gathered nor released; gather or release them first"
            }
            Self::Named => {
                "are the place of bytes that a stream will receive; receive them first, or end that place"
            }
        })
    }
}

/// Bytes of a target that must not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceInUse {
    /// The bytes.
    pub range: Range<usize>,
    /// What they are needed for.
    pub used: PlaceUse,
}

impl fmt::Display for PlaceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, used } = self;
        let Range { start, end } = range;
        write!(f, "bytes {start} to {end} of the memory {used}")
    }
}

/// The places that connections were given, as long as frags of them may be left.
#[derive(Debug, Default)]
pub(crate) struct Placements(Vec<Placement>);

#[derive(Debug)]
struct Placement {
    socket: SocketId,
    target: DmabufId,
    frags: TxObserver,
    ranges: Vec<Range<usize>>,
}

impl Placements {
    /// Notes a new place, and forgets those of which nothing is left.
    pub(super) fn add(
        &mut self,
        socket: SocketId,
        target: DmabufId,
        frags: TxObserver,
        ranges: &[Range<usize>],
    ) {
        self.0.retain(|placement| !placement.frags.is_over());
        self.0.push(Placement {
            socket,
            target,
            frags,
            ranges: ranges.to_vec(),
        });
    }

    /// Returns the places in `memory` that overlap `ranges`.
    fn overlapping<'a>(
        &'a self,
        memory: &'a Dmabuf,
        ranges: &'a [Range<usize>],
    ) -> impl Iterator<Item = &'a Placement> {
        let meets = |placement: &&Placement| {
            let mut placed = placement.ranges.iter();
            placed.any(|range| overlap(ranges, range).is_some())
        };
        let candidates = self.0.iter().filter(meets);
        candidates.filter(|placement| placement.frags.is_in(memory))
    }
}

/// Frags of targets that are lent, and whose bytes were not gathered yet.
#[derive(Debug, Default)]
pub(crate) struct LentPlaces {
    /// The targets in which the connection was given places.
    targets: Vec<DmabufId>,
    lent: Vec<(FragToken, DmabufId, Range<usize>)>,
}

impl LentPlaces {
    pub(super) fn watch(&mut self, target: DmabufId) {
        if !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }

    /// Notes a frag that is lent now.
    pub(crate) fn on_lent(&mut self, cmsg: &DmabufCmsg) {
        if self.targets.contains(&cmsg.dmabuf_id) {
            let range = range_of(cmsg.frag_offset, cmsg.frag_size as usize);
            self.lent.push((cmsg.frag_token, cmsg.dmabuf_id, range));
        }
    }

    /// Forgets frags that were released or gathered.
    pub(crate) fn forget(&mut self, tokens: &[DmabufToken]) {
        self.lent.retain(|(token, _, _)| !is_named(*token, tokens));
    }

    /// Returns the bytes that are lent of `target`, frags of `except` aside.
    fn of(&self, target: DmabufId, except: &[DmabufToken]) -> impl Iterator<Item = &Range<usize>> {
        let lent = self.lent.iter();
        let lent = lent.filter(move |(token, id, _)| *id == target && !is_named(*token, except));
        lent.map(|(_, _, range)| range)
    }
}

fn is_named(token: FragToken, ranges: &[DmabufToken]) -> bool {
    let mut ranges = ranges.iter();
    ranges.any(|range| token.0.wrapping_sub(range.token_start.0) < range.token_count)
}

/// What is going to be written, and what may be overwritten.
#[derive(Clone, Copy)]
struct Writing<'a> {
    ranges: &'a [Range<usize>],
    /// Lent frags of the connection `by` whose bytes may be overwritten: those that are gathered.
    gathered: &'a [DmabufToken],
    by: SocketId,
    /// The place of `by` is replaced: its unread bytes may stay where the new place has them.
    replaces: bool,
}

impl Writing<'_> {
    /// Returns bytes of a place that its connection still needs.
    fn conflict(&self, at: &Placement, sockets: &Sockets) -> Option<PlaceInUse> {
        // Nothing reads the bytes of a closed socket any more.
        let Ok(SocketKind::Connection(connection)) = sockets.get(at.socket) else {
            return None;
        };
        let found = |used| move |range| PlaceInUse { range, used };
        let named = self.named(at, connection).map(found(PlaceUse::Named));
        named
            .or_else(|| self.unread(at, connection).map(found(PlaceUse::Unread)))
            .or_else(|| self.lent(at, connection).map(found(PlaceUse::Lent)))
    }

    fn is_replaced(&self, at: &Placement) -> bool {
        self.replaces && self.by == at.socket
    }

    fn named(&self, at: &Placement, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let placing = connection.placing.as_ref();
        let placing = placing.filter(|it| it.target == at.target && !self.is_replaced(at))?;
        let mut rest = placing.rest(connection.delivered());
        rest.find_map(|range| overlap(self.ranges, &range))
    }

    fn unread(&self, at: &Placement, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let mut position = 0;
        let mut frags = connection.conn.unread().flat_map(|payload| payload.iter());
        frags.find_map(|frag: &Frag| {
            let before = position;
            position += frag.len();
            if frag.dmabuf_id() != Some(at.target) {
                return None;
            }
            let range = range_of(frag.dmabuf_offset(), frag.len());
            let stays = self.is_replaced(at) && is_at(self.ranges, before, &range);
            overlap(self.ranges, &range).filter(|_| !stays)
        })
    }

    fn lent(&self, at: &Placement, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let except = match self.by == at.socket {
            true => self.gathered,
            false => &[],
        };
        let mut lent = connection.lent_places.as_ref()?.of(at.target, except);
        lent.find_map(|range| overlap(self.ranges, range))
    }
}

impl Stack {
    /// Returns bytes of `range` of `memory` that the NIC will write, or that hold received bytes which their program has not
    /// taken yet, the frags `gathered` of the connection `by` aside. A copy to them would destroy payload.
    pub fn place_in_use(
        &self,
        memory: &Dmabuf,
        range: Range<usize>,
        by: SocketId,
        gathered: &[DmabufToken],
    ) -> Option<PlaceInUse> {
        let ranges = &[range];
        let writing = Writing {
            ranges,
            gathered,
            by,
            replaces: false,
        };
        self.conflict(memory, writing)
    }

    /// Returns bytes of `ranges` of `memory` that connections of this stack need, as [`Stack::place_next`] checks it:
    /// for a place of a connection of another stack of the same NIC.
    pub fn places_in_use(&self, memory: &Dmabuf, ranges: &[Range<usize>]) -> Option<PlaceInUse> {
        let mut candidates = self.memory.bindings.placements.overlapping(memory, ranges);
        candidates.find_map(|placement| {
            let writing = Writing {
                ranges,
                gathered: &[],
                by: placement.socket,
                replaces: false,
            };
            writing.conflict(placement, &self.sockets)
        })
    }

    /// Notes that the bytes of lent frags were gathered: their memory may be named as a place again, although they are not
    /// released yet.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn gathered(&mut self, id: SocketId, tokens: &[DmabufToken]) -> Result<(), BadSocket> {
        let mut connection = self.sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        if let Some(lent) = &mut connection.lent_places {
            lent.forget(tokens);
        }
        Ok(())
    }

    /// Checks that the connection `id` may be given a place of `target`: see [`Stack::place_next`].
    ///
    /// # Errors
    /// [`PlaceError::UnknownBinding`], [`PlaceError::InUse`].
    pub(super) fn check_place(
        &self,
        id: SocketId,
        target: DmabufId,
        ranges: &[Range<usize>],
    ) -> Result<(), PlaceError> {
        let memory = self.memory.bindings.targets.get(&target);
        let memory = memory.ok_or(UnknownBinding(target))?.dmabuf();
        let writing = Writing {
            ranges,
            gathered: &[],
            by: id,
            replaces: true,
        };
        let conflict = self.conflict(&memory, writing);
        conflict.map_or(Ok(()), |found| Err(PlaceError::InUse(found)))
    }

    fn conflict(&self, memory: &Dmabuf, writing: Writing<'_>) -> Option<PlaceInUse> {
        let placements = &self.memory.bindings.placements;
        let mut candidates = placements.overlapping(memory, writing.ranges);
        candidates.find_map(|placement| writing.conflict(placement, &self.sockets))
    }
}

fn range_of(offset: u64, len: usize) -> Range<usize> {
    // The memory is mapped in this process, so its offsets fit usize.
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    start..start.saturating_add(len)
}

/// Returns the first bytes of `range` that are in `ranges`, too.
fn overlap(ranges: &[Range<usize>], range: &Range<usize>) -> Option<Range<usize>> {
    ranges.iter().find_map(|other| {
        let both = range.start.max(other.start)..range.end.min(other.end);
        (!both.is_empty()).then_some(both)
    })
}

/// Returns whether `found` is where the byte at `position` of `ranges`, and those behind it, belong.
fn is_at(ranges: &[Range<usize>], position: usize, found: &Range<usize>) -> bool {
    let (mut skip, mut at) = (position, found.start);
    for range in ranges {
        if at >= found.end {
            break;
        }
        if skip >= range.len() {
            skip -= range.len();
            continue;
        }
        if range.start + skip != at {
            return false;
        }
        at = found.end.min(range.end);
        skip = 0;
    }
    at == found.end
}

#[cfg(test)]
mod tests {
    use super::is_at;

    #[test]
    fn bytes_are_at_their_place_across_ranges() {
        let ranges = [10..20, 20..30, 100..110];
        assert!(is_at(&ranges, 0, &(10..30)));
        assert!(is_at(&ranges, 5, &(15..25)));
        assert!(is_at(&ranges, 20, &(100..110)));
        assert!(!is_at(&ranges, 5, &(14..25)));
        assert!(
            !is_at(&ranges, 15, &(25..35)),
            "the third range is elsewhere"
        );
        assert!(!is_at(&ranges, 25, &(105..111)), "behind the last range");
        assert!(!is_at(&[], 0, &(0..1)));
    }
}
