//! How many packets arrive together, which tells whether another one follows.
//!
//! To find out that the link is empty after a packet costs a system call on most links, a tenth of the time that the stack needs for a
//! short message and its answer. Where a program does the same again and again, the answer is known: messages come one by one, and a short
//! connection has the same arrivals as the one before it.
//!
//! An arrival is all packets between two checks that find the link empty, whichever polls receive them. Its length is predicted: that of the
//! arrival which followed two others of the same lengths as the last two. A poll ends after so many packets without a check. When the
//! program then sends or closes, a new arrival begins, with the answer; otherwise the next poll goes on with the same arrival until the link
//! is empty.

/// Arrivals of so many packets, or more, are not told apart: behind each of their packets another one is looked for.
const MANY: u8 = 4;

/// Payload of a packet that belongs to a stream, not to a short connection: behind one, only packets that come one by one are expected.
const LONG: usize = 8 << 10;

const LENGTHS: usize = MANY as usize + 1;

/// What is known of the arrivals.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Packets since the last arrival; at most [`MANY`].
    current: u8,
    /// Lengths of the arrivals before, the last one first; 0: there was none.
    last: [u8; 2],
    /// Length of the arrival that followed two of these lengths; 0: there was none.
    following: [[u8; LENGTHS]; LENGTHS],
    /// [`Stack::turns`](super::Stack::turns) when the current one was as long as expected.
    expected_at: Option<u64>,
}

impl Arrivals {
    /// A poll begins.
    pub(super) fn on_poll(&mut self, turns: u64) {
        if self.expected_at.is_some_and(|at| at != turns) {
            self.end();
        }
    }

    /// A packet with `len` bytes of payload was received. Returns whether it is likely that no other one waits behind it.
    pub(super) fn on_packet(&mut self, len: usize, turns: u64) -> bool {
        self.current = (self.current + 1).min(MANY);
        let [last, before] = self.before();
        let expected = match self.following[last][before] {
            // Without experience, messages that come one by one.
            0 if last == 1 => 1,
            _ if len >= LONG => u8::from(last == 1),
            length => length,
        };
        let is_last = self.current == expected && self.current < MANY;
        self.expected_at = is_last.then_some(turns);
        is_last
    }

    /// The link was found empty.
    pub(super) fn on_empty_link(&mut self) {
        if self.current > 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        let [last, before] = self.before();
        self.following[last][before] = self.current;
        self.last = [self.current, self.last[0]];
        self.current = 0;
        self.expected_at = None;
    }

    fn before(&self) -> [usize; 2] {
        self.last.map(usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is expected behind each packet of arrivals of these lengths.
    fn expected(arrivals: &mut Arrivals, lengths: &[usize]) -> Vec<bool> {
        let mut all = Vec::new();
        for length in lengths {
            arrivals.on_empty_link();
            all.extend((0..*length).map(|_| arrivals.on_packet(8, 0)));
            arrivals.on_empty_link();
        }
        all
    }

    #[test]
    fn a_packet_is_alone_if_the_one_before_it_was() {
        let mut arrivals = Arrivals::default();
        assert_eq!(expected(&mut arrivals, &[1, 1, 1]), [false, true, true]);
        let three = [true, false, false];
        assert_eq!(expected(&mut arrivals, &[3]), three);
        assert_eq!(expected(&mut arrivals, &[1, 1]), [false, true]);
    }

    #[test]
    fn what_has_followed_two_arrivals_is_expected_again() {
        let mut arrivals = Arrivals::default();
        // Three arrivals of a short connection, again and again.
        expected(&mut arrivals, &[2, 1, 2, 2, 1, 2]);
        let again = expected(&mut arrivals, &[2, 1, 2]);
        assert_eq!(again, [false, true, true, false, true]);
    }

    #[test]
    fn long_arrivals_are_looked_at_to_their_end() {
        let mut arrivals = Arrivals::default();
        for _ in 0..3 {
            assert!(!expected(&mut arrivals, &[4, 40]).contains(&true));
        }
    }

    #[test]
    fn a_stream_is_looked_at_to_its_end_unless_its_packets_come_alone() {
        let mut arrivals = Arrivals::default();
        for (length, is_expected) in [
            (2, false),
            (2, false),
            (2, false),
            (2, false),
            (1, false),
            (1, true),
        ] {
            let all = (0..length).map(|_| arrivals.on_packet(LONG, 0));
            assert_eq!(all.last(), Some(is_expected), "{length}");
            arrivals.on_empty_link();
        }
    }

    #[test]
    fn what_comes_after_a_send_of_the_program_is_another_arrival() {
        for (turns, is_expected) in [(1, true), (0, false)] {
            let mut arrivals = Arrivals::default();
            expected(&mut arrivals, &[1, 1]);
            assert!(arrivals.on_packet(8, 0));
            // The answer is there when the next poll looks; or it was a second packet.
            arrivals.on_poll(turns);
            assert_eq!(arrivals.on_packet(8, turns), is_expected, "{turns}");
        }
    }
}
