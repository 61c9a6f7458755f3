//! Gathering: many ranges of a device's memory become one, by copies that the device does together.

use std::ops::Range;
use std::sync::Arc;

use crate::cpu_view::CopyError;
use crate::device::{CopyEngine, DeviceCopy, DeviceError, Fence, Lane};
use crate::dmabuf::Dmabuf;

/// Copies within the memory of a device that were started together. Dropping it waits until they are done.
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
    /// `None`: the two are not different memory of one device that copies it itself; see [`Dmabuf::copy_from`].
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn gather_from(
        &self,
        source: &Dmabuf,
        ranges: impl IntoIterator<Item = Range<usize>>,
        offset: usize,
    ) -> Result<Option<DeviceGather>, CopyError> {
        let engine_of = |memory: &Dmabuf| memory.exporter()?.gather_engine();
        let (Some(engine), Some(ours)) = (engine_of(source), engine_of(self)) else {
            return Ok(None);
        };
        if !Arc::ptr_eq(&engine, &ours) || self.is_same(source) {
            return Ok(None);
        }
        let mut joined: Vec<Range<usize>> = Vec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            source.memory().check(range.start, range.len())?;
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        let len: usize = joined.iter().map(Range::len).sum();
        self.memory().check(offset, len)?;
        let mut at = offset;
        let mut copies = Vec::with_capacity(joined.len());
        for range in &joined {
            let from = source.memory().exported_at(range.start);
            let to = self.memory().exported_at(at);
            if let (Some(from), Some(to)) = (from, to) {
                let len = range.len();
                copies.push(DeviceCopy::Within { from, to, len });
            }
            at += range.len();
        }
        let fence = match copies.is_empty() {
            true => None,
            false => Some(engine.submit(Lane::Gather, &copies)?),
        };
        Ok(Some(DeviceGather {
            _source: source.clone(),
            _target: self.clone(),
            engine,
            fence,
        }))
    }
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
        let ranges = [100..200, 200..300, 5000..5001, 7000..7000, 8000..8192];
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
