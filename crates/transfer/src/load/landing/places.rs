//! The places of loaded bytes in memory.

use std::ops::Range;

use devmem_tcp::{BoundTarget, Dmabuf, Netdev, RxBatch};

use crate::checksum::Crc32c;
use crate::load::error::LoadError;
use crate::load::part::Layout;

/// Most ranges that the NIC is told at once.
const MAX_RANGES: usize = 1024;
/// Most bytes that are collected for a write: they fit into the second-level cache.
const COLLECTED_BYTES: usize = 256 << 10;

/// Told which bytes of the source are in their place now. After a broken connection bytes may come again.
pub(crate) type Watch<'a> = dyn FnMut(Range<u64>) + 'a;

/// The places of loaded bytes.
pub(crate) struct Places<'a> {
    layout: &'a Layout,
    /// The memories of the layout that are targets of the NIC: it can place bytes in them. The others are gathered into.
    targets: Vec<BoundTarget>,
    watch: Option<&'a mut Watch<'a>>,
    /// Bytes of host memory for memory with an exporter: of a device, or synchronised by calls. Each access of it costs more than a copy of some
    /// records.
    collected: Vec<u8>,
    /// Offset of the first of them in the source.
    collected_at: u64,
}

impl<'a> Places<'a> {
    /// Returns the places of `layout`.
    pub(crate) fn new(nic: &Netdev, layout: &'a Layout, watch: Option<&'a mut Watch<'a>>) -> Self {
        let memories = layout.memories().into_iter();
        Self {
            layout,
            targets: memories.filter_map(|it| nic.bind_target(it).ok()).collect(),
            watch,
            collected: Vec::new(),
            collected_at: 0,
        }
    }

    pub(super) fn target_at(&self, at: u64) -> Option<&BoundTarget> {
        self.target_of(self.layout.place(at)?.memory)
    }

    fn target_of(&self, memory: &Dmabuf) -> Option<&BoundTarget> {
        let mut targets = self.targets.iter();
        targets.find(|bound| bound.memory().is_same(memory))
    }

    pub(super) fn any_target(&self) -> Option<&BoundTarget> {
        self.targets.first()
    }

