//! Gathering: many ranges of a device's memory, or of host memory that is pinned for it, become one, or go to places of their own, by copies that the device does
//! together.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::cpu_view::CopyError;
use crate::device::{CopyEngine, CopyPiece, CopyWay, DeviceError, Fence, Lane};
use crate::dmabuf::Dmabuf;
use crate::piece_list::PieceList;
use crate::submitted::Submitted;

/// Copies of a device that were started together. Dropping it waits until they are done.
#[derive(Debug)]
#[must_use = "dropping it waits for the copies"]
pub struct DeviceGather {
    submitted: Submitted,
    // Keep the memory of both sides.
    _source: Dmabuf,
    _target: Dmabuf,
}

impl Dmabuf {
    /// Starts to copy `ranges` of `source` to this memory, one after another from `offset` on. Adjacent ranges are one copy.
    ///
    /// One of them is memory of a device, and the other one other memory of the same device or host memory that is [pinned for it](Dmabuf::pinned_for).
    /// `None`: they are not, or the device does not copy itself; see [`Dmabuf::copy_from`].
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, some of the ranges before may have been copied.
    pub fn gather_from<R>(
        &self,
        source: &Dmabuf,
        ranges: R,
        offset: usize,
    ) -> Result<Option<DeviceGather>, CopyError>
    where
        R: IntoIterator<Item = Range<usize>>,
    {
        let first = CopyPiece {
            to: offset,
            ..CopyPiece::default()
        };
        self.copy_runs(source, Runs::of(ranges, first, |end, range| (range, end)))
    }

    /// As [`gather_from`](Self::gather_from), each range of `source` to an offset of its own.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, some of the pieces before may have been copied.
    pub fn scatter_from<P>(
        &self,
        source: &Dmabuf,
        pieces: P,
    ) -> Result<Option<DeviceGather>, CopyError>
    where
        P: IntoIterator<Item = (Range<usize>, usize)>,
    {
        let first = CopyPiece::default();
        self.copy_runs(source, Runs::of(pieces, first, |_, piece| piece))
    }

    fn copy_runs<I: Iterator>(
        &self,
        source: &Dmabuf,
        mut runs: Runs<I, impl Fn(usize, I::Item) -> (Range<usize>, usize)>,
    ) -> Result<Option<DeviceGather>, CopyError> {
        let Some((engine, way)) = way(source, self).filter(|_| !self.is_same(source)) else {
            return Ok(None);
        };
        let sizes = (source.size(), self.size());
        let most = runs.pieces.size_hint().1.unwrap_or(usize::MAX);
        let mut group = Group {
            gather: DeviceGather {
                submitted: Submitted::none_by(engine),
                _source: source.clone(),
                _target: self.clone(),
            },
            way,
            list: PieceList::for_memories(sizes.0.max(sizes.1), most),
            long: Vec::new(),
        };
        while let Some(unlisted) = runs.list(&mut group.list, sizes) {
            match unlisted {
                Unlisted::Run(run) => group.add(run)?,
                Unlisted::Outside(range, offset) => {
                    source.memory().check(range.start, range.len())?;
                    self.memory().check(offset, range.len())?;
                }
            }
        }
        group.add(runs.last)?;
        Ok(Some(group.end()?))
    }
}

/// Pieces between two memories, of which those that are adjacent on both sides become one.
struct Runs<I, P> {
    pieces: I,
    /// Returns the range of the source of a piece, and its offset in the target, by the end of the run before it there.
    place: P,
    /// The run that the next piece may continue; empty at first.
    last: CopyPiece,
}

/// What a list has no place for.
enum Unlisted {
    /// A piece that is not inside of its memories.
    Outside(Range<usize>, usize),
    /// A run that is empty or long, or for which the list is full.
    Run(CopyPiece),
}

impl<I: Iterator, P: Fn(usize, I::Item) -> (Range<usize>, usize)> Runs<I, P> {
    fn of(pieces: impl IntoIterator<IntoIter = I>, first: CopyPiece, place: P) -> Self {
        Self {
            pieces: pieces.into_iter(),
            place,
            last: first,
        }
    }

    /// Adds runs of pieces in memories of these sizes to a list, until there is something that it has no place for. `None`: there are no more pieces; the last
    /// run stays in `last`.
    ///
    /// One loop without calls, which keeps what it needs in registers: it is most of what a piece costs the CPU.
    #[inline]
    fn list(&mut self, list: &mut PieceList, sizes: (usize, usize)) -> Option<Unlisted> {
        let (places, longest) = list.free();
        let (place, begun) = (&self.place, (self.last, 0));
        let mut unlisted = None;
        let stop = &mut unlisted;
        let ended = self.pieces.try_fold(begun, move |(run, count), piece| {
            let (range, to) = place(run.to + run.len, piece);
            let (from, len) = (range.start, range.len());
            let is_inside = |at: usize, size: usize| at <= size && len <= size - at;
            if !is_inside(from, sizes.0) || !is_inside(to, sizes.1) {
                *stop = Some(Unlisted::Outside(range, to));
                return ControlFlow::Break((run, count));
            }
            // All sums are inside of the memories.
            if (run.from + run.len, run.to + run.len) == (from, to) {
                let len = run.len + len;
                return ControlFlow::Continue((CopyPiece { len, ..run }, count));
            }
            if len == 0 {
                return ControlFlow::Continue((run, count));
            }
            let next = CopyPiece { from, to, len };
            match places.get_mut(count) {
                Some(place) if run.len.wrapping_sub(1) < longest => *place = run.packed(),
                _ => {
                    *stop = Some(Unlisted::Run(run));
                    return ControlFlow::Break((next, count));
                }
            }
            ControlFlow::Continue((next, count + 1))
        });
        let (ControlFlow::Continue((last, count)) | ControlFlow::Break((last, count))) = ended;
        self.last = last;
        list.take(count);
        unlisted
    }
}

