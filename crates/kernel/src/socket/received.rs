//! Validation of a receive: every byte is accounted for, or the receive is an error.

use devmem_uapi::sockopt::{SCM_DEVMEM_DMABUF, SCM_DEVMEM_LINEAR, SOL_SOCKET};
use devmem_uapi::{CmsgIter, DevmemCmsg, DmabufCmsg, FragToken, MsgFlags};

/// One piece of received payload, in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxFrag<'a> {
    /// In device memory, until its token is returned.
    Device(DmabufCmsg),
    /// In host memory, because the NIC did not split it from the headers.
    Linear(&'a [u8]),
}

/// The data of one receive. A call never mixes device memory with data of a queue that is not bound.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// The peer has ended the stream.
    End,
    /// Ordinary data, from a queue that is not bound.
    Readable(&'a [u8]),
    /// Data from a bound queue.
    Devmem(Frags<'a>),
}

/// The result of one receive. It borrows the buffers that were received into.
#[derive(Clone, Debug)]
pub struct ReceivedMessage<'a> {
    /// Bytes received, in device and host memory.
    pub bytes: usize,
    /// Their location.
    pub content: Content<'a>,
}

/// The frags of one receive, in stream order.
#[derive(Clone, Debug)]
pub struct Frags<'a> {
    messages: CmsgIter<'a>,
    /// Linear bytes of later frags, without gaps.
    linear: &'a [u8],
}

/// Why the control messages of a receive are invalid. The tokens that could be parsed are included, so that their memory can
/// be returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlProblem {
    /// The kernel dropped control messages (kernels before 6.14 drop tokens this way).
    #[error("the kernel dropped control messages for lack of room: frags may be lost")]
    Truncated,
    /// A length is invalid, or a devmem message is too short.
    #[error("a control message is malformed")]
    Malformed,
    /// The messages describe another number of bytes than the call returned.
    #[error("the call returned {returned} bytes, but its control messages describe {described}")]
    ByteTotal {
        /// The return value of recvmsg.
        returned: usize,
        /// The sum over the control messages.
        described: u64,
    },
    /// More bytes in host memory than the buffer has room for.
    #[error("{linear} bytes in host memory, in a buffer of {room}")]
    LinearOverflow {
        /// Host bytes according to the messages.
        linear: u64,
        /// The buffer's length.
        room: usize,
    },
}

impl<'a> ReceivedMessage<'a> {
    /// Validates the result of recvmsg: `bytes` is its return value, `flags` is `msg_flags`, `control` the written part of the
    /// control buffer, and `data` the whole data buffer.
    ///
    /// # Errors
    ///
    /// The problem, and the tokens that could be parsed. The caller must return these, or their memory stays lent.
    #[inline]
    pub fn parse(
        bytes: usize,
        flags: MsgFlags,
        control: &'a [u8],
        data: &'a [u8],
    ) -> Result<Self, (ControlProblem, Vec<FragToken>)> {
        let told = ControlSums::by(control);
        match told.problem(bytes, flags, data.len()) {
            Some(problem) => Err((problem, tokens(control))),
            None => {
                let content = match (bytes, told.messages) {
                    (0, _) => Content::End,
                    (_, 0) => Content::Readable(data.get(..bytes).unwrap_or_default()),
                    _ => Content::Devmem(Frags {
                        messages: CmsgIter::new(control),
                        linear: data,
                    }),
                };
                Ok(Self { bytes, content })
            }
        }
    }
}

/// The sums over a control buffer.
#[derive(Default)]
struct ControlSums {
    messages: usize,
    linear: u64,
    device: u64,
    malformed: bool,
}

impl ControlSums {
    #[inline]
    fn by(control: &[u8]) -> Self {
        let mut told = Self::default();
        let mut messages = CmsgIter::new(control);
        for message in &mut messages {
            let devmem = matches!(message.ty, SCM_DEVMEM_LINEAR | SCM_DEVMEM_DMABUF);
            match DevmemCmsg::parse(&message) {
                Some(DevmemCmsg::Linear(len)) => told.linear += u64::from(len),
                Some(DevmemCmsg::Dmabuf(cmsg)) => told.device += u64::from(cmsg.frag_size),
                // Another message, such as a timestamp that the application requested.
                None if message.level != SOL_SOCKET || !devmem => continue,
                None => told.malformed = true,
            }
            told.messages += 1;
        }
        told.malformed |= messages.is_malformed();
        told
    }

    #[inline]
    fn problem(&self, returned: usize, flags: MsgFlags, room: usize) -> Option<ControlProblem> {
        // At most 2^58 messages of 32 bits each: the sums cannot overflow.
        let described = self.linear + self.device;
        if flags.contains(MsgFlags::CTRUNC) {
            Some(ControlProblem::Truncated)
        } else if self.malformed {
            Some(ControlProblem::Malformed)
        } else if self.messages != 0 && u64::try_from(returned) != Ok(described) {
            Some(ControlProblem::ByteTotal {
                returned,
                described,
            })
        } else if usize::try_from(self.linear).map_or(true, |linear| linear > room) {
            Some(ControlProblem::LinearOverflow {
                linear: self.linear,
                room,
            })
        } else if self.messages == 0 && returned > room {
            Some(ControlProblem::ByteTotal {
                returned,
                described: 0,
            })
        } else {
            None
        }
    }
}

/// Returns every token in a control buffer.
fn tokens(control: &[u8]) -> Vec<FragToken> {
    let messages = CmsgIter::new(control).filter_map(|message| DevmemCmsg::parse(&message));
    let tokens = messages.filter_map(|message| match message {
        DevmemCmsg::Dmabuf(cmsg) => Some(cmsg.frag_token),
        DevmemCmsg::Linear(_) => None,
    });
    tokens.collect()
}

impl<'a> Iterator for Frags<'a> {
    type Item = RxFrag<'a>;

    #[inline]
    fn next(&mut self) -> Option<RxFrag<'a>> {
        loop {
            let message = self.messages.next()?;
            match DevmemCmsg::parse(&message) {
                Some(DevmemCmsg::Dmabuf(cmsg)) => return Some(RxFrag::Device(cmsg)),
                Some(DevmemCmsg::Linear(len)) => {
                    // `ReceivedMessage::parse` has checked that all of them fit.
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    let (bytes, rest) = self.linear.split_at(len.min(self.linear.len()));
                    self.linear = rest;
                    return Some(RxFrag::Linear(bytes));
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
