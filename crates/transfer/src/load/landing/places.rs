//! The places of loaded bytes in memory.

use std::ops::Range;

use client::LoadError;
use devmem_tcp::{BoundTarget, Dmabuf, Netdev, RxBatch};

use super::staging::{BLOCK_BYTES, Staging};
use crate::checksum::Crc32c;
use crate::load::part::{Layout, Place};

/// Most ranges that the NIC is told at once.
const MAX_RANGES: usize = 1024;

/// Told which bytes of the source are in their place now. After a broken connection bytes may come again.
pub(crate) type Watch<'a> = dyn FnMut(Range<u64>) + 'a;

/// The places of loaded bytes.
pub(crate) struct Places<'a> {
    layout: &'a Layout,
    /// The memories of the layout that are targets of the NIC: it can place bytes in them. The others are gathered into.
    targets: Vec<BoundTarget>,
    watch: Option<&'a mut Watch<'a>>,
    /// Bytes for memory with an exporter. Each access of it costs more than a copy of some records.
    staging: Staging,
}

impl<'a> Places<'a> {
    /// Returns the places of `layout`.
    pub(crate) fn new(nic: &Netdev, layout: &'a Layout, watch: Option<&'a mut Watch<'a>>) -> Self {
        let memories = layout.memories().into_iter();
        Self {
            layout,
            targets: memories.filter_map(|it| nic.bind_target(it).ok()).collect(),
            watch,
            staging: Staging::default(),
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
        self.landed_at(&place, at, len, sum)
    }

    pub(super) fn memory_at(&self, at: u64) -> Option<(&Dmabuf, usize)> {
        let place = self.layout.place(at)?;
        Some((place.memory, place.offset))
    }

    pub(super) fn landed(
        &mut self,
        at: u64,
        len: usize,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
        let place = self.layout.place(at).ok_or(LoadError::Unasked { at })?;
        self.landed_at(&place, at, len, sum)
    }

    fn landed_at(
        &mut self,
        place: &Place<'_>,
        at: u64,
        len: usize,
        sum: Option<&mut Crc32c>,
    ) -> Result<(), LoadError> {
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
        let mut at = at;
        for block in bytes.chunks(BLOCK_BYTES) {
            if !self.staging.has_room(at, block.len()) {
                self.settle()?;
            }
            self.staging.add(place.memory, at, block)?;
            at = at.saturating_add(block.len() as u64);
        }
        Ok(())
    }

    pub(super) fn settle(&mut self) -> Result<(), LoadError> {
        let done = self.staging.start(self.layout)?;
        self.tell_of(done);
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), LoadError> {
        let done = self.staging.finish(self.layout)?;
        done.into_iter().for_each(|range| self.tell_of(range));
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

    fn tell_of(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.tell(range.start, range.end - range.start);
        }
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
        places.finish().unwrap();
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
        assert_eq!(written(&memory), [vec![], vec![100..160]]);
    }

    #[test]
    fn bytes_that_were_received_in_their_place_are_told_and_summed() {
        let memory = Dmabuf::anonymous(4096).unwrap();
        let part = Part {
            source: 100..130,
            memory: memory.clone(),
            offset: 50,
        };
        let layout = Layout::new(&[part]).unwrap();
        let mut told = Vec::new();
        let mut watch = |range| told.push(range);
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut places = Places::new(&nic, &layout, Some(&mut watch));
        let (place, offset) = places.memory_at(110).unwrap();
        assert!(place.is_same(&memory));
        place.copy_in(offset, b"weights").unwrap();
        let (mut sum, mut expected) = (Crc32c::default(), Crc32c::default());
        places.landed(110, 7, Some(&mut sum)).unwrap();
        expected.add(b"weights");
        assert_eq!(sum, expected);
        assert!(places.memory_at(130).is_none() && places.landed(130, 1, None).is_err());
        drop(places);
        assert_eq!(told, [110..117]);
        assert_eq!(memory.slice(60..67).to_vec(), b"weights");
    }

    #[test]
    fn a_block_is_filled_while_a_device_copies_the_one_before() {
        let device = FakeDevice::new(FakePace::OnDemand);
        let memory = device.alloc(1 << 20).unwrap();
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
        // The first block is with the device, which has not copied it, and the second one has begun.
        assert_eq!((device.submissions(), told.take()), (vec![1], vec![]));
        // Bytes from elsewhere begin a block, for which the first one is waited for.
        places.write(512 << 10, &record).unwrap();
        assert_eq!(device.submissions(), [1, 1]);
        assert_eq!(told.take(), [0..256 << 10]);
        // Nothing is waited for if nothing was added.
        places.settle().unwrap();
        places.settle().unwrap();
        assert_eq!(device.submissions(), [1, 1, 1]);
        assert_eq!(told.take(), [256 << 10..320 << 10]);
        device.run();
        places.settle().unwrap();
        assert_eq!(told.take(), [512 << 10..528 << 10]);
        places.finish().unwrap();
        assert!(told.take().is_empty());
        let mut bytes = vec![0; 1 << 20];
        memory.copy_out(0, &mut bytes).unwrap();
        let is_written = |at: usize| at < 320 << 10 || (512 << 10..528 << 10).contains(&at);
        let mut bytes = bytes.into_iter().enumerate();
        assert!(bytes.all(|(at, byte)| byte == 7 * u8::from(is_written(at))));
    }

    #[test]
    fn more_than_a_block_comes_at_once() {
        let memory = FakeDevice::new(FakePace::OnDemand).alloc(1 << 20).unwrap();
        let part = Part {
            source: 0..1 << 20,
            memory: memory.clone(),
            offset: 0,
        };
        let layout = Layout::new(&[part]).unwrap();
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut places = Places::new(&nic, &layout, None);
        let bytes: Vec<u8> = (0..1_u32 << 20).map(|at| (at / 7) as u8).collect();
        places.write(0, &bytes).unwrap();
        places.finish().unwrap();
        assert!(memory.slice(0..1 << 20).to_vec() == bytes);
    }
}
