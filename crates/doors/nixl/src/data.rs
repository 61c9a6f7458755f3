//! A connection for payload, which carries nothing else. Records of the control connection say what the next bytes are, in either direction.

use std::collections::VecDeque;

use crate::broken::Broken;
use crate::ffi::scatter::Scatter;
use crate::socket::Socket;

/// Bytes of one system call.
const CALL_BYTES: usize = 1 << 20;

/// Bytes that are read at once to be thrown away.
const DISCARD_BYTES: usize = 64 << 10;

/// Where bytes go.
#[derive(Debug)]
enum Destination {
    Memory(Scatter),
    /// That many bytes of a transfer that was cancelled.
    Nowhere(u64),
}

/// Bytes that come next.
#[derive(Debug)]
struct Expected {
    transfer: u64,
    destination: Destination,
}

/// Bytes of a transfer that are in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) transfer: u64,
    pub(crate) bytes: u64,
}

/// A connection for payload.
#[derive(Debug)]
pub(crate) struct DataStream {
    pub(crate) socket: Socket,
    out: VecDeque<Scatter>,
    queued: u64,
    expected: VecDeque<Expected>,
    owed: u64,
}

impl DataStream {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            out: VecDeque::new(),
            queued: 0,
            expected: VecDeque::new(),
            owed: 0,
        }
    }

    pub(crate) fn send(&mut self, from: Scatter) {
        self.queued += from.left();
        self.out.push_back(from);
    }

    pub(crate) fn expect(&mut self, transfer: u64, to: Scatter) {
        self.owed += to.left();
        self.expected.push_back(Expected {
            transfer,
            destination: Destination::Memory(to),
        });
    }

    /// Bytes and pieces that are to be sent.
    pub(crate) fn queued(&self) -> (u64, usize) {
        (self.queued, self.out.len())
    }

    /// Bytes and pieces that are to come.
    pub(crate) fn owed(&self) -> (u64, usize) {
        (self.owed, self.expected.len())
    }

    /// From now on, bytes of a transfer go nowhere: its memory may be used otherwise.
    pub(crate) fn discard(&mut self, transfer: u64) {
        for expected in self
            .expected
            .iter_mut()
            .filter(|it| it.transfer == transfer)
        {
            if let Destination::Memory(scatter) = &expected.destination {
                expected.destination = Destination::Nowhere(scatter.left());
            }
        }
    }

    /// Sends what the connection takes, until the budget is used up. Returns whether that was something.
    pub(crate) fn push(&mut self, budget: &mut usize) -> Result<bool, Broken> {
        let mut worked = false;
        while let Some(first) = self.out.front_mut()
            && *budget > 0
        {
            let Some(bytes) = self.socket.send(first, CALL_BYTES.min(*budget))? else {
                break;
            };
            worked = true;
            *budget = budget.saturating_sub(bytes);
            self.queued = self.queued.saturating_sub(bytes as u64);
            if first.left() == 0 {
                self.out.pop_front();
            }
        }
        Ok(worked)
    }

    /// Receives what was announced and has come, until the budget is used up. Returns whether that was something.
    pub(crate) fn pull(
        &mut self,
        budget: &mut usize,
        placed: &mut Vec<Placed>,
    ) -> Result<bool, Broken> {
        let mut worked = false;
        while let Some(first) = self.expected.front_mut()
            && *budget > 0
        {
            let at_most = CALL_BYTES.min(*budget);
            let (received, left) = match &mut first.destination {
                Destination::Memory(scatter) => {
                    (self.socket.receive(scatter, at_most)?, scatter.left())
                }
                Destination::Nowhere(left) => {
                    let mut bytes = [0; DISCARD_BYTES];
                    let wanted = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(DISCARD_BYTES);
                    let received = self.socket.read(&mut bytes[..wanted])?;
                    *left = left.saturating_sub(received.unwrap_or(0) as u64);
                    (received, *left)
                }
            };
            let Some(bytes) = received else {
                break;
            };
            if bytes == 0 {
                return Err(Broken::Ended);
            }
            worked = true;
            *budget = budget.saturating_sub(bytes);
            self.owed = self.owed.saturating_sub(bytes as u64);
            placed.push(Placed {
                transfer: first.transfer,
                bytes: bytes as u64,
            });
            if left == 0 {
                self.expected.pop_front();
            }
        }
        Ok(worked)
    }
}
