//! Recognises a peer that sends small requests and waits for each answer, so that the answer carries the ACK.
//!
//! Linux calls it pingpong mode (include/net/inet_connection_sock.h `inet_csk_in_pingpong_mode`): data that leaves soon after an arrival
//! starts it, and a delayed ACK that no data took along ends it. A sender with Nagle's algorithm that writes a request in two parts
//! sends the second part when the first one is acknowledged, and such a mode makes each of its requests wait for the delay.
//! Here only a connection on which each single small segment was answered is interactive; each delay in vain makes that
//! harder to achieve again.
//!
//! The ACK of a longer request, of more than one segment, waits for much less: until the program that has received it makes its next call that
//! finds nothing, which polls. The peer may send no more before it has that ACK, and after a few milliseconds it probes for a loss. As long
//! waits the ACK of the first data on a connection, of which nothing is known yet, and that of a FIN: a program that takes short connections
//! answers both at once, or closes, and its FIN takes the ACK along.

use core::time::Duration;

use wire::Instant;

/// Answers in a row that make a connection interactive, at first (linux `TCP_PINGPONG_THRESH`).
const FIRST_NEEDED: u8 = 1;

/// The same at most: a connection that often waits in vain loses one delay for so many answers.
const MOST_NEEDED: u8 = 128;

/// So many answers in a row while it is interactive make up for all delays in vain.
const ANSWERS_TO_RESET: u8 = 255;

/// The ACK of a longer request that left so late was held in vain: the program computes, and the peer is about to probe (linux
/// `TCP_TIMEOUT_MIN_US`: 2 ms and two round trips).
const LATE: Duration = Duration::from_millis(1);

/// What data that arrived may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Not all that the peer has to say, or more than one packet since the last ACK.
    No,
    /// One segment.
    Short,
    /// Several segments, which arrived as one packet.
    Long,
}

/// What a pending ACK waits for, although the link is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Held {
    #[default]
    No,
    /// For the answer to a short request.
    ForAnswer,
    /// For the program to receive a longer or a first one, or the end of the stream.
    ForProgram,
    /// For the next poll: the program may have answered by then.
    UntilPoll,
}

/// What the last segments of a connection say about its program.
#[derive(Debug, Default)]
pub(super) struct Interactive {
    /// Longest time between a request and an answer that takes its ACK along.
    delay: Duration,
    /// Data arrived so often since data was sent, at most 2.
    arrivals: u8,
    last_arrival: Instant,
    /// Answers in a row, each to a single arrival.
    answered: u8,
    /// Answers in a row that make the connection interactive.
    needed: u8,
    is_on: bool,
    /// No data has arrived.
    is_new: bool,
    held: Held,
}

impl Interactive {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            needed: FIRST_NEEDED,
            is_new: true,
            ..Self::default()
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether the pending ACK waits for an answer, and not for a poll.
    pub(super) fn awaits_answer(&self) -> bool {
        self.held == Held::ForAnswer
    }

    /// The link is empty. Returns whether the pending ACK waits all the same.
    pub(super) fn on_drained(&mut self) -> bool {
        match self.held {
            Held::No | Held::UntilPoll => false,
            Held::ForAnswer => true,
            Held::ForProgram => {
                self.held = Held::UntilPoll;
                true
            }
        }
    }

    /// Data arrived in order.
    pub(super) fn on_data(&mut self, request: Request, now: Instant) {
        self.last_arrival = now;
        self.arrivals = self.arrivals.saturating_add(1).min(2);
        if self.arrivals > 1 && self.is_on {
            // The peer goes on without an answer.
            self.stop();
        }
        let is_first = core::mem::take(&mut self.is_new);
        self.held = match request {
            Request::Short if self.is_on => Held::ForAnswer,
            Request::Long if self.is_on => Held::ForProgram,
            Request::Short | Request::Long if is_first => Held::ForProgram,
            _ => Held::No,
        };
    }

    /// The peer has ended its stream.
    pub(super) fn on_fin(&mut self, now: Instant) {
        self.last_arrival = now;
        self.held = Held::ForProgram;
    }

    /// Data was sent.
    pub(super) fn on_data_sent(&mut self, now: Instant) {
        match core::mem::take(&mut self.arrivals) {
            // More of the same answer, or of a request of our own.
            0 => {}
            1 if now.saturating_since(self.last_arrival) < self.delay => self.on_answer(),
            _ => self.stop(),
        }
    }

    fn on_answer(&mut self) {
        self.answered = self.answered.saturating_add(1);
        self.is_on |= self.answered >= self.needed;
        if self.answered == ANSWERS_TO_RESET {
            self.needed = FIRST_NEEDED;
        }
    }

