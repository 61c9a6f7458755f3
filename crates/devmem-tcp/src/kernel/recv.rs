//! Receiving from a socket of the kernel.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use devmem_linux::errors::Operation;
use devmem_linux::socket::{Content, HostRoom, RecvError as LinuxError, RxFrag, recv_into};
use devmem_uapi::{Errno, MsgFlags, space_for};
use netmem::Dmabuf;
use rustix::event::PollFlags;
use rustix::io::Errno as RawErrno;
use rustix::net::RecvFlags;

use super::socket::Socket;
use super::wait::Deadline;
use crate::driver::WaitLimit;
use crate::error::{Error, RecvError};
use crate::frags::{Device, Frags, HOST_BYTES, Item};
use crate::recv_request::{Placement, RecvRequest};

impl Socket {
    /// Receives queued data into `frags`, which is empty; waits if there is none.
    pub(crate) fn recv(&self, frags: &mut Frags, request: RecvRequest) -> Result<usize, RecvError> {
        let received = self.receive(frags, request);
        self.count_lent(frags.devices().count());
        received
    }

    fn receive(&self, frags: &mut Frags, request: RecvRequest) -> Result<usize, RecvError> {
        let deadline = Deadline::of(request.limit);
        loop {
            match self.try_recv(frags, request) {
                Ok(bytes) => return Ok(bytes),
                Err(LinuxError::WouldBlock) => self.wait(deadline, PollFlags::IN)?,
                Err(LinuxError::Interrupted) => {}
                Err(LinuxError::Refused {
                    errno: Errno::EFAULT,
                    ..
                }) if request.placement == Placement::Strict => return Err(self.misplaced(frags)),
                Err(error) => return Err(self.recv_error(error)),
            }
        }
    }

    fn try_recv(&self, frags: &mut Frags, request: RecvRequest) -> Result<usize, LinuxError> {
        let buffers = room(frags, request.placement == Placement::Mixed);
        let max_bytes = buffers.max_bytes.min(request.max_bytes);
        let room = match request.placement {
            Placement::Mixed => {
                let fits = buffers.host.len().min(max_bytes);
                HostRoom::Buffer(&mut buffers.host[..fits])
            }
            // With no room for host bytes, the kernel stops before them and keeps them queued.
            Placement::Strict => HostRoom::None { max_bytes },
        };
        let flags = request.flags | MsgFlags::DONTWAIT;
        let received = recv_into(self.fd(), room, buffers.control, flags)?;
        let bytes = received.bytes;
        frags.linear_bytes = deliver(buffers.items, received.content);
        Ok(bytes)
    }

    /// Reads bytes that are in host memory; `None` if the next ones are in device memory.
    pub(crate) fn read(
        &self,
        out: &mut [u8],
        limit: WaitLimit,
    ) -> Result<Option<usize>, RecvError> {
        self.read_by(limit, |fd| {
            let received = rustix::net::recv(fd, &mut *out, RecvFlags::DONTWAIT);
            received
                .map(|(bytes, _)| Some(bytes))
                .map_err(io::Error::from)
        })
    }

    /// Reads bytes that are in host memory into `range` of `memory`; `None` if the next ones are in device memory, or if the kernel cannot
    /// write to that memory.
    pub(crate) fn read_into(
        &self,
        memory: &Dmabuf,
        range: &Range<usize>,
        limit: WaitLimit,
    ) -> Result<Option<usize>, RecvError> {
        self.read_by(limit, |fd| memory.read_file(range.clone(), fd))
    }

    /// Reads by a call that does not wait; `None` if that returns none, or EFAULT, which stands for bytes in device memory.
    fn read_by(
        &self,
        limit: WaitLimit,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<Option<usize>>,
    ) -> Result<Option<usize>, RecvError> {
        let deadline = Deadline::of(limit);
        loop {
            let error = match read(self.fd()) {
                Ok(read) => return Ok(read),
                Err(error) => error,
            };
            match RawErrno::from_io_error(&error) {
                Some(RawErrno::AGAIN) => self.wait(deadline, PollFlags::IN)?,
                Some(RawErrno::INTR) => {}
                Some(RawErrno::FAULT) => return Ok(None),
                Some(errno) => {
                    let errno = Errno(errno.raw_os_error());
                    let refused = self.refused("read", Operation::Recv, errno);
                    return Err(RecvError::Failed(refused));
                }
                None => return Err(RecvError::Failed(Error::invalid(error.to_string()))),
            }
        }
    }

