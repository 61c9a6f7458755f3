//! Direct placement: a program says where the next bytes of a connection belong, and the NIC receives them there.
//!
//! The NIC keeps the ranges (`nic::DdpTable::add`), by sequence number. A connection keeps the position in its stream at which its
//! place ends. After each segment, [`ConnectionSocket::advance_place`](crate::socket::connection::ConnectionSocket::advance_place)
//! tells the NIC where the next byte in order belongs: only TCP knows which segments count.

use std::ops::Range;

use devmem_uapi::{DmabufId, DmabufToken};
use netmem::{Dmabuf, FragSource, RxClaim};

use super::Stack;
use crate::binding::Bound;
use crate::placement::{BindTargetError, PlaceError, PlaceInUse, Writing};
use crate::socket::error::{BadSocket, UnknownBinding};
use crate::socket::id::SocketId;
use crate::socket::place::behind;

impl Stack {
    /// Binds a dma-buf as a target: [`Stack::place_next`] may name ranges of it.
    ///
    /// # Errors
    /// [`BindTargetError`]. Nothing has changed then.
    pub fn bind_target(&mut self, dmabuf: &Dmabuf) -> Result<DmabufId, BindTargetError> {
        if dmabuf.copy_engine().is_some() {
            return Err(BindTargetError::NotMapped);
        }
        if RxClaim::is_bound(dmabuf) {
            return Err(BindTargetError::Receives);
        }
        let bindings = &mut self.memory.bindings;
        let id = bindings.next_id().ok_or(BindTargetError::NoId)?;
        bindings.insert(id, Bound::Target(FragSource::new(dmabuf, id)?));
        Ok(id)
    }

    /// Removes a binding as a target. Ranges that are being filled stay in use, until they are full or
    /// their connection is closed; frags of the memory keep it mapped.
    ///
    /// # Errors
    /// [`UnknownBinding`].
    pub fn unbind_target(&mut self, id: DmabufId) -> Result<(), UnknownBinding> {
        self.memory.bindings.target(id)?;
        self.memory.bindings.remove(id);
        Ok(())
    }

    /// Says where the next unread bytes of a connection belong: in `ranges` of a target, one after another. Bytes that arrive
    /// from now on are received there, in order, and delivered as frags of that memory. Those that were received already stay where they
    /// are: in the memory of the queue, or in an earlier place. Those that arrive out of order, and those behind the last range, go to the
    /// memory of the queue, as without this call. Replaces earlier ranges; no range only ends those.
    ///
    /// Until it is full or replaced, or the socket is closed, the NIC may write any bytes to the part of the range that was
    /// not delivered yet. So the ranges must not have bytes that are still needed: unread ones of an earlier place, except where
    /// these ranges have them at the same place; lent ones that were neither gathered ([`Stack::gathered`]) nor released; those of the
    /// place of another connection. Nor may one byte be in two of the ranges.
    ///
    /// # Errors
    /// [`PlaceError`]. Nothing has changed then.
    pub fn place_next(
        &mut self,
        id: SocketId,
        target: DmabufId,
        ranges: &[Range<usize>],
    ) -> Result<(), PlaceError> {
        check_distinct(ranges)?;
        let writing = Writing {
            ranges,
            by: Some(id),
            replaces: true,
            ..Writing::default()
        };
        let memory = self.memory.bindings.target(target)?.dmabuf();
        if let Some(found) = self.conflict(&memory, writing) {
            return Err(PlaceError::InUse(found));
        }
        let Self {
            nic,
            sockets,
            memory,
            ..
        } = self;
        let target_memory = memory.bindings.target(target)?;
        let len = total_len(target_memory, ranges)?;
        let mut connection = sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        let seq = connection.conn.rcv_nxt().ok_or(PlaceError::NotConnected)?;
        connection.end_place(nic);
        let unread = connection.conn.readable_len();
        if unread < len {
            connection.reader.set_place(target, ranges, len);
            let (flow, rest) = (*connection.tuple(), behind(ranges, unread).collect());
            let frags = target_memory.begin();
            let places = &mut memory.bindings.places;
            places.add(id, target, frags.observer(), ranges);
            let added = nic.ddp().add(flow, seq.0, frags, rest);
            debug_assert!(added.is_ok(), "the ranges were checked: {added:?}");
        }
        Ok(())
    }

    /// Returns bytes of `range` of `memory` that the NIC will write, or that hold received bytes which their program has not
    /// taken yet, the frags `gathered` of the connection `by` aside. A copy to them would destroy payload.
    pub fn place_in_use(
        &self,
        memory: &Dmabuf,
        range: Range<usize>,
        by: SocketId,
        gathered: &[DmabufToken],
    ) -> Option<PlaceInUse> {
        let writing = Writing {
            ranges: &[range],
            by: Some(by),
            gathered,
            replaces: false,
        };
        self.conflict(memory, writing)
    }

    /// Returns bytes of `ranges` of `memory` that connections of this stack need, as [`Stack::place_next`] checks it:
    /// for a place of a connection of another stack of the same NIC.
    pub fn places_in_use(&self, memory: &Dmabuf, ranges: &[Range<usize>]) -> Option<PlaceInUse> {
        let writing = Writing {
            ranges,
            ..Writing::default()
        };
        self.conflict(memory, writing)
    }

    /// Notes that the bytes of lent frags were gathered: their memory may be named as a place again, although they are not
    /// released yet.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn gathered(&mut self, id: SocketId, tokens: &[DmabufToken]) -> Result<(), BadSocket> {
        let mut connection = self.sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        connection.reader.note_gathered(tokens);
        Ok(())
    }

    fn conflict(&self, memory: &Dmabuf, writing: Writing<'_>) -> Option<PlaceInUse> {
        let places = &self.memory.bindings.places;
        let mut candidates = places.overlapping(memory, writing.ranges);
        candidates.find_map(|placement| writing.conflict(placement, &self.sockets))
    }
}

/// Returns the number of bytes of ranges, all of which are inside of the memory.
fn total_len(target: &FragSource, ranges: &[Range<usize>]) -> Result<usize, PlaceError> {
    ranges.iter().try_fold(0_usize, |sum, range| {
        let len = range.end.checked_sub(range.start);
        let len = len.filter(|&len| target.check(range.start, len).is_ok());
        let sum = len.and_then(|len| sum.checked_add(len));
        sum.ok_or(PlaceError::OutOfBounds {
            start: range.start,
            end: range.end,
            size: target.size(),
        })
    })
}

/// Checks that no byte is in two ranges.
fn check_distinct(ranges: &[Range<usize>]) -> Result<(), PlaceError> {
    let is_sorted = |pair: &[Range<usize>]| pair[0].end <= pair[1].start;
    if ranges.windows(2).all(is_sorted) {
        return Ok(());
    }
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_by_key(|range| range.start);
    let twice = sorted.windows(2).find(|pair| pair[0].end > pair[1].start);
    twice.map_or(Ok(()), |pair| {
        Err(PlaceError::Twice {
            start: pair[1].start,
            end: pair[0].end.min(pair[1].end),
        })
    })
}
