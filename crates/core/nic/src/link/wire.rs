//! An in-memory wire between two NICs of this process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::wire::{EthernetHeader, Instant};

use super::definition::{Link, LinkCaps, LinkState, MAX_FRAME_LEN, MAX_PACKET_LEN};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
use crate::eventfd::Eventfd;

/// Options of [`WireLink::pair`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOptions {
    /// Bytes of the largest IP packet that is not a super-packet.
    pub mtu: u16,
    /// The wire carries super-packets and partial checksums, like a TAP with offloads.
    pub offload: bool,
    /// Maximum number of frames in flight in each direction; beyond that the link is busy.
    pub queue_frames: usize,
    /// Each end has a descriptor that becomes readable when a frame arrives, for [`Link::poll_fd`].
    pub wakeup: bool,
}

impl Default for WireOptions {
    fn default() -> Self {
        Self {
            mtu: 1500,
            offload: true,
            queue_frames: 1024,
            wakeup: false,
        }
    }
}

/// One end of an in-memory wire; the two ends may be used on different threads.
///
/// When the other end is dropped, the link is gone ([`LinkState::Gone`]), after what that end has sent before.
#[derive(Debug)]
pub struct WireLink {
    shared: Arc<Shared>,
    /// Index of the lane of frames to this end.
    side: usize,
    options: WireOptions,
}

#[derive(Debug)]
struct Shared {
    /// Frames to each side. The two locks are never held at the same time.
    lanes: [Mutex<Lane>; 2],
    wakeups: [Option<Eventfd>; 2],
    /// The cable is plugged in.
    plugged: AtomicBool,
    /// One of the ends has been dropped.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<(Vec<u8>, VnetMeta)>,
    /// Allocations of received frames, to be used again.
    spare: Vec<Vec<u8>>,
    /// The descriptor of the receiving end has been made readable, and not reset since.
    announced: bool,
}

impl WireLink {
    /// Returns the two ends of a wire.
    ///
    /// # Errors
    /// An eventfd cannot be created (only with [`WireOptions::wakeup`]).
    pub fn pair(options: WireOptions) -> io::Result<(Self, Self)> {
        let wakeup = || match options.wakeup {
            true => Eventfd::new().map(Some),
            false => Ok(None),
        };
        let shared = Arc::new(Shared {
            lanes: Default::default(),
            wakeups: [wakeup()?, wakeup()?],
            plugged: AtomicBool::new(true),
            ended: AtomicBool::new(false),
        });
        let end = |side| Self {
            shared: Arc::clone(&shared),
            side,
            options,
        };
        Ok((end(0), end(1)))
    }

    /// Returns a handle that pulls the cable and puts it back.
    pub fn cable(&self) -> CablePlug {
        CablePlug {
            shared: Arc::clone(&self.shared),
        }
    }

    fn lane(&self, side: usize) -> MutexGuard<'_, Lane> {
        // A lane is consistent between any two operations, so poisoning by a panic can be ignored.
        self.shared.lanes[side]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_up(&self) -> bool {
        self.shared.plugged.load(Ordering::Acquire) && !self.shared.ended.load(Ordering::Acquire)
    }

    fn accept(&self, frame: &TxFrame<'_>) -> io::Result<VnetMeta> {
        let len = frame.frame_len();
        let longest = usize::from(self.options.mtu) + EthernetHeader::TAGGED_LEN;
        let offloaded = frame.gso_size > 0 || frame.checksum.is_some();
        if len > MAX_FRAME_LEN
            || (len > longest && frame.gso_size == 0)
            || (offloaded && !self.options.offload)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(VnetMeta {
            gso_size: frame.gso_size,
            checksum: frame.checksum.into(),
        })
    }
}

impl Drop for WireLink {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // Wakes a thread that waits for a frame at the other end: no frame will arrive.
        let there = 1 - self.side;
        self.lane(there).announced = true;
        self.shared.wakeups[there].iter().for_each(Eventfd::set);
    }
}

impl Link for WireLink {
    fn caps(&self) -> LinkCaps {
        let WireOptions { mtu, offload, .. } = self.options;
        LinkCaps {
            name: "wire",
            mtu,
            tso: offload,
            max_super_packet: MAX_PACKET_LEN,
            max_rx_packet: MAX_PACKET_LEN,
            tx_checksum: offload,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        let mut lane = self.lane(self.side);
        let Some((frame, meta)) = lane.frames.pop_front() else {
            // Under the lock, so that no frame can arrive between the check and the reset.
            if std::mem::take(&mut lane.announced) {
                self.shared.wakeups[self.side]
                    .iter()
                    .for_each(Eventfd::reset);
            }
            return Ok(LinkReceived::None);
        };
        lane.spare.push(std::mem::replace(posted.frame, frame));
        Ok(LinkReceived::Frame { meta })
    }

    fn send(&mut self, frame: &TxFrame<'_>, _now: Instant) -> io::Result<LinkSent> {
        if !self.is_up() {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let meta = self.accept(frame)?;
        let there = 1 - self.side;
        let mut lane = self.lane(there);
        if lane.frames.len() >= self.options.queue_frames {
            return Ok(LinkSent::Busy);
        }
        let mut bytes = lane.spare.pop().unwrap_or_default();
        frame.copy_to(&mut bytes);
        lane.frames.push_back((bytes, meta));
        if !std::mem::replace(&mut lane.announced, true) {
            self.shared.wakeups[there].iter().for_each(Eventfd::set);
        }
        Ok(LinkSent::Done)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.wakeups[self.side].as_ref().map(Eventfd::as_fd)
    }

    /// Returns [`LinkState::Gone`] when the other end was dropped, and all that it had sent is received: no other end can join.
    fn state(&self) -> LinkState {
        if self.is_up() {
            return LinkState::Up;
        }
        // In this order: what the other end has sent before its drop is in the lane then.
        let is_over = self.shared.ended.load(Ordering::Acquire);
        match is_over && self.lane(self.side).frames.is_empty() {
            true => LinkState::Gone,
            false => LinkState::Down,
        }
    }
}

/// Unplugs the cable of a [`WireLink`] and plugs it in again, from any thread.
#[derive(Clone, Debug)]
pub struct CablePlug {
    shared: Arc<Shared>,
}

impl CablePlug {
    /// Sets both ends down; frames in flight are lost.
    pub fn pull(&self) {
        self.shared.plugged.store(false, Ordering::Release);
        for lane in &self.shared.lanes {
            lane.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .frames
                .clear();
        }
    }

    /// Returns true if one of the ends has been dropped: the wire is gone then.
    pub fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Sets both ends up again, unless one has been dropped.
    pub fn plug(&self) {
        self.shared.plugged.store(true, Ordering::Release);
    }
}
