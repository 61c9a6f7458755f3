//! Staging: payload on its way between host memory and the memory of a device that the CPU cannot access.
//!
//! [`StagedCopies`] collects the copies of several packets, and joins those of neighbouring packets.
//! [`StagedCopies::submit`] starts them together; [`CopiesInFlight`] holds the memory of both sides until they are done,
//! however early the packets are dropped.

use std::sync::Arc;

use crate::device::{CopyEngine, CopyPiece, CopyWay, DeviceError, Lane};
use crate::dma_port::DmaPort;
use crate::frag::Frag;
use crate::frag_list::FragList;
use crate::netmem::Netmem;
use crate::payload::Payload;
use crate::submitted::Submitted;

/// Maximum number of unused bytes between two pieces that are copied as one: packets lie at multiples of a cache line.
const GAP_BYTES: usize = 128;

/// Copies between the memory of one device and host memory that is pinned for it, to be submitted together.
#[derive(Debug)]
pub struct StagedCopies {
    engine: Arc<dyn CopyEngine>,
    lane: Lane,
    pieces: Vec<StagedPiece>,
    /// Handles of all memory of the pieces.
    held: Vec<Netmem>,
    bytes: usize,
}

/// Contiguous bytes. The handles are those of the last net_iovs.
#[derive(Debug)]
struct StagedPiece {
    host: Netmem,
    host_offset: usize,
    device: Netmem,
    device_offset: usize,
    len: usize,
}

impl DmaPort {
    /// Returns no copies yet, by `engine`: from host memory to the device ([`Lane::In`]) or back ([`Lane::Out`]).
    pub fn staged_copies(&self, engine: &Arc<dyn CopyEngine>, lane: Lane) -> StagedCopies {
        StagedCopies {
            engine: Arc::clone(engine),
            lane,
            pieces: Vec::new(),
            held: Vec::new(),
            bytes: 0,
        }
    }

    /// Copies `frag` to `offset` of `netmem`, both in the memory of one device, and waits.
    ///
    /// # Errors
    ///
    /// The device's error.
    ///
    /// # Panics
    ///
    /// When the memory is not that of one device, or the ranges overlap or are not inside.
    pub fn copy_by_device(
        &self,
        frag: &Frag,
        netmem: &Netmem,
        offset: u32,
    ) -> Result<(), DeviceError> {
        let len = frag.len();
        let is_inside = offset as usize + len <= netmem.size();
        assert!(is_inside, "{len} bytes at {offset} of a net_iov");
        let from = frag
            .netmem()
            .memory()
            .device_at(usize_of(frag.dmabuf_offset()));
        let to = netmem
            .memory()
            .device_at(usize_of(netmem.dmabuf_offset(offset)));
        let (Some((engine, from)), Some((_, to))) = (from, to) else {
            panic!("the memory is not that of a device");
        };
        if len == 0 {
            return Ok(());
        }
        // In the lane of received payload: later payload may take the place of what is copied away.
        let way = CopyWay::Within {
            from: from.memory,
            to: to.memory,
        };
        let piece = CopyPiece {
            from: from.offset,
            to: to.offset,
            len,
        };
        let fence = engine.submit(Lane::In, way, &[piece])?;
        engine.wait(fence)
    }
}

impl Netmem {
    /// Returns the engine that copies the memory, if the CPU cannot access it.
    #[inline]
    pub fn copy_engine(&self) -> Option<&Arc<dyn CopyEngine>> {
        self.memory().engine()
    }
}

impl FragList {
    /// Returns the engine of the first frag in memory that the CPU cannot access.
    pub fn copy_engine(&self) -> Option<&Arc<dyn CopyEngine>> {
        self.iter().find_map(|frag| frag.netmem().copy_engine())
    }
}

impl StagedCopies {
    /// Returns whether the copies are by `engine`.
    pub fn is_by(&self, engine: &Arc<dyn CopyEngine>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }

