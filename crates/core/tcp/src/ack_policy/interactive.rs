//! Recognises a peer that sends small requests and waits for each answer, so that the answer carries the ACK.
//!
//! Linux calls it pingpong mode (include/net/inet_connection_sock.h `inet_csk_in_pingpong_mode`): data that leaves soon after an arrival
//! starts it, and a delayed ACK that no data took along ends it. A sender with Nagle's algorithm that writes a request in two parts
//! sends the second part when the first one is acknowledged, and such a mode makes each of its requests wait for the delay.
//! Here only a connection on which each single small segment was answered is interactive; each delay in vain makes that
//! harder to achieve again.

use core::time::Duration;

use wire::Instant;

/// Answers in a row that make a connection interactive, at first (linux `TCP_PINGPONG_THRESH`).
const FIRST_NEEDED: u8 = 1;

/// The same at most: a connection that often waits in vain loses one delay for so many answers.
const MOST_NEEDED: u8 = 128;

/// So many answers in a row while it is interactive make up for all delays in vain.
const FORGIVEN_AFTER: u8 = 255;

/// What the last segments of a connection say about its program.
#[derive(Debug)]
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
    /// The pending ACK waits for an answer.
    is_held: bool,
}

impl Interactive {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            arrivals: 0,
            last_arrival: Instant::ZERO,
            answered: 0,
            needed: FIRST_NEEDED,
            is_on: false,
            is_held: false,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether the pending ACK waits for an answer, although the link is empty.
    pub(super) fn holds_ack(&self) -> bool {
        self.is_held
    }

    /// Data arrived in order; `is_request`: a single small segment since the last ACK, with PSH.
    pub(super) fn on_data(&mut self, is_request: bool, now: Instant) {
        self.last_arrival = now;
        self.arrivals = self.arrivals.saturating_add(1).min(2);
        if self.arrivals > 1 && self.is_on {
            // The peer goes on without an answer.
            self.stop();
        }
        self.is_held = self.is_on && is_request;
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
        if self.answered == FORGIVEN_AFTER {
            self.needed = FIRST_NEEDED;
        }
    }

    /// An ACK was sent; `is_late`: alone, after the delay.
    pub(super) fn on_ack_sent(&mut self, is_late: bool) {
        if is_late && self.is_held {
            self.needed = self.needed.saturating_mul(2).min(MOST_NEEDED);
            self.stop();
        }
        self.is_held = false;
    }

    /// ACKs leave at once, until requests were answered again.
    pub(super) fn stop(&mut self) {
        self.is_on = false;
        self.is_held = false;
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
            mode.on_data(true, at(ms));
            mode.on_ack_sent(false);
            mode.on_data_sent(at(ms));
        }
        mode
    }

    #[test]
    fn one_answer_starts_it_and_the_next_request_is_held() {
        let mut mode = after_answers(0);
        mode.on_data(true, at(0));
        assert!(!mode.holds_ack());
        mode.on_ack_sent(false);
        mode.on_data_sent(at(39));
        assert!(mode.is_on());
        mode.on_data(true, at(50));
        assert!(mode.holds_ack());
        mode.on_data(true, at(51));
        assert!(
            !mode.holds_ack(),
            "a second one came without an answer to the first"
        );
        assert!(!mode.is_on());
    }

    #[test]
    fn a_late_answer_and_one_to_two_segments_do_not_start_it() {
        let mut mode = after_answers(0);
        mode.on_data(true, at(0));
        mode.on_data_sent(at(40));
        assert!(!mode.is_on());
        for ms in [50, 60, 70] {
            mode.on_data(true, at(ms));
            mode.on_data(true, at(ms + 1));
            mode.on_data_sent(at(ms + 1));
            mode.on_data_sent(at(ms + 1));
            assert!(!mode.is_on(), "written in two parts");
        }
    }

    #[test]
    fn each_delay_in_vain_doubles_the_answers_that_are_needed_and_many_answers_make_up_for_it() {
        let mut mode = after_answers(1);
        for needed in [2, 4, 8] {
            mode.on_data(true, at(100));
            mode.on_ack_sent(true);
            assert!(!mode.is_on());
            mode.on_data_sent(at(1000));
            for _ in 0..needed {
                assert!(!mode.is_on());
                mode.on_data(true, at(2000));
                mode.on_ack_sent(false);
                mode.on_data_sent(at(2000));
            }
            assert!(mode.is_on(), "{needed}");
        }
        for _ in 0..255 {
            mode.on_data(true, at(3000));
            mode.on_data_sent(at(3000));
            mode.on_ack_sent(false);
        }
        assert_eq!(mode.needed, FIRST_NEEDED);
    }
}
