//! Gathering: many ranges of a device's memory, or of host memory that is pinned for it, become one, or go to places of their own, by copies that the device does
//! together.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu_view::CopyError;
use crate::device::{CopyEngine, CopyPiece, CopyWay, DeviceError, Fence, Lane};
use crate::dmabuf::Dmabuf;

/// Copies of a device that were started together. Dropping it waits until they are done.
#[derive(Debug)]
#[must_use = "dropping it waits for the copies"]
pub struct DeviceGather {
    // Keep the memory of both sides.
    _source: Dmabuf,
    _target: Dmabuf,
    engine: Arc<dyn CopyEngine>,
    /// `None`: the copies are over.
    fence: Option<Fence>,
}

impl Dmabuf {
    /// Starts to copy `ranges` of `source` to this memory, one after another from `offset` on. Adjacent ranges are one copy.
    ///
    /// One of them is memory of a device, and the other one other memory of the same device or host memory that is [pinned for it](Dmabuf::pinned_for).
    /// `None`: they are not, or the device does not copy itself; see [`Dmabuf::copy_from`].
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn gather_from<R>(
        &self,
        source: &Dmabuf,
        ranges: R,
        offset: usize,
    ) -> Result<Option<DeviceGather>, CopyError>
    where
        R: IntoIterator<Item = Range<usize>, IntoIter: Clone>,
    {
        let mut at = offset;
        self.scatter_from(
            source,
            ranges.into_iter().map(move |range| {
                let to = at;
                at = at.saturating_add(range.len());
                (range, to)
            }),
        )
    }

    /// As [`gather_from`](Self::gather_from), each range of `source` to an offset of its own.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn scatter_from<P>(
        &self,
        source: &Dmabuf,
        pieces: P,
    ) -> Result<Option<DeviceGather>, CopyError>
    where
        P: IntoIterator<Item = (Range<usize>, usize), IntoIter: Clone>,
    {
        let Some((engine, way)) = way(source, self).filter(|_| !self.is_same(source)) else {
            return Ok(None);
        };
        let mut pieces = pieces.into_iter();
        let (from, to) = (source.memory(), self.memory());
        pieces.clone().try_for_each(|(range, offset)| {
            from.check(range.start, range.len())?;
            to.check(offset, range.len())
        })?;
        // Both ends are inside of their memory from here on.
        let most = pieces.size_hint().1.unwrap_or(GROUP_PIECES);
        let mut group = Group {
            gather: DeviceGather {
                _source: source.clone(),
                _target: self.clone(),
                engine,
                fence: None,
            },
            way,
            pieces: Vec::with_capacity(most.min(GROUP_PIECES)),
        };
        pieces.try_for_each(|(range, offset)| group.add(&range, offset))?;
        Ok(Some(group.end()?))
    }
}

/// Pieces that are submitted together: the device copies them while the next ones are prepared.
const GROUP_PIECES: usize = 4096;

/// Pieces of a gather that are not submitted yet. An error drops the gather, which waits for those that were.
struct Group<'a> {
    gather: DeviceGather,
    way: CopyWay<'a>,
    pieces: Vec<CopyPiece>,
}

impl Group<'_> {
    /// Adds a piece, unless it is empty. It becomes part of the one before, if it is adjacent to it on both sides.
    #[inline]
    fn add(&mut self, range: &Range<usize>, to: usize) -> Result<(), DeviceError> {
        let (from, len) = (range.start, range.len());
        if let Some(last) = self.pieces.last_mut()
            && (last.from + last.len, last.to + last.len) == (from, to)
        {
            last.len += len;
            return Ok(());
        }
        if len == 0 {
            return Ok(());
        }
        if self.pieces.len() == GROUP_PIECES {
            self.submit()?;
        }
        self.pieces.push(CopyPiece { from, to, len });
        Ok(())
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        let lane = match self.way {
            CopyWay::In { .. } => Lane::In,
            CopyWay::Out { .. } | CopyWay::Within { .. } => Lane::Gather,
        };
        let fence = self.gather.engine.submit(lane, self.way, &self.pieces)?;
        self.gather.fence = Some(fence);
        self.pieces.clear();
        Ok(())
    }

    fn end(mut self) -> Result<DeviceGather, DeviceError> {
        if !self.pieces.is_empty() {
            self.submit()?;
        }
        Ok(self.gather)
    }
}

