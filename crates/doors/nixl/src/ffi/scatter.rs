// UNSAFETY: system calls and copies that read and write registered memory by its address.

//! Ranges of registered memory, sent and received in order, many with one system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::process::Pid;

use super::region::{Region, Use};

/// Ranges of one system call. They fill a page of stack; with the usual blocks of a KV cache, their bytes are more than a socket has.
const VECTORS: usize = 256;

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
            next: 0,
            done: 0,
            left: 0,
        }
    }

    /// Adds a range of a region. `None`: there is no such range.
    pub(crate) fn push(&mut self, region: usize, offset: u64, len: u64) -> Option<()> {
        let place = self.uses.0.get(region)?.place(offset, len)?;
        self.left = self.left.checked_add(len)?;
        self.places.push(place);
        Some(())
    }

    /// Bytes that are not done.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Sends what the connection takes, at most `at_most` bytes.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, at_most: usize) -> io::Result<usize> {
        self.check()?;
        let mut vectors = [EMPTY; VECTORS];
        let message = self.message(&mut vectors, at_most);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: 1. the vectors are memory that may be read (`Scatter`, `Region`); an address that is mapped no longer is an error of
        // the call; 2. the message and the vectors live until the call returns.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        self.advance_by(sent)
    }

    /// Receives what the connection has, at most `at_most` bytes, straight into the places. 0: the peer has ended the connection.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, at_most: usize) -> io::Result<usize> {
        self.check()?;
        let mut vectors = [EMPTY; VECTORS];
        let mut message = self.message(&mut vectors, at_most);
        // SAFETY: 1. the vectors are memory that may be written (`Scatter`, `Region`), and no Rust reference to it exists; 2. the
        // message and the vectors live until the call returns.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        self.advance_by(received)
    }

    /// Returns the addresses of the places, for the other process to copy from.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(address, _)| *address as u64)
    }

    /// Copies from the memory of a process, at most `at_most` bytes: to each place from the source of the same index.
    pub(crate) fn copy_from(
        &mut self,
        process: Pid,
        sources: &[u64],
        at_most: usize,
    ) -> io::Result<usize> {
        self.check()?;
        let mut vectors = [EMPTY; VECTORS];
        let mut remote = [EMPTY; VECTORS];
        let used = self.message(&mut vectors, at_most).msg_iovlen;
        let mut skip = self.done as u64;
        let sources = sources.get(self.next..).unwrap_or_default();
        for ((there, here), source) in remote.iter_mut().zip(&vectors[..used]).zip(sources) {
            let address = usize::try_from(source.wrapping_add(skip)).unwrap_or(0);
            there.iov_base = std::ptr::without_provenance_mut(address);
            there.iov_len = here.iov_len;
            skip = 0;
        }
        // SAFETY: the local vectors are memory that may be written (`Scatter`, `Region`), and no Rust reference to it exists; the remote
        // ones are judged by the kernel.
        let copied = unsafe {
            libc::process_vm_readv(
                process.as_raw_nonzero().get(),
                vectors.as_ptr(),
                used as u64,
                remote.as_ptr(),
                used as u64,
                0,
            )
        };
        match self.advance_by(copied)? {
            0 => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            bytes => Ok(bytes),
        }
    }

    /// Copies bytes to the places.
    pub(crate) fn fill(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        while let Some((address, len)) = self.front(bytes.len()) {
            let (now, rest) = bytes.split_at(len);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: `len` bytes of a place, which may be written (`Scatter`, `Region`), and `now` is as long.
            unsafe { std::ptr::copy(now.as_ptr(), to, len) };
            self.advance(len);
            bytes = rest;
        }
        Ok(())
    }

    /// Appends the bytes of the places to `out`.
    pub(crate) fn append_to(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.check()?;
        while let Some((address, len)) = self.front(usize::MAX) {
            out.reserve(len);
            let from = std::ptr::with_exposed_provenance::<u8>(address);
            let end = out.len();
            let to = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
            // SAFETY: `len` bytes of a place, which may be read (`Scatter`, `Region`), to capacity that was reserved.
            unsafe { std::ptr::copy(from, to, len) };
            // SAFETY: the copy has written these bytes.
            unsafe { out.set_len(end + len) };
            self.advance(len);
        }
        Ok(())
    }

    /// Copies at most `at_most` bytes to the places of another list, which may overlap with these.
    pub(crate) fn copy_to(&mut self, to: &mut Self, mut at_most: usize) -> io::Result<usize> {
        self.check()?;
        to.check()?;
        let mut copied = 0;
        while let Some((from, len)) = self.front(at_most)
            && let Some((place, len)) = to.front(len)
        {
            let source = std::ptr::with_exposed_provenance::<u8>(from);
            let target = std::ptr::with_exposed_provenance_mut::<u8>(place);
            // SAFETY: `len` bytes of a place of each list, which may be read and written (`Scatter`, `Region`).
            unsafe { std::ptr::copy(source, target, len) };
            self.advance(len);
            to.advance(len);
            at_most -= len;
            copied += len;
        }
        Ok(copied)
    }

    /// Memory that was deregistered is an error, as memory is that was unmapped.
    fn check(&self) -> io::Result<()> {
        match self.uses.are_live() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
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

    /// Writes vectors for what is left, at most `at_most` bytes, and returns a message of them.
    fn message(&self, vectors: &mut [libc::iovec; VECTORS], mut at_most: usize) -> libc::msghdr {
        let (mut used, mut skip) = (0, self.done);
        for (vector, (address, len)) in vectors.iter_mut().zip(&self.places[self.next..]) {
            if at_most == 0 {
                break;
            }
            let len = (len - skip).min(at_most);
            vector.iov_base = std::ptr::with_exposed_provenance_mut(address + skip);
            vector.iov_len = len;
            (skip, at_most, used) = (0, at_most - len, used + 1);
        }
        // SAFETY: all of its fields may be zero: no address, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        // At most `VECTORS`; the type differs between C libraries.
        message.msg_iovlen = used as _;
        message
    }

    fn advance_by(&mut self, result: isize) -> io::Result<usize> {
        let bytes = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        self.advance(bytes);
        Ok(bytes)
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

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

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