    /// An ACK was sent; `is_delayed`: alone, after the delay.
    pub(super) fn on_ack_sent(&mut self, is_delayed: bool, now: Instant) {
        let was_in_vain = match self.held {
            Held::No => false,
            Held::ForAnswer => is_delayed,
            Held::ForProgram | Held::UntilPoll => now.saturating_since(self.last_arrival) >= LATE,
        };
        if was_in_vain {
            self.needed = self.needed.saturating_mul(2).min(MOST_NEEDED);
            self.stop();
        }
        self.held = Held::No;
    }

    /// ACKs leave at once, until requests were answered again.
    pub(super) fn stop(&mut self) {
        self.is_on = false;
        self.held = Held::No;
        self.answered = 0;
    }

    /// The program says that it answers.
    pub(super) fn start(&mut self) {
        self.is_on = true;
        self.arrivals = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn after_answers(count: u64) -> Interactive {
        let mut mode = Interactive::new(Duration::from_millis(40));
        for ms in 0..count {
            mode.on_data(Request::Short, at(ms));
            mode.on_ack_sent(false, at(ms));
            mode.on_data_sent(at(ms));
        }
        mode
    }

    #[test]
    fn one_answer_starts_it_and_the_next_request_is_held() {
        let mut mode = after_answers(0);
        mode.on_data(Request::Short, at(0));
        assert!(!mode.awaits_answer());
        mode.on_ack_sent(false, at(0));
        mode.on_data_sent(at(39));
        assert!(mode.is_on());
        mode.on_data(Request::Short, at(50));
        assert!(mode.awaits_answer());
        mode.on_data(Request::Short, at(51));
        assert!(
            !mode.awaits_answer(),
            "a second one came without an answer to the first"
        );
        assert!(!mode.is_on());
    }

    #[test]
    fn a_late_answer_and_one_to_two_segments_do_not_start_it() {
        let mut mode = after_answers(0);
        mode.on_data(Request::Short, at(0));
        mode.on_data_sent(at(40));
        assert!(!mode.is_on());
        for ms in [50, 60, 70] {
            mode.on_data(Request::Short, at(ms));
            mode.on_data(Request::Short, at(ms + 1));
            mode.on_data_sent(at(ms + 1));
            mode.on_data_sent(at(ms + 1));
            assert!(!mode.is_on(), "written in two parts");
        }
    }

    #[test]
    fn each_delay_in_vain_doubles_the_answers_that_are_needed_and_many_answers_make_up_for_it() {
        let mut mode = after_answers(1);
        for needed in [2, 4, 8] {
            mode.on_data(Request::Short, at(100));
            mode.on_ack_sent(true, at(140));
            assert!(!mode.is_on());
            mode.on_data_sent(at(1000));
            for _ in 0..needed {
                assert!(!mode.is_on());
                mode.on_data(Request::Short, at(2000));
                mode.on_ack_sent(false, at(2000));
                mode.on_data_sent(at(2000));
            }
            assert!(mode.is_on(), "{needed}");
        }
        for _ in 0..255 {
            mode.on_data(Request::Short, at(3000));
            mode.on_data_sent(at(3000));
            mode.on_ack_sent(false, at(3000));
        }
        assert_eq!(mode.needed, FIRST_NEEDED);
    }
    #[test]
    fn the_ack_of_a_longer_request_is_held_for_one_poll() {
        let mut mode = after_answers(1);
        for ms in 0..10 {
            mode.on_data(Request::Long, at(ms));
            assert!(!mode.awaits_answer(), "the next poll may send it");
            assert!(mode.on_drained());
            assert!(!mode.on_drained());
            mode.on_ack_sent(false, at(ms));
            mode.on_data_sent(at(ms));
            assert!(mode.is_on());
        }
        mode.on_data(Request::Long, at(10));
        mode.on_data(Request::Long, at(10));
        assert!(!mode.on_drained(), "two packets");
    }

    #[test]
    fn the_ack_of_the_first_data_and_that_of_a_fin_are_held_for_one_poll() {
        for request in [Request::Short, Request::Long] {
            let mut mode = after_answers(0);
            mode.on_data(request, at(0));
            assert!(!mode.awaits_answer());
            assert!(mode.on_drained() && !mode.on_drained());
            mode.on_ack_sent(false, at(0));
            mode.on_data(request, at(1));
            assert!(!mode.on_drained(), "no request was answered");
            mode.on_fin(at(1));
            assert!(mode.on_drained() && !mode.on_drained());
        }
        let mut mode = after_answers(0);
        mode.on_data(Request::No, at(0));
        assert!(!mode.on_drained(), "the peer has more to say");
    }

    #[test]
    fn one_that_waited_for_a_millisecond_was_held_in_vain() {
        let mut mode = after_answers(1);
        for (ms, is_on) in [(0, true), (1, false)] {
            mode.on_data(Request::Long, at(50));
            assert!(mode.on_drained());
            mode.on_ack_sent(false, at(50 + ms));
            assert_eq!(mode.is_on(), is_on, "{ms}");
            mode.on_data_sent(at(50 + ms));
        }
        assert_eq!(mode.needed, 2);
    }
}