/// Returns the engine that copies from one memory to another: two of a device, or one of it and one that is pinned for it.
fn way<'a>(source: &'a Dmabuf, target: &'a Dmabuf) -> Option<(Arc<dyn CopyEngine>, CopyWay<'a>)> {
    let of_device = |memory: &'a Dmabuf| {
        let engine = memory.exporter()?.gather_engine()?;
        Some((engine, memory.memory().device_memory()?))
    };
    let (engine, other, way) = match (source.memory().pinning(), target.memory().pinning()) {
        (Some((other, from)), None) => {
            let (engine, to) = of_device(target)?;
            (engine, Arc::clone(other), CopyWay::In { from, to })
        }
        (None, Some((other, to))) => {
            let (engine, from) = of_device(source)?;
            (engine, Arc::clone(other), CopyWay::Out { from, to })
        }
        (None, None) => {
            let ((engine, from), (other, to)) = (of_device(source)?, of_device(target)?);
            (engine, other, CopyWay::Within { from, to })
        }
        (Some(_), Some(_)) => return None,
    };
    Arc::ptr_eq(&engine, &other).then_some((engine, way))
}

impl DeviceGather {
    /// Returns whether the copies are done. Does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: they failed.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        let Some(fence) = self.fence else {
            return Ok(true);
        };
        let done = self.engine.is_done(fence);
        if done != Ok(false) {
            self.fence = None;
        }
        done
    }

    /// Returns the point in the device's lane at which the copies are done; `None` when they are.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Waits until the copies are done.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: they failed.
    pub fn wait(mut self) -> Result<(), DeviceError> {
        match self.fence.take() {
            Some(fence) => self.engine.wait(fence),
            None => Ok(()),
        }
    }
}

