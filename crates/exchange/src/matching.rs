//! Which send goes to which posted part: by tag, each in order (the rule of NCCL's network interface).

use std::collections::VecDeque;

/// Room for one message: a part that the peer has posted and that no send has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The peer's receive.
    pub(crate) op: u64,
    pub(crate) part: u8,
    pub(crate) len: u64,
    pub(crate) tag: u32,
}

/// A send without room.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    send: u64,
    tag: u32,
}

/// The posted parts and the sends that have not met. At most one of the two has entries of a tag.
///
/// A send goes to the first posted part of its tag, parts being in the order of their receives and of their indices. Sends of
/// one tag keep their order; a send may overtake another one of a different tag.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    rooms: VecDeque<Room>,
    waiting: VecDeque<Waiting>,
}

impl Matcher {
    /// Returns the send that takes the new room, if one waits for it.
    pub(crate) fn on_posted(&mut self, room: Room) -> Option<u64> {
        let first = self.waiting.iter().position(|send| send.tag == room.tag);
        let waiting = first.and_then(|first| self.waiting.remove(first));
        if waiting.is_none() {
            self.rooms.push_back(room);
        }
        waiting.map(|waiting| waiting.send)
    }

    /// Returns the room that the new send takes; without one, the send waits.
    pub(crate) fn on_send(&mut self, send: u64, tag: u32) -> Option<Room> {
        let first = self.rooms.iter().position(|room| room.tag == tag);
        let room = first.and_then(|first| self.rooms.remove(first));
        if room.is_none() {
            self.waiting.push_back(Waiting { send, tag });
        }
        room
    }

    /// Returns the number of rooms that no send has taken.
    pub(crate) fn rooms(&self) -> usize {
        self.rooms.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(op: u64, part: u8, tag: u32) -> Room {
        Room {
            op,
            part,
            len: 1,
            tag,
        }
    }

    #[test]
    fn sends_of_one_tag_fill_the_parts_in_order() {
        let mut matcher = Matcher::default();
        for room in [room(1, 0, 7), room(1, 1, 8), room(1, 2, 7), room(2, 0, 7)] {
            assert_eq!(matcher.on_posted(room), None);
        }
        let taken: Vec<_> = [(10, 7), (11, 7), (12, 8), (13, 7)]
            .into_iter()
            .map(|(send, tag)| matcher.on_send(send, tag).map(|room| (room.op, room.part)))
            .collect();
        assert_eq!(
            taken,
            [Some((1, 0)), Some((1, 2)), Some((1, 1)), Some((2, 0))]
        );
        assert_eq!(matcher.rooms(), 0);
    }

    #[test]
    fn a_send_that_fits_nothing_waits_and_is_overtaken() {
        let mut matcher = Matcher::default();
        assert_eq!(matcher.on_send(1, 5), None);
        assert_eq!(matcher.on_send(2, 6), None);
        assert_eq!(matcher.on_send(3, 5), None);
        assert_eq!(matcher.on_posted(room(9, 0, 6)), Some(2));
        assert_eq!(matcher.on_posted(room(9, 1, 5)), Some(1));
        assert_eq!(matcher.on_posted(room(9, 2, 6)), None);
        assert_eq!(matcher.on_posted(room(9, 3, 5)), Some(3));
        assert_eq!(matcher.rooms(), 1);
    }
}
