//! Net_iovs: the equal chunks of a run of network memory. The geometry is validated once.

use std::fmt;
use std::sync::Arc;

use crate::device::CopyEngine;
use crate::errors::GeometryError;
use crate::memory::Memory;
use crate::sync::{AtomicU32, Ordering, fence};

/// No net_iov: the end of a list.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// The size of a net_iov: a power of two from 4 KiB to 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NiovSize {
    shift: u8,
}

impl NiovSize {
    /// One page, the kernel's only size up to Linux 7.2.
    pub const MIN: NiovSize = NiovSize { shift: 12 };
    /// One huge page.
    pub const MAX: NiovSize = NiovSize { shift: 21 };
    /// 64 KiB: holds one super-packet of a TAP with segmentation offload.
    pub const DEFAULT: NiovSize = NiovSize { shift: 16 };

    /// Returns the size of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`GeometryError::NiovSize`] when it is not a power of two from 4 KiB to 2 MiB.
    pub fn new(bytes: usize) -> Result<Self, GeometryError> {
        if !bytes.is_power_of_two() || !(Self::MIN.bytes()..=Self::MAX.bytes()).contains(&bytes) {
            return Err(GeometryError::NiovSize { bytes });
        }
        // A power of two up to 2 MiB: its logarithm is 12 to 21.
        Ok(NiovSize {
            shift: bytes.trailing_zeros() as u8,
        })
    }

    /// Returns the largest size that divides `len` bytes; the smallest size if none does.
    pub(crate) fn largest_for(len: usize) -> Self {
        let shift = len.trailing_zeros();
        NiovSize {
            // Between 12 and 21.
            shift: shift.clamp(Self::MIN.shift.into(), Self::MAX.shift.into()) as u8,
        }
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        1 << self.shift
    }
}

impl Default for NiovSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for NiovSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() >> 10 {
            kib if kib < 1024 => write!(f, "{kib} KiB"),
            kib => write!(f, "{} MiB", kib >> 10),
        }
    }
}

/// One contiguous run of net_iovs, with the number of owners of each.
#[doc(alias = "net_iov_area")]
pub struct NetIovArea {
    memory: Arc<Memory>,
    base: usize,
    niov_size: NiovSize,
    slots: Box<[NetIov]>,
}

impl NetIovArea {
    /// Cuts `len` bytes at `base` of the memory into net_iovs.
    pub(crate) fn cut(
        memory: Arc<Memory>,
        base: usize,
        len: usize,
        niov_size: NiovSize,
    ) -> Result<Arc<Self>, GeometryError> {
        let niov = niov_size.bytes();
        let size = memory.size();
        if len == 0 {
            return Err(GeometryError::Empty { niov });
        }
        if !base.is_multiple_of(niov) {
            return Err(GeometryError::Base { base, niov });
        }
        if !len.is_multiple_of(niov) {
            let next = len
                .checked_next_multiple_of(niov)
                .unwrap_or(usize::MAX & !(niov - 1));
            return Err(GeometryError::Length { len, niov, next });
        }
        if memory.check(base, len).is_err() {
            return Err(GeometryError::PastEnd { base, len, size });
        }
        let count = len / niov;
        if u32::try_from(count).is_err() || count >= NO_INDEX as usize {
            return Err(GeometryError::Count { count });
        }
        let slots = (0..count).map(|_| NetIov::free()).collect();
        Ok(Arc::new(NetIovArea {
            memory,
            base,
            niov_size,
            slots,
        }))
    }

    /// Covers memory of another process by the fewest net_iovs. The last one may reach past the end, so nothing is allocated
    /// from such an area; ranges in it are checked against the memory.
    pub(crate) fn cover(memory: Arc<Memory>) -> Arc<Self> {
        let niov_size = NiovSize::MAX;
        let count = memory.size().div_ceil(niov_size.bytes());
        Arc::new(NetIovArea {
            memory,
            base: 0,
            niov_size,
            slots: (0..count).map(|_| NetIov::free()).collect(),
        })
    }

    /// Returns the size of each net_iov.
    pub fn niov_size(&self) -> NiovSize {
        self.niov_size
    }

    /// Returns the number of net_iovs.
    pub fn count(&self) -> u32 {
        // `cut` refused more.
        self.slots.len() as u32
    }

    /// Returns the engine that copies the memory, if the CPU cannot access it.
    pub fn copy_engine(&self) -> Option<&Arc<dyn CopyEngine>> {
        self.memory.engine()
    }

    /// Returns the offset of net_iov `index` in the dma-buf.
    #[inline]
    pub(crate) fn offset_of(&self, index: u32) -> usize {
        // No overflow for an index below `count`: `cut` checked base + count * size.
        self.base + ((index as usize) << self.niov_size.shift)
    }

    #[inline]
    pub(crate) fn slots(&self) -> &[NetIov] {
        &self.slots
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &NetIov {
        &self.slots[index as usize]
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl fmt::Debug for NetIovArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NetIovArea({} x {} at {})",
            self.slots.len(),
            self.niov_size,
            self.base
        )
    }
}

/// The owners of one net_iov.
///
/// `refs` counts its [`crate::Netmem`] handles. 0: there is none; the net_iov is in
/// its provider, in a return ring, or is being moved between the two. `next` links it into a return
/// ring and has no meaning elsewhere.
#[doc(alias = "net_iov")]
pub(crate) struct NetIov {
    refs: AtomicU32,
    pub(crate) next: AtomicU32,
}

/// Maximum number of owners, which no correct program reaches. It stops a loop that leaks shares long before the
/// counter wraps, which would recycle a net_iov that is still in use.
const MAX_REFS: u32 = u32::MAX / 2;

impl NetIov {
    pub(crate) fn free() -> Self {
        NetIov {
            refs: AtomicU32::new(0),
            next: AtomicU32::new(NO_INDEX),
        }
    }

    /// Makes the caller, which took it from its provider or ring, the only owner.
    #[inline]
    pub(crate) fn claim(&self) {
        // Relaxed: taking it from provider or ring has synchronized with the last owner.
        self.refs.store(1, Ordering::Relaxed);
    }

    /// Removes the only owner without sending the net_iov home; the caller passes it on.
    #[inline]
    pub(crate) fn disclaim(&self) {
        self.refs.store(0, Ordering::Relaxed);
    }

    /// Returns whether the caller is the only owner, so that it may reuse the memory.
    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        // Acquire pairs with the Release in `let_go`: the accesses of other owners happened before.
        self.refs.load(Ordering::Acquire) == 1
    }

    /// Adds an owner.
    #[inline]
    pub(crate) fn add_owner(&self) {
        // Relaxed as in `Arc::clone`: the caller is an owner, so the count cannot fall to 0 meanwhile.
        let owners = self.refs.fetch_add(1, Ordering::Relaxed);
        assert!(
            owners < MAX_REFS,
            "a net_iov has more than {MAX_REFS} owners: shares were leaked"
        );
    }

    /// Removes an owner. Returns whether it was the last one and has to send the net_iov home.
    #[inline]
    pub(crate) fn let_go(&self) -> bool {
        match self.refs.load(Ordering::Acquire) {
            0 => false,
            // The only owner: no other thread can add one, so no read-modify-write is needed.
            1 => {
                self.refs.store(0, Ordering::Relaxed);
                true
            }
            _ => {
                let last = self.refs.fetch_sub(1, Ordering::Release) == 1;
                if last {
                    fence(Ordering::Acquire);
                }
                last
            }
        }
    }
}
