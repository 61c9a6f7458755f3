//! Captured frames, for programs that write or count them.

use std::ops::Range;
use std::time::Duration;

use netmem::Payload;
use steer::RxQueueId;

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

    /// Receives the place of the payload of the last frame, unless the NIC dropped the frame.
    fn payload(&mut self, _payload: &FramePayload) {}
}

/// Where the payload of a captured frame is: for a received frame, the result of header split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FramePayload {
    /// The RX queue that received the frame; `None` for a sent frame.
    pub queue: Option<RxQueueId>,
    /// Bytes of headers: the payload starts there.
    pub header_len: usize,
    /// Payload in device memory: ranges of the bound memory, in the order of the stream.
    pub device: Vec<Range<usize>>,
    /// Bytes of payload in host memory.
    pub host_bytes: usize,
}

impl FramePayload {
    fn of(payload: &nic::FramePayload<'_>) -> Self {
        let nic::FramePayload {
            queue,
            header_len,
            frags,
        } = *payload;
        let mut device: Vec<Range<usize>> = Vec::new();
        for frag in frags.iter().filter(|frag| frag.dmabuf_id().is_some()) {
            let start = usize::try_from(frag.dmabuf_offset()).unwrap_or(usize::MAX);
            let end = start.saturating_add(frag.len());
            match device.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => device.push(start..end),
            }
        }
        let device_bytes: usize = device.iter().map(ExactSizeIterator::len).sum();
        Self {
            queue,
            header_len,
            device,
            host_bytes: frags.len().saturating_sub(device_bytes),
        }
    }
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

    fn payload(&mut self, payload: &nic::FramePayload<'_>) {
        self.0.payload(&FramePayload::of(payload));
    }
}