    pub(super) fn target(&self, at: u64, len: u64) -> Option<(&BoundTarget, Vec<Range<usize>>)> {
        let first = self.layout.place(at)?;
        let target = self.target_of(first.memory)?;
        let (mut ranges, mut covered) = (Vec::new(), 0);
        while covered < len
            && ranges.len() < MAX_RANGES
            && let Some(place) = self.layout.place(at.saturating_add(covered))
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

    pub(super) fn room(&self, at: u64) -> u64 {
        self.layout.place(at).map_or(0, |place| place.room)
    }

    pub(super) fn place(
        &mut self,
        at: u64,
        batch: &mut RxBatch,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
        let len = batch.device_bytes() + batch.linear_bytes();
        let place = self.layout.place(at).ok_or(LoadError::Unasked { at })?;
        let gathered = batch.gather_into(place.memory, place.offset);
        gathered.map_err(LoadError::Gather)?;
        if let Some(sum) = sum {
            let added = sum.add_memory(place.memory, place.offset..place.offset + len);
            added.map_err(|error| LoadError::Gather(error.into()))?;
        }
        self.tell(at, len as u64);
        Ok(())
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let place = self.layout.place(at).ok_or(LoadError::Unasked { at })?;
        if place.memory.exporter().is_none() {
            let copied = place.memory.copy_in(place.offset, bytes);
            copied.map_err(|error| LoadError::Gather(error.into()))?;
            self.tell(at, bytes.len() as u64);
            return Ok(());
        }
        let end = self
            .collected_at
            .saturating_add(self.collected.len() as u64);
        if at != end || self.collected.len() + bytes.len() > COLLECTED_BYTES {
            self.settle()?;
            self.collected_at = at;
        }
        self.collected.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn settle(&mut self) -> Result<(), LoadError> {
        let collected = std::mem::take(&mut self.collected);
        let (mut at, mut left) = (self.collected_at, &collected[..]);
        while !left.is_empty() {
            let place = self.layout.place(at).ok_or(LoadError::Unasked { at })?;
            let room = usize::try_from(place.room).unwrap_or(usize::MAX);
            let (here, after) = left.split_at(left.len().min(room));
            let copied = place.memory.copy_in(place.offset, here);
            copied.map_err(|error| LoadError::Gather(error.into()))?;
            self.tell(at, here.len() as u64);
            at = at.saturating_add(here.len() as u64);
            left = after;
        }
        self.collected = collected;
        self.collected.clear();
        Ok(())
    }

    pub(super) fn zeros(&mut self, at: u64, len: u64) -> Result<(), LoadError> {
        let (mut at, mut left) = (at, len);
        while left > 0 {
            let place = self.layout.place(at).ok_or(LoadError::Unasked { at })?;
            let len = left.min(place.room);
            // Fits: the part fits into its memory.
            let bytes = usize::try_from(len).map_err(|_| LoadError::Unasked { at })?;
            let filled = place.memory.fill(place.offset..place.offset + bytes, 0);
            filled.map_err(|error| LoadError::Gather(error.into()))?;
            self.tell(at, len);
            at = at.saturating_add(len);
            left -= len;
        }
        Ok(())
    }

    fn tell(&mut self, at: u64, len: u64) {
        if let Some(watch) = &mut self.watch {
            watch(at..at.saturating_add(len));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use netmem::{FakeDevice, FakePace};

    use super::*;
    use crate::load::part::Part;

    /// Writes three records to two parts side by side in the source. Returns what was in its place before the end, and after it.
    fn written(memory: &Dmabuf) -> [Vec<Range<u64>>; 2] {
        let part = |source: Range<u64>, offset| Part {
            source,
            memory: memory.clone(),
            offset,
        };
        let layout = Layout::new(&[part(100..130, 1000), part(130..160, 0)]).unwrap();
        let told = RefCell::new(Vec::new());
        let mut watch = |range| told.borrow_mut().push(range);
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut places = Places::new(&nic, &layout, Some(&mut watch));
        for (at, byte, len) in [(100, 1, 20), (120, 2, 10), (130, 3, 30)] {
            places.write(at, &vec![byte; len]).unwrap();
        }
        let before = told.take();
        places.settle().unwrap();
        let mut bytes = vec![0; 1030];
        memory.copy_out(0, &mut bytes).unwrap();
        assert_eq!(bytes[..30], [3; 30]);
        assert_eq!(bytes[1000..], [[1; 10], [1; 10], [2; 10]].concat());
        [before, told.take()]
    }

    #[test]
    fn records_are_written_to_memory_of_the_cpu_at_once_and_to_that_of_a_device_together() {
        let memory = Dmabuf::anonymous(4096).unwrap();
        assert_eq!(
            written(&memory),
            [vec![100..120, 120..130, 130..160], vec![]]
        );
        let memory = FakeDevice::new(FakePace::AtOnce).alloc(4096).unwrap();
        assert_eq!(written(&memory), [vec![], vec![100..130, 130..160]]);
    }

    #[test]
    fn what_is_collected_is_bounded_and_of_one_range() {
        let memory = FakeDevice::new(FakePace::AtOnce).alloc(1 << 20).unwrap();
        let part = Part {
            source: 0..1 << 20,
            memory: memory.clone(),
            offset: 0,
        };
        let layout = Layout::new(&[part]).unwrap();
        let told = RefCell::new(Vec::new());
        let mut watch = |range| told.borrow_mut().push(range);
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut places = Places::new(&nic, &layout, Some(&mut watch));
        let record = [7; 16 << 10];
        for at in (0..320 << 10).step_by(record.len()) {
            places.write(at, &record).unwrap();
        }
        assert_eq!(told.take(), [0..256 << 10]);
        places.write(512 << 10, &record).unwrap();
        assert_eq!(told.take(), [256 << 10..320 << 10]);
        places.settle().unwrap();
        assert_eq!(told.take(), [512 << 10..528 << 10]);
        places.settle().unwrap();
        assert!(told.take().is_empty());
    }
}
