//! Where received payload goes: to its place in memory, or to the caller.

use std::io;
use std::ops::Range;

use devmem_tcp::{BoundTarget, Dmabuf, Netdev, RxBatch};

use super::error::LoadError;
use super::part::Layout;
use crate::checksum::Crc32c;

/// Bytes of the source that have arrived, for the caller of [`Loader::deliver`](super::Loader::deliver).
#[derive(Debug)]
pub enum Landed<'a> {
    /// Received bytes.
    Frags {
        /// Offset of the first byte in the source.
        at: u64,
        /// The bytes. Frags that are [taken](RxBatch::take) stay lent; the server waits while too much memory is lent.
        batch: &'a mut RxBatch,
    },
    /// Bytes of a server by https, decrypted in host memory.
    Bytes {
        /// Offset of the first byte in the source.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Zeros that an NBD server did not send, because the source has a hole there.
    Zeros {
        /// Offset of the first byte in the source.
        at: u64,
        /// Their number.
        len: u64,
    },
}

impl Landed<'_> {
    /// Copies received bytes to the first ones of `out`, as many as fit. Returns their number; 0 for zeros, which nobody has sent.
    ///
    /// # Errors
    /// The memory that they lie in cannot be read.
    pub fn copy_to(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Frags { batch, .. } => batch.copy_to(out).map_err(io::Error::other),
            Self::Bytes { bytes, .. } => {
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                Ok(count)
            }
            Self::Zeros { .. } => Ok(0),
        }
    }
}

/// Fewer bytes than this are not worth telling the NIC where they belong: those of a super-packet.
const DIRECT_BYTES: u64 = 64 << 10;
/// Most ranges that the NIC is told at once.
const MAX_RANGES: usize = 1024;

/// Receives what has landed.
pub(crate) type Take<'a> = dyn FnMut(Landed<'_>) -> io::Result<()> + 'a;

/// Told which bytes of the source are in their place now. After a broken connection bytes may come again.
pub(crate) type Watch<'a> = dyn FnMut(Range<u64>) + 'a;

/// Where payload goes.
pub(crate) enum Landing<'a> {
    /// To the place of its part; directly where the NIC can do that.
    Memory(&'a Layout, Targets, Option<&'a mut Watch<'a>>),
    /// To the caller, where it lies.
    Caller(&'a mut Take<'a>),
}

/// The memories of a layout, as targets of the NIC.
#[derive(Debug)]
pub(crate) struct Targets(Vec<BoundTarget>);

impl Targets {
    /// Binds the memories of `layout` that the NIC can place bytes in directly; the others are gathered into.
    pub(crate) fn bind(nic: &Netdev, layout: &Layout) -> Self {
        let memories = layout.memories().into_iter();
        Self(memories.filter_map(|it| nic.bind_target(it).ok()).collect())
    }

    fn of(&self, memory: &Dmabuf) -> Option<&BoundTarget> {
        self.0.iter().find(|bound| bound.memory().is_same(memory))
    }
}

