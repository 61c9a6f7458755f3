// UNSAFETY: keeps addresses of registered memory, which its child modules read and write.

//! Ranges of registered memory, sent and received in order, many with one system call.

mod calls;
mod copies;
mod gpus;

use std::io;
use std::sync::Arc;

pub(crate) use gpus::Lists;

use super::gpu::GpuMemory;
use super::region::{Region, Use};

/// In place of a region: host memory of any.
const HOST: usize = usize::MAX;

/// The regions of a list of ranges.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<Use>);

impl Uses {
    /// Adds a region, unless it was deregistered, and returns its index. The last one is found at once.
    pub(crate) fn take(&mut self, region: &Arc<Region>) -> Option<usize> {
        let found = self
            .0
            .iter()
            .rposition(|it| Arc::ptr_eq(it.region(), region));
        if found.is_some() {
            return found;
        }
        self.0.push(region.take()?);
        Some(self.0.len() - 1)
    }

    fn is_gpu(&self, region: usize) -> bool {
        let region = self.0.get(region);
        region.is_some_and(|region| region.region().gpu().is_some())
    }

    fn are_live(&self) -> bool {
        self.0.iter().all(Use::is_live)
    }
}

/// Ranges of registered memory, in order, and how far they were sent or received.
///
/// Invariant: each place is inside of a region of `uses`. Before it is touched, `check` has seen that all of them are registered; the caller
/// holds the lock of the agent, without which none is deregistered.
#[derive(Debug)]
pub(crate) struct Scatter {
    uses: Arc<Uses>,
    places: Vec<(usize, usize)>,
    /// Of ranges in memory of GPUs: the region of each place. Empty if no place is there.
    regions: Vec<usize>,
    /// First place that is not done, and its bytes that are.
    next: usize,
    done: usize,
    left: u64,
}

impl Scatter {
    /// Makes an empty list of ranges of these regions.
    pub(crate) fn new(uses: Arc<Uses>, room: usize) -> Self {
        Self {
            uses,
            places: Vec::with_capacity(room),
            regions: Vec::new(),
            next: 0,
            done: 0,
            left: 0,
        }
    }

    /// Adds a range of a region. `None`: there is no such range.
    pub(crate) fn push(&mut self, region: usize, offset: u64, len: u64) -> Option<()> {
        let place = self.uses.0.get(region)?.place(offset, len)?;
        self.left = self.left.checked_add(len)?;
        if self.uses.is_gpu(region) || !self.regions.is_empty() {
            // The first one: those before are in host memory, of any region.
            self.regions.resize(self.places.len(), HOST);
            self.regions.push(region);
        }
        self.places.push(place);
        Some(())
    }

    /// Returns whether all ranges are in host memory: only then may the kernel, and lent slices, read and write them.
    pub(crate) fn is_host(&self) -> bool {
        self.regions.is_empty()
    }

