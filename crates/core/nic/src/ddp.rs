//! Direct data placement: payload of a connection goes to a place that its program chose, not to the queue's memory.
//!
//! A program knows where the next bytes of a stream belong. [`DdpTable::add`](crate::DdpTable::add) tells the NIC: the sequence number of the
//! first of these bytes, and ranges of memory. The payload of a segment that begins at that number is placed there; frags of the
//! ranges take the place of frags of the queue's memory, so that above the NIC nothing differs.
//!
//! A link that scatters has to know before it reads a packet where its payload goes. As for header length and queue, the last
//! packet is the prediction: if its connection has a range, the next bytes of the range are posted before the memory of the
//! queue. If the prediction is wrong, the payload is copied once, to the range of its own connection if it has one, and
//! bytes of another packet lie in the predicted range until its own bytes arrive. So nothing may look at a range before
//! TCP has delivered its bytes.
//!
//! The connection decides whether the payload counts. It may drop a segment that was placed, or receive one that was
//! not: [`DdpTable::resync`](crate::DdpTable::resync) says after each segment where the next byte belongs.

mod ranges;

use std::collections::HashMap;
use std::ops::Range;

use netmem::{BufSpan, FragList, FragUse, OutOfBounds, Payload};
use wire::{FourTuple, RxHeaders};

use crate::pieces::spans_of;
use ranges::DdpRanges;

/// The ranges of all connections that have one.
#[derive(Debug, Default)]
pub struct DdpTable {
    /// That of the last packet with payload, if it has one: most packets need no look at the others.
    predicted: Option<(FourTuple, DdpRanges)>,
    others: HashMap<FourTuple, DdpRanges>,
}

/// Where a connection wants the payload of a packet.
#[derive(Debug)]
pub(crate) struct ChosenPlace<'a> {
    ranges: &'a mut DdpRanges,
    is_predicted: bool,
}

impl ChosenPlace<'_> {
    /// Returns how many of `len` bytes of payload there is room for.
    pub(crate) fn room(&mut self, len: usize) -> usize {
        self.ranges.front(len).len().min(len)
    }

    /// Returns whether it was the connection that [`DdpTable::post`] posts the ranges of.
    pub(crate) fn is_predicted(&self) -> bool {
        self.is_predicted
    }
}

impl DdpTable {
    /// Returns whether no connection has chosen a place.
    pub(crate) fn is_empty(&self) -> bool {
        self.predicted.is_none() && self.others.is_empty()
    }

    fn is_predicted(&self, flow: &FourTuple) -> bool {
        self.predicted.as_ref().is_some_and(|(it, _)| it == flow)
    }

    /// Returns the range of a connection.
    fn get_mut(&mut self, flow: &FourTuple) -> Option<&mut DdpRanges> {
        match &mut self.predicted {
            Some((it, range)) if it == flow => Some(range),
            _ => self.others.get_mut(flow),
        }
    }

    /// Predicts that the next packet with payload is of the same connection as this one.
    pub(crate) fn predict(&mut self, headers: &RxHeaders) {
        if !self.is_empty() {
            self.predict_flow(headers.four_tuple());
        }
    }

    fn predict_flow(&mut self, flow: Option<FourTuple>) {
        if self.predicted.as_ref().map(|(it, _)| *it) == flow {
            return;
        }
        if let Some((before, range)) = self.predicted.take() {
            self.others.insert(before, range);
        }
        self.predicted = flow.and_then(|flow| self.others.remove_entry(&flow));
    }

    /// Prepares the predicted range for the next frame, of at most `room` bytes of payload; returns how many of its bytes
    /// [`posted`](Self::posted) returns.
    pub(crate) fn post(&mut self, room: usize) -> usize {
        let predicted = self.predicted.as_mut();
        predicted.map_or(0, |(_, ranges)| ranges.postable(room))
    }

    /// Returns `wanted` of the next bytes of the predicted range.
    pub(crate) fn posted(&self, wanted: Range<usize>) -> impl Iterator<Item = BufSpan<'_>> {
        let ranges = self.predicted.iter();
        spans_of(ranges.flat_map(|(_, ranges)| ranges.made()), wanted)
    }

    /// Returns the place of the payload of a packet; `None`: its connection has chosen none, or expects another packet.
    pub(crate) fn place_of(&mut self, headers: &RxHeaders) -> Option<ChosenPlace<'_>> {
        if headers.payload_len == 0 {
            return None;
        }
        let (flow, seq) = (headers.four_tuple()?, headers.tcp()?.seq);
        let is_predicted = self.is_predicted(&flow);
        let ranges = self.get_mut(&flow)?;
        (ranges.seq == seq && ranges.left() > 0).then_some(ChosenPlace {
            ranges,
            is_predicted,
        })
    }

    /// Takes the first `len` bytes of the [place of a packet](Self::place_of).
    pub(crate) fn take(&mut self, headers: &RxHeaders, len: usize) -> FragList {
        let flow = headers.four_tuple();
        let ranges = flow.and_then(|flow| self.get_mut(&flow));
        ranges.map(|ranges| ranges.take(len)).unwrap_or_default()
    }

    /// Places the payload of a connection from sequence number `seq` on in `ranges` of a memory, one after another. Replaces
    /// earlier ranges of the connection.
    ///
    /// # Errors
    /// A range is not inside the memory; then nothing has changed.
    pub fn add(
        &mut self,
        flow: FourTuple,
        seq: u32,
        memory: FragUse,
        ranges: Vec<Range<usize>>,
    ) -> Result<(), OutOfBounds> {
        let ranges = DdpRanges::new(seq, memory, ranges)?;
        self.remove(&flow);
        self.others.insert(flow, ranges);
        // Its next packet is the likely one: somebody waits for it.
        self.predict_flow(Some(flow));
        Ok(())
    }

    /// Tells that the next byte of a connection has the sequence number `seq`, and that `left` bytes of its ranges are still to
    /// be filled.
    pub fn resync(&mut self, flow: &FourTuple, seq: u32, left: usize) {
        if let Some(ranges) = self.get_mut(flow) {
            ranges.resync(seq, left);
        }
    }

    /// Forgets the range of a connection: from now on no packet changes its bytes.
    pub fn remove(&mut self, flow: &FourTuple) {
        if self.is_predicted(flow) {
            self.predicted = None;
        }
        self.others.remove(flow);
    }
}
