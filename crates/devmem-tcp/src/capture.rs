//! Captured frames, for programs that write or count them.

use std::time::Duration;

/// Direction of a frame, seen from this NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the link.
    Rx,
    /// To the link.
    Tx,
}

/// Receives a copy of every frame of a NIC, as a pcapng writer does. Closures with these arguments implement it.
pub trait FrameSink: Send {
    /// Receives one frame with its payload, as it crossed the link: a super-packet is one frame, and a checksum that is
    /// left to the NIC is not filled in. `at` is the time since the NIC was opened.
    fn frame(&mut self, at: Duration, direction: Direction, frame: &[u8]);
}

impl<F: FnMut(Duration, Direction, &[u8]) + Send> FrameSink for F {
    fn frame(&mut self, at: Duration, direction: Direction, frame: &[u8]) {
        self(at, direction, frame);
    }
}

/// Passes the frames of a link to the program's sink.
pub(crate) struct Capture(pub(crate) Box<dyn FrameSink>);

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capture")
    }
}

impl nic::FrameSink for Capture {
    fn frame(&mut self, now: wire::Instant, direction: nic::Direction, frame: &[u8]) {
        let direction = match direction {
            nic::Direction::Rx => Direction::Rx,
            nic::Direction::Tx => Direction::Tx,
        };
        self.0
            .frame(Duration::from_nanos(now.as_nanos()), direction, frame);
    }
}