    /// Returns the number of bytes to copy.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the copy between two lists of the same length: `host` in memory that is pinned for the engine, `device` in its
    /// memory.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn add(&mut self, host: &FragList, device: &FragList) {
        assert_eq!(host.len(), device.len(), "a copy has two equal sides");
        let (mut hosts, mut devices) = (host.iter(), device.iter());
        let (mut host, mut device) = (Rest::of(hosts.next()), Rest::of(devices.next()));
        while let (Some(from), Some(to)) = (&mut host, &mut device) {
            let len = from.left().min(to.left());
            self.add_piece(from, to, len);
            from.done += len;
            to.done += len;
            if from.left() == 0 {
                host = Rest::of(hosts.next());
            }
            if to.left() == 0 {
                device = Rest::of(devices.next());
            }
        }
    }

    /// Adds `len` bytes; extends the last piece if both sides continue it after the same number of unused bytes.
    fn add_piece(&mut self, host: &Rest<'_>, device: &Rest<'_>, len: usize) {
        if len == 0 {
            return;
        }
        self.bytes += len;
        let (host_offset, device_offset) = (host.offset(), device.offset());
        if let Some(last) = self.pieces.last_mut()
            && last.host.is_continued_by(host.frag.netmem())
            && last.device.is_continued_by(device.frag.netmem())
            && let Some(gap) = host_offset.checked_sub(last.host_offset + last.len)
            && device_offset.checked_sub(last.device_offset + last.len) == Some(gap)
            && gap < GAP_BYTES
        {
            last.len += gap + len;
            // A net_iov that the piece did not touch before needs an owner, too.
            hold(&mut self.held, &mut last.host, host.frag.netmem());
            hold(&mut self.held, &mut last.device, device.frag.netmem());
            return;
        }
        self.pieces.push(StagedPiece {
            host: host.frag.netmem().share(),
            host_offset,
            device: device.frag.netmem().share(),
            device_offset,
            len,
        });
    }

    /// Starts the copies.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the destinations may have been written partly.
    pub fn submit(self) -> Result<CopiesInFlight, DeviceError> {
        // From here on an error waits for what was started.
        let mut flight = CopiesInFlight {
            submitted: Submitted::none_by(Arc::clone(&self.engine)),
            copies: self,
        };
        let copies = &flight.copies;
        let lane = copies.lane;
        for same in copies.pieces.chunk_by(StagedPiece::is_between_those_of) {
            let Some(way) = same.first().and_then(|piece| piece.way(lane)) else {
                debug_assert!(false, "pinned host memory, and a device's");
                continue;
            };
            let pieces: Vec<_> = same.iter().map(|piece| piece.piece(lane)).collect();
            flight.submitted.fence = Some(copies.engine.submit(lane, way, &pieces)?);
        }
        Ok(flight)
    }
}

impl StagedPiece {
    /// Returns whether the two memories are those of another piece.
    fn is_between_those_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.host.memory(), other.host.memory())
            && std::ptr::eq(self.device.memory(), other.device.memory())
    }

    fn way(&self, lane: Lane) -> Option<CopyWay<'_>> {
        let (_, host) = self.host.memory().pinning()?;
        let device = self.device.memory().device_memory()?;
        Some(match lane {
            Lane::Out => CopyWay::Out {
                from: device,
                to: host,
            },
            Lane::In | Lane::Gather => CopyWay::In {
                from: host,
                to: device,
            },
        })
    }

    fn piece(&self, lane: Lane) -> CopyPiece {
        let (from, to) = match lane {
            Lane::Out => (self.device_offset, self.host_offset),
            Lane::In | Lane::Gather => (self.host_offset, self.device_offset),
        };
        let len = self.len;
        CopyPiece { from, to, len }
    }
}

/// Copies that an engine is doing. Dropping them waits for the end.
#[derive(Debug)]
pub struct CopiesInFlight {
    submitted: Submitted,
    /// Keeps the memory of both sides.
    copies: StagedCopies,
}

impl CopiesInFlight {
    /// Returns whether the copies are done. Does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: they failed.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        self.submitted.is_done()
    }
}

/// A frag of which `done` bytes have been added.
struct Rest<'a> {
    frag: &'a Frag,
    done: usize,
}

impl<'a> Rest<'a> {
    fn of(frag: Option<&'a Frag>) -> Option<Self> {
        frag.map(|frag| Rest { frag, done: 0 })
    }

    fn left(&self) -> usize {
        self.frag.len() - self.done
    }

    /// Returns the offset of the next byte in its memory.
    fn offset(&self) -> usize {
        usize_of(self.frag.dmabuf_offset()) + self.done
    }
}

/// Replaces `last` by another owner of `next`, and keeps it in `held`, if they are different net_iovs.
fn hold(held: &mut Vec<Netmem>, last: &mut Netmem, next: &Netmem) {
    if !last.is_same(next) {
        held.push(std::mem::replace(last, next.share()));
    }
}

/// An offset in memory of this process: a `usize` before it was made a `u64`.
fn usize_of(offset: u64) -> usize {
    offset as usize
}