    /// Bytes that are not done.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Returns the addresses of the places, for the other process to copy from.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(address, _)| *address as u64)
    }

    /// Memory that was deregistered is an error, as memory is that was unmapped.
    fn check(&self) -> io::Result<()> {
        match self.uses.are_live() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// As [`check`](Self::check), for accesses by address: memory of a GPU has no address of this process.
    fn check_host(&self) -> io::Result<()> {
        match self.is_host() {
            true => self.check(),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// As [`check_host`](Self::check_host), for accesses to the first place only.
    fn check_front(&mut self) -> io::Result<()> {
        match self.is_gpu_next() {
            false => self.check(),
            true => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Returns whether the next bytes are memory of a GPU.
    pub(crate) fn is_gpu_next(&mut self) -> bool {
        // Places without bytes are passed over.
        self.advance(0);
        self.front_gpu().is_some()
    }

    /// Returns what is left of the first place, at most `at_most` bytes; `None`: nothing.
    fn front(&mut self, at_most: usize) -> Option<(usize, usize)> {
        if at_most == 0 || self.left == 0 {
            return None;
        }
        // Places without bytes are passed over.
        self.advance(0);
        let (address, len) = self.places.get(self.next)?;
        Some((address + self.done, (len - self.done).min(at_most)))
    }

    /// Returns the memory of the first place, if it is a GPU's.
    fn front_gpu(&self) -> Option<&GpuMemory> {
        let region = *self.regions.get(self.next)?;
        self.uses.0.get(region)?.region().gpu()
    }

    fn advance(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.done += bytes;
        while let Some((_, len)) = self.places.get(self.next)
            && self.done >= *len
        {
            self.done -= len;
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::super::region::tests::leaked;
    use super::*;

    fn list(region: &Arc<Region>, ranges: &[(u64, u64)]) -> Scatter {
        let mut uses = Uses::default();
        let index = uses.take(region).unwrap();
        let mut list = Scatter::new(Arc::new(uses), ranges.len());
        for (offset, len) in ranges {
            list.push(index, *offset, *len).unwrap();
        }
        list
    }

    fn bytes(region: &Arc<Region>) -> Vec<u8> {
        let mut all = Vec::new();
        list(region, &[(0, region.len() as u64)])
            .append_to(&mut all)
            .unwrap();
        all
    }

    #[test]
    fn ranges_are_sent_and_received_in_order_however_they_are_cut() {
        let from = leaked((0..=255).collect(), 1);
        let to = leaked(vec![0; 256], 2);
        let mut out = list(&from, &[(100, 10), (0, 0), (7, 1), (200, 50)]);
        let mut into = list(&to, &[(0, 30), (31, 0), (40, 31)]);
        let (left, right) = UnixStream::pair().unwrap();
        while out.left() > 0 {
            out.send(left.as_fd(), 7).unwrap();
            into.receive(right.as_fd(), 5).unwrap();
        }
        while into.left() > 0 {
            into.receive(right.as_fd(), 1000).unwrap();
        }
        let sent: Vec<u8> = (100..110).chain([7]).chain(200..250).collect();
        let all = bytes(&to);
        assert_eq!(all[..30], sent[..30]);
        assert_eq!(all[40..71], sent[30..]);
        assert!(all[30..40].iter().chain(&all[71..]).all(|byte| *byte == 0));
    }

    #[test]
    fn bytes_are_copied_in_and_out_and_from_list_to_list() {
        let to = leaked(vec![0; 16], 1);
        let mut into = list(&to, &[(8, 0), (8, 4), (0, 4)]);
        into.fill(b"abcdef").unwrap();
        assert_eq!(into.left(), 2);
        into.fill(b"gh").unwrap();
        assert_eq!(&bytes(&to)[..12], b"efgh\0\0\0\0abcd");
        let other = leaked(vec![0; 16], 2);
        let (mut from, mut into) = (list(&to, &[(0, 4), (8, 4)]), list(&other, &[(1, 8)]));
        assert_eq!(from.copy_to(&mut into, 3).unwrap(), 3);
        assert_eq!(from.copy_to(&mut into, 100).unwrap(), 5);
        assert_eq!(&bytes(&other)[..9], b"\0efghabcd");
    }

    #[test]
    fn ranges_outside_of_a_region_are_refused() {
        let region = leaked(vec![0; 16], 1);
        let mut uses = Uses::default();
        assert_eq!(uses.take(&region), Some(0));
        assert_eq!(uses.take(&region), Some(0));
        let mut it = Scatter::new(Arc::new(uses), 1);
        assert!(it.push(0, 8, 9).is_none());
        assert!(it.push(0, u64::MAX - 1, 1).is_none());
        assert!(it.push(0, u64::MAX, 1).is_none());
        assert!(it.push(1, 0, 1).is_none());
        assert!(it.push(0, 8, 8).is_some());
        assert_eq!(it.left(), 8);
        assert_eq!(region.close(), Err(1));
        assert_eq!(
            it.fill(b"abc").unwrap_err().raw_os_error(),
            Some(libc::EFAULT)
        );
        drop(it);
        assert_eq!(region.close(), Ok(()));
    }

    #[test]
    fn memory_that_is_mapped_no_longer_is_an_error() {
        // SAFETY: not true, as when a program frees memory with transfers in flight: the kernel finds out.
        let gone = unsafe { Region::new(4096, 16, 1) }.unwrap();
        let (left, _right) = UnixStream::pair().unwrap();
        let failed = list(&gone, &[(0, 16)]).send(left.as_fd(), 16).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EFAULT));
    }
}