impl Landing<'_> {
    /// Returns whether it is worth telling the NIC where so many bytes belong.
    pub(crate) fn is_worth_telling(len: u64) -> bool {
        len >= DIRECT_BYTES
    }

    /// Returns the target of the NIC that the byte `at` belongs to; `None` if its memory is none.
    pub(crate) fn target_at(&self, at: u64) -> Option<&BoundTarget> {
        let Self::Memory(layout, targets, _) = self else {
            return None;
        };
        targets.of(layout.place(at)?.memory)
    }

    /// Returns where the NIC is to receive the bytes from `at` on, of which the next `len` come: up to those for another memory.
    /// `None` if they are few, or it cannot.
    pub(crate) fn target(&self, at: u64, len: u64) -> Option<(&BoundTarget, Vec<Range<usize>>)> {
        let Self::Memory(layout, targets, _) = self else {
            return None;
        };
        let first = layout.place(at).filter(|_| Self::is_worth_telling(len))?;
        let target = targets.of(first.memory)?;
        let (mut ranges, mut covered) = (Vec::new(), 0);
        while covered < len
            && ranges.len() < MAX_RANGES
            && let Some(place) = layout.place(at.saturating_add(covered))
            && place.memory.is_same(first.memory)
        {
            let room = place.room.min(len - covered);
            // Fits: the part fits into its memory.
            let end = place
                .offset
                .saturating_add(usize::try_from(room).unwrap_or(usize::MAX));
            ranges.push(place.offset..end);
            covered += room;
        }
        Some((target, ranges))
    }

    /// Returns a target of the NIC, if there is one.
    pub(crate) fn any_target(&self) -> Option<&BoundTarget> {
        match self {
            Self::Memory(_, targets, _) => targets.0.first(),
            Self::Caller(_) => None,
        }
    }

    /// Returns how many bytes from `at` on can be placed at once.
    pub(crate) fn room(&self, at: u64) -> u64 {
        match self {
            Self::Memory(layout, ..) => layout.place(at).map_or(0, |place| place.room),
            Self::Caller(_) => u64::MAX,
        }
    }

    /// Moves a batch, of at most [`room`](Self::room) bytes, to its place, and adds its bytes to `sum`.
    ///
    /// # Errors
    /// The copy failed, or the caller did.
    pub(crate) fn place(
        &mut self,
        at: u64,
        batch: &mut RxBatch,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
        let len = batch.device_bytes() + batch.linear_bytes();
        match self {
            Self::Memory(layout, _, watch) => {
                let place = layout.place(at).ok_or(LoadError::Unasked { at })?;
                batch
                    .gather_into(place.memory, place.offset)
                    .map_err(LoadError::Gather)?;
                if let Some(sum) = sum {
                    let added = sum.add_memory(place.memory, place.offset..place.offset + len);
                    added.map_err(|error| LoadError::Gather(error.into()))?;
                }
                tell(watch, at, len as u64);
                Ok(())
            }
            Self::Caller(take) => {
                if let Some(sum) = sum {
                    let mut bytes = vec![0; len];
                    batch.copy_to(&mut bytes).map_err(LoadError::Gather)?;
                    sum.add(&bytes);
                }
                take(Landed::Frags { at, batch }).map_err(LoadError::Caller)
            }
        }
    }

    /// Writes bytes of host memory, of at most [`room`](Self::room), to their place.
    ///
    /// # Errors
    /// They cannot be copied, or the caller failed.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let (layout, watch) = match self {
            Self::Memory(layout, _, watch) => (layout, watch),
            Self::Caller(take) => {
                return take(Landed::Bytes { at, bytes }).map_err(LoadError::Caller);
            }
        };
        let place = layout.place(at).ok_or(LoadError::Unasked { at })?;
        let copied = place.memory.copy_in(place.offset, bytes);
        copied.map_err(|error| LoadError::Gather(error.into()))?;
        tell(watch, at, bytes.len() as u64);
        Ok(())
    }

    /// Writes zeros to the places of `len` bytes.
    ///
    /// # Errors
    /// The memory cannot be written, or the caller failed.
    pub(crate) fn zeros(&mut self, at: u64, len: u64) -> Result<(), LoadError> {
        let (layout, watch) = match self {
            Self::Memory(layout, _, watch) => (layout, watch),
            Self::Caller(take) => {
                return take(Landed::Zeros { at, len }).map_err(LoadError::Caller);
            }
        };
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let place = layout.place(at).ok_or(LoadError::Unasked { at })?;
            let len = left.min(place.room);
            // Fits: the part fits into its memory.
            let bytes = usize::try_from(len).map_err(|_| LoadError::Unasked { at })?;
            let filled = place.memory.fill(place.offset..place.offset + bytes, 0);
            filled.map_err(|error| LoadError::Gather(error.into()))?;
            tell(watch, at, len);
            at = at.saturating_add(len);
            left -= len;
        }
        Ok(())
    }
}

fn tell(watch: &mut Option<&mut Watch<'_>>, at: u64, len: u64) {
    if let Some(watch) = watch {
        watch(at..at.saturating_add(len));
    }
}
