//! An in-memory wire between two NICs of this process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::wire::{EthernetHeader, Instant};
use rustix::event::{EventfdFlags, eventfd};

use super::{
    Link, LinkCaps, LinkReceived, LinkSent, MAX_FRAME_LEN, MAX_PACKET_LEN, Posted, TxFrame,
    VnetMeta,
};

/// What kind of wire [`WireLink::pair`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireOptions {
    /// Bytes of the largest IP packet that is not a super-packet.
    pub mtu: u16,
    /// Carry super-packets and frames without a checksum, as a TAP with its offloads on does.
    pub offload: bool,
    /// Frames under way in each direction; the sender is busy when they are that many.
    pub queue_frames: usize,
    /// Give each end an fd that becomes readable when a frame comes, for [`Link::poll_fd`].
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

/// One end of an in-memory wire; the ends may live on two threads.
#[derive(Debug)]
pub struct WireLink {
    shared: Arc<Shared>,
    /// Index of the lane whose frames come to this end.
    side: usize,
    options: WireOptions,
}

#[derive(Debug)]
struct Shared {
    /// Frames on their way to each side. Never are both locks held.
    lanes: [Mutex<Lane>; 2],
    wakeups: [Option<OwnedFd>; 2],
    /// False once an end is gone or the cable is out.
    plugged: AtomicBool,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Lane {
    frames: VecDeque<(Vec<u8>, VnetMeta)>,
    /// Allocations of frames that were received, for those to come.
    spare: Vec<Vec<u8>>,
}

impl WireLink {
    /// Returns the two ends of a wire.
    ///
    /// # Errors
    /// The system has no eventfd left to give (only with [`WireOptions::wakeup`]).
    pub fn pair(options: WireOptions) -> io::Result<(Self, Self)> {
        let wakeup = || match options.wakeup {
            true => eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Some),
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
        // A lane is whole between any two of its operations, so a panic elsewhere has not harmed it.
        self.shared.lanes[side]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        // Whoever waits for a frame shall look up and see that none will come.
        wake(self.shared.wakeups[1 - self.side].as_ref());
    }
}

impl Link for WireLink {
    fn caps(&self) -> LinkCaps {
        let WireOptions { mtu, offload, .. } = self.options;
        LinkCaps {
            name: "wire",
            mtu,
            vnet: offload,
            tso: offload,
            max_super_packet: MAX_PACKET_LEN,
            tx_checksum: offload,
            queues: 1,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        let mut lane = self.lane(self.side);
        let Some((frame, meta)) = lane.frames.pop_front() else {
            // Under the lock, so that no frame can come between the look and the reset.
            reset(self.shared.wakeups[self.side].as_ref());
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
        if lane.frames.len() == 1 {
            wake(self.shared.wakeups[there].as_ref());
        }
        Ok(LinkSent::Done)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.wakeups[self.side].as_ref().map(AsFd::as_fd)
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_up(&self) -> bool {
        self.shared.plugged.load(Ordering::Acquire) && !self.shared.ended.load(Ordering::Acquire)
    }
}

/// Pulls the cable of a [`WireLink`] and puts it back, from anywhere.
#[derive(Clone, Debug)]
pub struct CablePlug {
    shared: Arc<Shared>,
}

impl CablePlug {
    /// Takes both ends down; frames under way are lost.
    pub fn pull(&self) {
        self.shared.plugged.store(false, Ordering::Release);
        for lane in &self.shared.lanes {
            lane.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .frames
                .clear();
        }
    }

    /// True once an end is gone: the wire is of no more use.
    pub fn is_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Brings both ends up again, unless one is gone.
    pub fn plug(&self) {
        self.shared.plugged.store(true, Ordering::Release);
    }
}

fn wake(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        // Fails only when the counter is at its end: then the fd is readable as it is.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

fn reset(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        // Fails only when nothing was written: then there is nothing to reset.
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}
