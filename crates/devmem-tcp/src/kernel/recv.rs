//! Receiving from a socket of the kernel into a batch.

use std::os::fd::AsFd;
use std::sync::Arc;

use devmem_linux::errors::Operation;
use devmem_linux::socket::{Content, HostRoom, RecvError as LinuxError, RxFrag, recv_into};
use devmem_uapi::{Errno, MsgFlags};
use rustix::event::PollFlags;

use super::socket::Socket;
use super::wait::Deadline;
use crate::batch::{Device, Item, RxBatch};
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
                let _ = self.release(tokens.into_iter());
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
                    let _ = self.release(lent.into_iter());
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
