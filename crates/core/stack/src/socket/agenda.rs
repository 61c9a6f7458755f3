//! What sockets are noted for: a bit per socket and mark, lists of the marked sockets, and timers.

use std::mem;

use wire::Instant;

use crate::slot_heap::SlotHeap;

/// What a socket is noted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Its readiness has changed since the program last asked.
    Event,
    /// It may have something to send.
    Touched,
    /// The connection has received segments since it was served.
    Arrivals,
    /// The connection was served and has an ACK that waits for the link to be empty.
    HeldAck,
    /// The peer has acknowledged sends that the NIC still holds.
    Draining,
    /// The connection may hold payload.
    Holder,
    /// The connection has bytes that wait to be sent. These are only counted, and not listed.
    Unsent,
}

impl Mark {
    /// The marks with a list; the others follow.
    pub(super) const LISTED: [Self; 6] = [
        Self::Event,
        Self::Touched,
        Self::Arrivals,
        Self::HeldAck,
        Self::Draining,
        Self::Holder,
    ];
    const COUNT: usize = Self::LISTED.len() + 1;
}

/// The marks of one socket.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks(u8);

impl Marks {
    fn has(self, mark: Mark) -> bool {
        self.0 & 1 << mark as u8 != 0
    }
}

/// The marked sockets of a stack, by slot.
///
/// A list may have slots of sockets that have lost the mark meanwhile, and a slot twice if a closed socket had it before. So
/// whoever takes a list clears the mark of each slot, and passes over slots that did not have it.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    lists: [Vec<u32>; Mark::LISTED.len()],
    /// Number of sockets with each mark.
    marked: [usize; Mark::COUNT],
    pub(super) timers: SlotHeap<Instant>,
}

impl Agenda {
    /// Marks the socket in `slot`, which has these marks.
    pub(super) fn add(&mut self, mark: Mark, slot: u32, marks: &mut Marks) {
        if !marks.has(mark) {
            marks.0 |= 1 << mark as u8;
            self.marked[mark as usize] += 1;
            if let Some(list) = self.lists.get_mut(mark as usize) {
                list.push(slot);
            }
        }
    }

    /// Clears a mark; returns whether it was set.
    pub(super) fn clear(&mut self, mark: Mark, marks: &mut Marks) -> bool {
        let was_set = marks.has(mark);
        marks.0 &= !(1 << mark as u8);
        self.marked[mark as usize] -= usize::from(was_set);
        was_set
    }

    /// Forgets the socket in `slot`, which had these marks.
    pub(super) fn remove(&mut self, slot: u32, mut marks: Marks) {
        self.timers.set(slot, None);
        for mark in Mark::LISTED.into_iter().chain([Mark::Unsent]) {
            self.clear(mark, &mut marks);
        }
    }

    /// Returns whether any socket has this mark.
    pub(super) fn any(&self, mark: Mark) -> bool {
        self.marked[mark as usize] > 0
    }

    /// Returns the length of a list.
    pub(super) fn listed(&self, mark: Mark) -> usize {
        self.lists.get(mark as usize).map_or(0, Vec::len)
    }

    /// Takes a list. The marks of its sockets stay.
    pub(super) fn take(&mut self, mark: Mark) -> Vec<u32> {
        self.lists
            .get_mut(mark as usize)
            .map(mem::take)
            .unwrap_or_default()
    }

    /// Gives a list back, to reuse its memory. Sockets that were marked meanwhile follow what is left in it.
    pub(super) fn reuse(&mut self, mark: Mark, mut taken: Vec<u32>) {
        if let Some(list) = self.lists.get_mut(mark as usize) {
            taken.append(list);
            *list = taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_in_a_list_once_until_its_mark_is_cleared() {
        let (mut agenda, mut marks) = (Agenda::default(), Marks::default());
        agenda.add(Mark::Arrivals, 7, &mut marks);
        agenda.add(Mark::Arrivals, 7, &mut marks);
        assert!(agenda.any(Mark::Arrivals) && !agenda.any(Mark::HeldAck));
        let mut taken = agenda.take(Mark::Arrivals);
        assert_eq!(taken, [7]);
        assert!(agenda.clear(Mark::Arrivals, &mut marks));
        assert!(!agenda.clear(Mark::Arrivals, &mut marks));
        assert!(!agenda.any(Mark::Arrivals));
        agenda.add(Mark::Arrivals, 7, &mut marks);
        taken.clear();
        agenda.reuse(Mark::Arrivals, taken);
        assert_eq!(agenda.take(Mark::Arrivals), [7], "marked meanwhile");
    }

    #[test]
    fn a_removed_socket_has_no_mark_and_no_timer() {
        let (mut agenda, mut marks) = (Agenda::default(), Marks::default());
        for mark in Mark::LISTED.into_iter().chain([Mark::Unsent]) {
            agenda.add(mark, 3, &mut marks);
            assert!(agenda.any(mark));
        }
        agenda.timers.set(3, Some(Instant::ZERO));
        agenda.remove(3, marks);
        for mark in Mark::LISTED.into_iter().chain([Mark::Unsent]) {
            assert!(!agenda.any(mark), "{mark:?}");
        }
        assert_eq!(agenda.timers.first(), None);
        assert_eq!(agenda.listed(Mark::Unsent), 0);
    }
}
