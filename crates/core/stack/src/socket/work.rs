//! Lists of sockets with work to do soon. Each socket has a mark for each list, so that it is listed once.

use std::mem;

/// The work that a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The socket may have something to send.
    Touched,
    /// The connection has received segments since it was served.
    Arrivals,
    /// The connection was served and has an ACK that waits for the link to be empty.
    HeldAck,
}

impl Work {
    const COUNT: usize = 3;
}

/// The lists that a socket is in.
#[derive(Debug, Default)]
pub(super) struct WorkMarks([bool; Work::COUNT]);

impl WorkMarks {
    /// Clears the mark for `work`; returns whether it was set.
    pub(super) fn clear(&mut self, work: Work) -> bool {
        mem::take(&mut self.0[work as usize])
    }
}

/// The lists, of slots.
#[derive(Debug, Default)]
pub(super) struct WorkLists([Vec<u32>; Work::COUNT]);

impl WorkLists {
    /// Enters a socket, which has these marks.
    pub(super) fn add(&mut self, work: Work, slot: u32, marks: &mut WorkMarks) {
        if !mem::replace(&mut marks.0[work as usize], true) {
            self.0[work as usize].push(slot);
        }
    }

    pub(super) fn of(&self, work: Work) -> &[u32] {
        &self.0[work as usize]
    }

    /// Takes a list. The marks of its sockets stay.
    pub(super) fn take(&mut self, work: Work) -> Vec<u32> {
        mem::take(&mut self.0[work as usize])
    }

    /// Gives the memory of a list back that was taken and is empty now. Sockets that were entered meanwhile stay.
    pub(super) fn reuse(&mut self, work: Work, mut taken: Vec<u32>) {
        taken.append(&mut self.0[work as usize]);
        self.0[work as usize] = taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_in_a_list_once_until_its_mark_is_cleared() {
        let (mut lists, mut marks) = (WorkLists::default(), WorkMarks::default());
        lists.add(Work::Arrivals, 7, &mut marks);
        lists.add(Work::Arrivals, 7, &mut marks);
        assert_eq!(lists.of(Work::Arrivals), [7]);
        assert_eq!(lists.of(Work::HeldAck), []);
        let mut taken = lists.take(Work::Arrivals);
        assert!(marks.clear(Work::Arrivals));
        assert!(!marks.clear(Work::Arrivals));
        lists.add(Work::Arrivals, 7, &mut marks);
        taken.clear();
        lists.reuse(Work::Arrivals, taken);
        assert_eq!(lists.of(Work::Arrivals), [7], "entered meanwhile");
    }
}
