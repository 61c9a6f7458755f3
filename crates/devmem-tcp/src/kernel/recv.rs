//! Receiving from a socket of the kernel into a batch.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use devmem_linux::errors::Operation;
use devmem_linux::socket::{Content, HostRoom, RecvError as LinuxError, RxFrag, recv_into};
use devmem_uapi::{Errno, MsgFlags, space_for};
use rustix::event::PollFlags;

use super::socket::Socket;
use super::wait::Deadline;
use crate::batch::{Device, HOST_BYTES, Item, RxBatch};
use crate::driver::WaitLimit;
use crate::error::{RecvError, connection_error};
use crate::stream::Placement;

impl Socket {
    /// Receives what is there; waits for something if nothing is. The batch is empty.
    pub(crate) fn recv(
        &self,
        batch: &mut RxBatch,
        placement: Placement,
        limit: WaitLimit,
    ) -> Result<usize, RecvError> {
        let deadline = Deadline::of(limit);
        loop {
            match self.try_recv(batch, placement) {
                Ok(bytes) => return Ok(bytes),
                Err(LinuxError::WouldBlock) => self.wait(deadline, PollFlags::IN)?,
                Err(LinuxError::Interrupted) => {}
                Err(LinuxError::Refused {
                    errno: Errno::EFAULT,
                    ..
                }) if placement == Placement::Strict => return Err(self.misplaced(batch)),
                Err(error) => return Err(self.recv_error(error)),
            }
        }
    }

    fn try_recv(&self, batch: &mut RxBatch, placement: Placement) -> Result<usize, LinuxError> {
        let buffers = batch.kernel_room(placement == Placement::Mixed);
        let room = match placement {
            Placement::Mixed => HostRoom::Buffer(buffers.host),
            // The kernel stops before bytes for which there is no room, and keeps them.
            Placement::Strict => HostRoom::None {
                max_bytes: buffers.max_bytes,
            },
        };
        let received = recv_into(self.fd.as_fd(), room, buffers.control, MsgFlags::DONTWAIT)?;
        let mut linear = 0;
        match received.content {
            Content::End => {}
            Content::Readable(bytes) => {
                linear = bytes.len();
                buffers.items.push(Item::Linear(0..linear));
            }
            Content::Devmem(frags) => buffers.items.extend(frags.map(|frag| match frag {
                RxFrag::Device(cmsg) => Item::Device(Device::of(cmsg)),
                RxFrag::Linear(bytes) => {
                    let start = linear;
                    linear += bytes.len();
                    Item::Linear(start..linear)
                }
            })),
        }
        let bytes = received.bytes;
        batch.linear_bytes = linear;
        Ok(bytes)
    }

    fn recv_error(&self, error: LinuxError) -> RecvError {
        match error {
            LinuxError::WouldBlock | LinuxError::Interrupted => RecvError::WouldBlock,
            LinuxError::Refused { errno, .. } => match connection_error(errno) {
                Some(ended) => RecvError::Refused(stack::RecvError::Connection(ended)),
                None => RecvError::Kernel(self.refused("recv", Operation::Recv, errno)),
            },
            LinuxError::Control { problem, tokens } => {
                // The bytes are lost to the application; their memory need not be.
                let _ = self.give_back(tokens.into_iter());
                RecvError::Control {
                    interface: self.nic.name().to_owned(),
                    problem,
                }
            }
        }
    }

    /// Bytes in host memory are next, and nobody wants them: how many, and why. They stay queued.
    fn misplaced(&self, batch: &mut RxBatch) -> RecvError {
        let buffers = batch.kernel_room(true);
        let flags = MsgFlags::DONTWAIT | MsgFlags::PEEK;
        let room = HostRoom::Buffer(buffers.host);
        let (bytes, split) = match recv_into(self.fd.as_fd(), room, buffers.control, flags) {
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
                    // A look lends the frags, too.
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

/// What a receive from a socket of the kernel needs of a batch.
struct KernelRoom<'a> {
    items: &'a mut Vec<Item>,
    /// Empty if none was asked for.
    host: &'a mut [u8],
    control: &'a mut [u8],
    /// Most bytes of the receive, wherever they lie.
    max_bytes: usize,
}

/// Most frags of one receive of the kernel: what it takes to empty the largest receive buffers there are.
const KERNEL_FRAGS_MAX: usize = 1 << 14;

/// The kernel counts device bytes against the buffer for host bytes, too; pages that it does not write to cost nothing.
const KERNEL_BYTES: Range<usize> = HOST_BYTES..4 << 20;

/// Bytes that one frag may have and the receive still returns as many as the batch takes: four pages.
const KERNEL_FRAG_BYTES: usize = 16 << 10;

/// Room for a timestamp beside the frags, if the application asked for such; less than a frag takes.
const TIMESTAMP_BYTES: usize = 32;

impl RxBatch {
    /// The buffers for a receive of the kernel; for host bytes if they are wanted.
    fn kernel_room(&mut self, with_host: bool) -> KernelRoom<'_> {
        let frags = self.max_frags.min(KERNEL_FRAGS_MAX);
        let control = space_for(frags) + TIMESTAMP_BYTES;
        if self.control.len() != control {
            self.control = vec![0; control];
        }
        let max_bytes = (frags * KERNEL_FRAG_BYTES).clamp(KERNEL_BYTES.start, KERNEL_BYTES.end);
        if with_host && self.host.len() < max_bytes {
            // From zeroed pages of the system, which `resize` would touch.
            self.host = vec![0; max_bytes];
        }
        KernelRoom {
            items: &mut self.items,
            host: if with_host { &mut self.host } else { &mut [] },
            control: &mut self.control,
            max_bytes,
        }
    }
}

impl RxBatch {
    /// Receives from a socket of the kernel, which is the batch's owner from then on.
    pub(crate) fn fill(
        &mut self,
        socket: &Arc<Socket>,
        placement: Placement,
        limit: WaitLimit,
    ) -> Result<usize, RecvError> {
        let received = socket.recv(self, placement, limit);
        self.owner = Some(crate::stream::Socket::Kernel(Arc::clone(socket)));
        received
    }
}
