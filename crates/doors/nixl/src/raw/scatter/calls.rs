// UNSAFETY: system calls that read and write registered memory by its address.

//! Many ranges with one system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

use super::Scatter;

/// Ranges of one system call. They fill a page of stack; with the usual blocks of a KV cache, their bytes are more than a socket has.
const VECTORS: usize = 256;

impl Scatter {
    /// Sends what the connection takes, at most `at_most` bytes.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, at_most: usize) -> io::Result<usize> {
        self.check_host()?;
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
        self.check_host()?;
        let mut vectors = [EMPTY; VECTORS];
        let mut message = self.message(&mut vectors, at_most);
        // SAFETY: 1. the vectors are memory that may be written (`Scatter`, `Region`), and no Rust reference to it exists; 2. the
        // message and the vectors live until the call returns.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        self.advance_by(received)
    }

    /// Copies from the memory of a process, at most `at_most` bytes: to each place from the source of the same index.
    pub(crate) fn copy_from(
        &mut self,
        process: Pid,
        sources: &[u64],
        at_most: usize,
    ) -> io::Result<usize> {
        self.check_host()?;
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
}

const EMPTY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};