/// Long pieces that are submitted together.
const LONG_PIECES: usize = 4096;

/// Pieces of a gather that are not submitted yet: the device copies those that were, while the next ones are prepared. An error drops the gather, which
/// waits for them.
struct Group<'a> {
    gather: DeviceGather,
    way: CopyWay<'a>,
    list: PieceList,
    /// Those that the list does not take.
    long: Vec<CopyPiece>,
}

impl Group<'_> {
    /// Adds a piece, unless it is empty.
    fn add(&mut self, piece: CopyPiece) -> Result<(), DeviceError> {
        if self.list.is_full() {
            self.submit_list()?;
        }
        if piece.len > 0 && !self.list.add(piece) {
            self.long.push(piece);
        }
        match self.long.len() {
            LONG_PIECES => self.submit_long(),
            _ => Ok(()),
        }
    }

    fn submit_list(&mut self) -> Result<(), DeviceError> {
        let Self { gather, list, .. } = self;
        let (lane, way) = (lane(self.way), self.way);
        let engine = &gather.submitted.engine;
        let fence = match engine.submit_list(lane, way, list)? {
            Some(fence) => fence,
            None => {
                let pieces: Vec<_> = list.pieces().collect();
                engine.submit(lane, way, &pieces)?
            }
        };
        gather.submitted.fence = Some(fence);
        list.clear();
        Ok(())
    }

    fn submit_long(&mut self) -> Result<(), DeviceError> {
        let submitted = &mut self.gather.submitted;
        let fence = submitted
            .engine
            .submit(lane(self.way), self.way, &self.long)?;
        submitted.fence = Some(fence);
        self.long.clear();
        Ok(())
    }

    fn end(mut self) -> Result<DeviceGather, DeviceError> {
        if !self.long.is_empty() {
            self.submit_long()?;
        }
        if !self.list.is_empty() {
            self.submit_list()?;
        }
        Ok(self.gather)
    }
}

fn lane(way: CopyWay<'_>) -> Lane {
    match way {
        CopyWay::In { .. } => Lane::In,
        CopyWay::Out { .. } | CopyWay::Within { .. } => Lane::Gather,
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
        self.submitted.is_done()
    }

    /// Returns the point in the device's lane at which the copies are done; `None` when they are.
    pub fn fence(&self) -> Option<Fence> {
        self.submitted.fence
    }

    /// Waits until the copies are done.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: they failed.
    pub fn wait(mut self) -> Result<(), DeviceError> {
        self.submitted.wait()
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
    fn more_pieces_than_a_list_has_and_long_ones_are_other_submissions() {
        const LONG: usize = PieceList::PIECE_BYTES + 1;
        let device = FakeDevice::new(FakePace::AtOnce);
        let size = 1 << 20;
        let (source, target) = (device.alloc(size).unwrap(), device.alloc(size).unwrap());
        let bytes: Vec<u8> = (0..size).map(|at| (at % 253) as u8).collect();
        source.copy_in(0, &bytes).unwrap();
        let short = (0..PieceList::PIECES + 1).map(|n| n * 3..n * 3 + 2);
        let ranges = std::iter::once(9..9 + LONG).chain(short);
        // An iterator that does not know how many there are.
        let ranges = ranges.filter(|range| range.start % 2 < 2);
        let gathered = target.gather_from(&source, ranges.clone(), 5).unwrap();
        gathered.expect("memory of one device").wait().unwrap();
        assert_eq!(device.submissions(), [PieceList::PIECES, 1, 1]);
        let expected: Vec<u8> = ranges.flat_map(|range| bytes[range].to_vec()).collect();
        assert!(target.slice(5..5 + expected.len()).to_vec() == expected);
    }

    #[test]
    fn pieces_before_one_that_is_outside_may_be_copied_and_none_behind_it() {
        let device = FakeDevice::new(FakePace::AtOnce);
        let (source, target) = (device.alloc(65_536).unwrap(), device.alloc(8192).unwrap());
        source.fill(0..65_536, 7).unwrap();
        let pieces = (0..PieceList::PIECES + 2).map(|n| (n * 9..n * 9 + 1, n));
        let outside = (65_536..65_537, 8000);
        let refused = target.scatter_from(&source, pieces.chain([outside, (0..1, 8191)]));
        assert!(matches!(refused, Err(CopyError::OutOfBounds(_))));
        assert_eq!(device.submissions(), [PieceList::PIECES]);
        assert_eq!(target.slice(8191..8192).to_vec(), [0]);
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
