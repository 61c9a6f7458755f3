//! Connections of endpoints that are closed: what was sent still arrives, and what the peer still sends is dropped.
//!
//! Closing a connection with unread bytes resets it, and a reset can destroy bytes that the peer has not read yet. So the
//! connections stay until the peer has closed them, too, until it does not answer any more, or until a time limit.

use std::time::{Duration, Instant};

use devmem_tcp::Stream;

use crate::budget::Budget;
use crate::control::Control;
use crate::data::DataStream;
use crate::wires::Wires;

/// Longest time that connections stay.
const LIMIT: Duration = Duration::from_secs(2);

/// Consecutive timeouts of the retransmission timer after which the peer counts as gone: a machine or a user-space stack that has ended closes nothing.
const MAX_TIMEOUTS: u8 = 2;

/// Time between two looks at that: over the kernel's TCP, one is a system call.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The connections of one closed endpoint.
pub(crate) struct Lingering {
    control: Control,
    data: Vec<DataStream>,
    until: Instant,
    next_look: Instant,
    is_shut: bool,
}

impl Lingering {
    pub(crate) fn new(mut wires: Wires) -> Self {
        // The program may use its memory for something else.
        wires.data.iter_mut().for_each(DataStream::stop_placing);
        wires.control.forget_waiter();
        let now = Instant::now();
        Self {
            control: wires.control,
            data: wires.data,
            until: now + LIMIT,
            next_look: now,
            is_shut: false,
        }
    }

    /// Makes progress, as far as the budget goes. Returns whether the connections can be dropped.
    pub(crate) fn step(&mut self, budget: &mut Budget) -> bool {
        if !self.is_shut
            && self
                .control
                .flush()
                .map_or(true, |_| self.control.is_flushed())
        {
            // An error means that the connection has ended.
            let _ = self.control.stream.shutdown_write();
            for data in &mut self.data {
                let _ = data.stream.shutdown_write();
            }
            self.is_shut = true;
        }
        // `next` stops at bytes that are no record; they are dropped with the connection.
        let control_ended = loop {
            if budget.left() == 0 {
                break false;
            }
            match self.control.next() {
                Ok(Some(record)) => budget.spend(record.inline_bytes()),
                Ok(None) => break self.control.has_ended(),
                Err(_) => break true,
            }
        };
        self.data.retain_mut(|data| !data.discard(budget));
        self.is_shut && control_ended && self.data.is_empty() || self.is_in_vain(Instant::now())
    }

    /// Returns whether the time is over or the peer does not answer.
    fn is_in_vain(&mut self, now: Instant) -> bool {
        if now >= self.until {
            return true;
        }
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_INTERVAL;
        let data = self.data.iter().map(|data| &data.stream);
        let infos = data
            .chain([&*self.control.stream])
            .filter_map(Stream::tcp_info);
        let mut waiting = infos.filter(|info| info.unacked > 0).peekable();
        waiting.peek().is_some() && waiting.all(|info| info.retransmits >= MAX_TIMEOUTS)
    }
}