    fn recv_error(&self, error: LinuxError) -> RecvError {
        match error {
            LinuxError::WouldBlock | LinuxError::Interrupted => RecvError::WouldBlock,
            LinuxError::Refused { errno, .. } => {
                RecvError::Failed(self.refused("recv", Operation::Recv, errno))
            }
            LinuxError::Control { problem, tokens } => {
                // The bytes are lost to the application, but their memory can still be returned.
                let _ = self.give_back(tokens.into_iter());
                let name = self.nic.name();
                let lost = Error::of_errno(Errno::EPROTO, format!("recv on {name}: {problem}"));
                let remedy = "close the connection; its bytes are not complete";
                RecvError::Failed(lost.with_remedy(remedy).on(name))
            }
        }
    }

    /// Returns the error for bytes in host memory under [`Placement::Strict`], with their number and cause. They stay queued.
    fn misplaced(&self, frags: &mut Frags) -> RecvError {
        let buffers = room(frags, true);
        let flags = MsgFlags::DONTWAIT | MsgFlags::PEEK;
        let room = HostRoom::Buffer(buffers.host);
        let (bytes, split) = match recv_into(self.fd(), room, buffers.control, flags) {
            Ok(received) => match received.content {
                Content::Devmem(frags) => {
                    let mut linear = 0;
                    let mut lent = Vec::new();
                    let mut at_head = true;
                    for frag in frags {
                        match frag {
                            RxFrag::Linear(bytes) if at_head => linear += bytes.len(),
                            RxFrag::Linear(_) => {}
                            RxFrag::Device(cmsg) => {
                                at_head = false;
                                lent.push(cmsg.frag_token);
                            }
                        }
                    }
                    // MSG_PEEK lends the frags, too.
                    let _ = self.give_back(lent.into_iter());
                    (linear, true)
                }
                Content::Readable(bytes) => (bytes.len(), false),
                Content::End => (0, false),
            },
            Err(error) => return self.recv_error(error),
        };
        RecvError::Misplaced {
            bytes,
            cause: Some(Box::new(self.misplacement(split))),
        }
    }
}

/// Adds the frags of a receive. Returns the number of their bytes in host memory.
fn deliver(items: &mut Vec<Item>, content: Content<'_>) -> usize {
    let mut linear = 0;
    match content {
        Content::End => {}
        Content::Readable(bytes) => {
            linear = bytes.len();
            items.push(Item::Linear(0..linear));
        }
        Content::Devmem(frags) => items.extend(frags.map(|frag| match frag {
            RxFrag::Device(cmsg) => Item::Device(Device::of(cmsg)),
            RxFrag::Linear(bytes) => {
                let start = linear;
                linear += bytes.len();
                Item::Linear(start..linear)
            }
        })),
    }
    linear
}

/// The buffers for a receive from a socket of the kernel.
struct KernelRoom<'a> {
    items: &'a mut Vec<Item>,
    /// Empty if it was not requested.
    host: &'a mut [u8],
    control: &'a mut [u8],
    /// Most bytes of the receive, device and host together.
    max_bytes: usize,
}

/// Most frags of one receive: enough to empty the largest receive buffers.
const KERNEL_FRAGS_MAX: usize = 1 << 14;

/// Bounds of the buffer length. It limits device bytes, too; pages of the buffer that are not written take no memory.
const KERNEL_BYTES: Range<usize> = HOST_BYTES..4 << 20;

/// Average bytes per frag up to which a receive can fill the batch with frags: four pages.
const KERNEL_FRAG_BYTES: usize = 16 << 10;

/// Room for a timestamp, which the application may have requested, in addition to the frags; less than a frag needs.
const TIMESTAMP_BYTES: usize = 32;

/// Returns the buffers for a receive; the one for host bytes only if `with_host`.
fn room(frags: &mut Frags, with_host: bool) -> KernelRoom<'_> {
    let max_frags = frags.max_frags.min(KERNEL_FRAGS_MAX);
    let control = space_for(max_frags) + TIMESTAMP_BYTES;
    if frags.control.len() != control {
        frags.control = vec![0; control];
    }
    let max_bytes = (max_frags * KERNEL_FRAG_BYTES).clamp(KERNEL_BYTES.start, KERNEL_BYTES.end);
    if with_host && frags.host.len() < max_bytes {
        // `vec!` uses zeroed pages of the system without writing to them; `resize` would write to them.
        frags.host = vec![0; max_bytes];
    }
    KernelRoom {
        items: &mut frags.items,
        host: if with_host { &mut frags.host } else { &mut [] },
        control: &mut frags.control,
        max_bytes,
    }
}

#[cfg(test)]
mod tests;
