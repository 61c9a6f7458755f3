//! A link that passes a copy of every frame to a sink.

use std::io;

use ::wire::Instant;
use netmem::FragList;
use steer::RxQueueId;

use super::definition::{Link, LinkCaps};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use crate::packet::RxPacket;

/// Direction of a frame, from the view of this NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received from the link.
    Rx,
    /// Sent on the link.
    Tx,
}

/// A consumer of copies of all frames, such as a pcapng writer.
pub trait FrameSink: Send {
    /// Called for each frame, payload included, as it passes the link: a super-packet is one frame, and a
    /// partial checksum is not completed.
    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]);

    /// Called right after [`frame`](Self::frame), unless the NIC dropped the frame.
    fn payload(&mut self, _payload: &FramePayload<'_>) {}
}

/// Where the payload of a captured frame is.
#[derive(Clone, Copy, Debug)]
pub struct FramePayload<'a> {
    /// The queue that received the frame; `None` for a sent frame.
    pub queue: Option<RxQueueId>,
    /// Bytes of headers before the payload.
    pub header_len: usize,
    /// The payload.
    pub frags: &'a FragList,
}

impl<F: FnMut(Instant, Direction, &[u8]) + Send> FrameSink for F {
    fn frame(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        self(now, direction, frame);
    }
}

/// A link that copies its frames, payload included, for a [`FrameSink`].
///
/// Payload is still received directly into its memory; the copy for the sink is read back through the `DmaPort`.
pub struct Captured<S> {
    inner: Box<dyn Link>,
    sink: S,
    scratch: Vec<u8>,
}

impl<S: FrameSink> Captured<S> {
    /// Returns a link over `inner` that passes copies of its frames to `sink`.
    pub fn new(inner: Box<dyn Link>, sink: S) -> Self {
        Self {
            inner,
            sink,
            scratch: Vec::new(),
        }
    }
}

impl<S: FrameSink> Link for Captured<S> {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        let received = self.inner.receive(posted, now)?;
        match received {
            LinkReceived::None | LinkReceived::Dropped(_) => {}
            LinkReceived::Frame { .. } => self.sink.frame(now, Direction::Rx, posted.frame),
            LinkReceived::Borrowed { head_len, .. } => {
                posted.gather_borrowed(head_len, &mut self.scratch);
                self.sink.frame(now, Direction::Rx, &self.scratch);
            }
            LinkReceived::Scattered { frame_len, .. } => {
                posted.gather(frame_len, &mut self.scratch);
                self.sink.frame(now, Direction::Rx, &self.scratch);
            }
        }
        Ok(received)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        let sent = self.inner.send(frame, now)?;
        if sent == LinkSent::Done {
            frame.copy_to(&mut self.scratch);
            self.sink.frame(now, Direction::Tx, &self.scratch);
            self.sink.payload(&FramePayload {
                queue: None,
                header_len: frame.head.len(),
                frags: frame.payload,
            });
        }
        Ok(sent)
    }

    fn inner(&self) -> Option<&dyn Link> {
        Some(&*self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut *self.inner)
    }

    fn accepted(&mut self, packet: &RxPacket) {
        let none = FragList::new();
        self.sink.payload(&FramePayload {
            queue: Some(packet.queue),
            header_len: packet.headers.header_len,
            frags: packet.payload.frags().unwrap_or(&none),
        });
    }
}