impl Drop for DeviceGather {
    fn drop(&mut self) {
        if let Some(fence) = self.fence.take() {
            // A caller that needs the error calls `wait`.
            let _ = self.engine.wait(fence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FakeDevice, FakePace};

    #[test]
    fn adjacent_ranges_are_one_copy_and_all_ranges_one_submission() {
        let device = FakeDevice::new(FakePace::OnDemand);
        let (source, target) = (device.alloc(8192).unwrap(), device.alloc(4096).unwrap());
        let bytes: Vec<u8> = (0..8192_u32).map(|at| (at % 253) as u8).collect();
        source.copy_in(0, &bytes).unwrap();
        let ranges = [
            100..200,
            7000..7000,
            200..300,
            5000..5001,
            7000..7000,
            8000..8192,
        ];
        let gathered = target.gather_from(&source, ranges.clone(), 7).unwrap();
        let mut gathered = gathered.expect("memory of one device");
        assert_eq!(device.submissions(), [3]);
        assert_eq!(gathered.is_done(), Ok(false));
        device.run();
        assert_eq!(gathered.is_done(), Ok(true));
        assert_eq!(gathered.fence(), None);
        let expected: Vec<u8> = ranges
            .into_iter()
            .flat_map(|range| bytes[range].to_vec())
            .collect();
        assert_eq!(target.slice(7..7 + expected.len()).to_vec(), expected);
    }

    #[test]
    fn pieces_go_where_they_belong_and_those_that_touch_on_both_sides_are_one() {
        let device = FakeDevice::new(FakePace::AtOnce);
        let (source, target) = (device.alloc(4096).unwrap(), device.alloc(4096).unwrap());
        source.copy_in(0, b"abcdefgh").unwrap();
        let pieces = [(0..2, 100), (2..4, 102), (4..6, 200), (6..6, 0), (6..8, 50)];
        let scattered = target.scatter_from(&source, pieces.clone()).unwrap();
        scattered.expect("memory of one device").wait().unwrap();
        assert_eq!(device.submissions(), [3]);
        for (range, at) in pieces {
            let bytes = target.slice(at..at + range.len()).to_vec();
            assert_eq!(bytes, b"abcdefgh"[range]);
        }
        let outside = target.scatter_from(&source, [(0..2, 0), (0..2, 4095)]);
        assert!(matches!(outside, Err(CopyError::OutOfBounds(_))));
    }

    #[test]
    fn pinned_host_memory_is_filled_by_one_submission() {
        let device = FakeDevice::new(FakePace::OnDemand);
        let source = device.alloc(8192).unwrap();
        source.copy_in(100, b"one two").unwrap();
        let host = Dmabuf::pinned_for(&source, 4096).unwrap();
        let gathered = host.gather_from(&source, [104..107, 100..103], 4090);
        gathered.unwrap().expect("pinned").wait().unwrap();
        assert_eq!(device.submissions(), [2]);
        assert_eq!(host.slice(4090..4096).to_vec(), b"twoone");
        let other = FakeDevice::new(FakePace::AtOnce).alloc(4096).unwrap();
        assert!(host.gather_from(&other, [0..5, 6..9], 0).unwrap().is_none());
        let beside = Dmabuf::pinned_for(&host, 4096).unwrap();
        assert!(
            beside
                .gather_from(&source, [0..5, 6..9], 0)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn pinned_host_memory_fills_memory_of_its_device() {
        let device = FakeDevice::new(FakePace::OnDemand);
        let target = device.alloc(8192).unwrap();
        let host = Dmabuf::pinned_for(&target, 4096).unwrap();
        host.copy_in(100, b"one two").unwrap();
        let gathered = target.gather_from(&host, [104..107, 100..103], 8186);
        let mut gathered = gathered.unwrap().expect("pinned");
        assert_eq!(
            (device.submissions(), gathered.is_done()),
            (vec![2], Ok(false))
        );
        device.run();
        gathered.wait().unwrap();
        assert_eq!(target.slice(8186..8192).to_vec(), b"twoone");
        let past = [0..1, 4000..4097];
        let past = target.gather_from(&host, past, 0).unwrap_err();
        assert!(matches!(past, CopyError::OutOfBounds(_)));
        let other = FakeDevice::new(FakePace::AtOnce).alloc(4096).unwrap();
        assert!(other.gather_from(&host, [0..5, 6..9], 0).unwrap().is_none());
    }

    #[test]
    fn other_memory_is_left_to_the_cpu_and_bounds_are_checked() {
        let device = FakeDevice::new(FakePace::AtOnce);
        let other = FakeDevice::new(FakePace::AtOnce).alloc(4096).unwrap();
        let (source, host) = (
            device.alloc(4096).unwrap(),
            Dmabuf::anonymous(4096).unwrap(),
        );
        for target in [&host, &other, &source] {
            assert!(
                target
                    .gather_from(&source, [0..5, 5..10], 100)
                    .unwrap()
                    .is_none()
            );
        }
        let target = device.alloc(4096).unwrap();
        for (range, offset) in [(4000..4097, 0), (0..10, 4090), (0..10, usize::MAX)] {
            let refused = target.gather_from(&source, [range], offset).unwrap_err();
            assert!(matches!(refused, CopyError::OutOfBounds(_)));
        }
        assert!(device.submissions().is_empty());
    }

    #[test]
    fn dropping_waits_and_a_lost_device_is_an_error() {
        let device = FakeDevice::new(FakePace::OnDemand);
        let (source, target) = (device.alloc(4096).unwrap(), device.alloc(4096).unwrap());
        source.copy_in(0, b"gathered").unwrap();
        drop(target.gather_from(&source, [0..4, 4..8], 0).unwrap());
        assert_eq!(target.slice(0..8).to_vec(), b"gathered");
        let gathered = target
            .gather_from(&source, [0..4, 4..8], 8)
            .unwrap()
            .unwrap();
        device.lose();
        assert_eq!(gathered.wait(), Err(crate::FAKE_LOST));
    }
}
