//! The control buffer of sendmsg and recvmsg as bytes (linux include/linux/socket.h `cmsghdr`).
//!
//! A message is a header (native word: length of header and data; two ints: level, type), the
//! data, and padding to a native word that the last message may lack.

use zerocopy::{FromBytes, IntoBytes};

use crate::dmabuf::DmabufCmsg;
use crate::extended_err::{OffenderFamily, SockExtendedErr, TxStamp};
use crate::ids::{DmabufId, FragToken};
use crate::sockopt::{
    SCM_DEVMEM_DMABUF, SCM_DEVMEM_LINEAR, SCM_TIMESTAMPING, SO_TIMESTAMPING, SOL_SOCKET,
};

const WORD: usize = size_of::<usize>();
const HEADER_LEN: usize = WORD + 8;

/// Returns the length of a message with `data_len` bytes of data (`CMSG_LEN`), saturating.
#[doc(alias = "CMSG_LEN")]
pub const fn cmsg_len(data_len: usize) -> usize {
    HEADER_LEN.saturating_add(data_len)
}

/// Returns the bytes that a message with `data_len` bytes of data takes in a control buffer, with
/// the padding before the next message (`CMSG_SPACE`), saturating.
#[doc(alias = "CMSG_SPACE")]
pub const fn cmsg_space(data_len: usize) -> usize {
    match data_len.checked_next_multiple_of(WORD) {
        Some(padded) => HEADER_LEN.saturating_add(padded),
        None => usize::MAX,
    }
}

/// Returns the size of a control buffer for `frags` devmem messages, saturating.
pub const fn space_for(frags: usize) -> usize {
    frags.saturating_mul(cmsg_space(size_of::<DmabufCmsg>()))
}

/// The control buffer has no room for the whole message; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no space left in the control buffer")]
pub struct NoSpace;

/// One control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cmsg<'a> {
    /// Protocol level.
    pub level: i32,
    /// Type within the level.
    pub ty: i32,
    /// Data, without padding.
    pub data: &'a [u8],
}

/// Writer of control messages; writes each message whole or not at all.
#[derive(Debug)]
pub struct CmsgWriter<'a> {
    buf: &'a mut [u8],
    written: usize,
}

impl<'a> CmsgWriter<'a> {
    /// Returns a writer that starts at the beginning of `buf`.
    pub const fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, written: 0 }
    }

    /// Appends a message; omits its padding if only the padding does not fit.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was written.
    pub fn push(&mut self, level: i32, ty: i32, data: &[u8]) -> Result<(), NoSpace> {
        let len = cmsg_len(data.len());
        let free = &mut self.buf[self.written..];
        if len > free.len() {
            return Err(NoSpace);
        }
        let space = cmsg_space(data.len()).min(free.len());
        let (header, rest) = free[..space].split_at_mut(HEADER_LEN);
        header[..WORD].copy_from_slice(&len.to_ne_bytes());
        header[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        header[WORD + 4..].copy_from_slice(&ty.to_ne_bytes());
        rest[..data.len()].copy_from_slice(data);
        rest[data.len()..].fill(0);
        self.written += space;
        Ok(())
    }

    /// Appends the message that makes sendmsg(2) send from a bound dma-buf: a plain u32.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was written.
    pub fn push_tx_dmabuf(&mut self, id: DmabufId) -> Result<(), NoSpace> {
        self.push(SOL_SOCKET, SCM_DEVMEM_DMABUF, id.as_bytes())
    }

    /// Appends the two messages of a send timestamp from the error queue: the timestamp, with type `ty`
    /// (`SCM_TIMESTAMPING`, old or new), then the entry. Writes both or none.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was written.
    pub fn push_stamp_as(
        &mut self,
        ty: i32,
        stamp: TxStamp,
        family: OffenderFamily,
    ) -> Result<(), NoSpace> {
        let before = self.written;
        self.push(SOL_SOCKET, ty, &stamp.scm_timestamping())?;
        let pushed = SockExtendedErr::from(stamp).push(family, self);
        if pushed.is_err() {
            self.written = before;
        }
        pushed
    }

    /// Returns the bytes written so far, the `msg_controllen` to return.
    pub const fn written(&self) -> usize {
        self.written
    }
}

/// Iterator over the messages of an untrusted control buffer; stops at an invalid length.
#[derive(Clone, Debug)]
pub struct CmsgIter<'a> {
    rest: &'a [u8],
    malformed: bool,
}

impl<'a> CmsgIter<'a> {
    /// Returns an iterator over the messages of `control`.
    pub const fn new(control: &'a [u8]) -> Self {
        Self {
            rest: control,
            malformed: false,
        }
    }

    /// Returns true after a length smaller than a header or past the end of the buffer; sendmsg(2)
    /// fails with `EINVAL` then. Trailing bytes too few for a header are ignored.
    pub const fn is_malformed(&self) -> bool {
        self.malformed
    }
}

impl<'a> Iterator for CmsgIter<'a> {
    type Item = Cmsg<'a>;

    fn next(&mut self) -> Option<Cmsg<'a>> {
        let (len, body) = self.rest.split_first_chunk::<WORD>()?;
        let (level, body) = body.split_first_chunk::<4>()?;
        let (ty, body) = body.split_first_chunk::<4>()?;
        let data = usize::from_ne_bytes(*len)
            .checked_sub(HEADER_LEN)
            .and_then(|len| body.get(..len));
        let Some(data) = data else {
            self.malformed = true;
            self.rest = &[];
            return None;
        };
        self.rest = self.rest.get(cmsg_space(data.len())..).unwrap_or_default();
        Some(Cmsg {
            level: i32::from_ne_bytes(*level),
            ty: i32::from_ne_bytes(*ty),
            data,
        })
    }
}

impl std::iter::FusedIterator for CmsgIter<'_> {}

impl Cmsg<'_> {
    /// Returns the dma-buf that a message of sendmsg(2) names: `None` for a message of another type,
    /// `Some(None)` if its data is not one u32 (`EINVAL`).
    pub fn tx_dmabuf(&self) -> Option<Option<DmabufId>> {
        ((self.level, self.ty) == (SOL_SOCKET, SCM_DEVMEM_DMABUF))
            .then(|| DmabufId::read_from_bytes(self.data).ok())
    }

    /// Returns whether sendmsg(2) refuses the message (`EINVAL`): it is for the socket, and of a type that none of its sends has
    /// (linux `__sock_cmsg_send`). Messages for other levels are skipped.
    pub fn is_unknown_to_send(&self) -> bool {
        self.level == SOL_SOCKET && !SENT_TYPES.contains(&self.ty)
    }
}

/// Types of the messages of level `SOL_SOCKET` that sendmsg(2) knows: `SCM_RIGHTS`, `SCM_CREDENTIALS`, `SO_PRIORITY`, `SO_MARK`,
/// `SO_TIMESTAMPING` in its old and new form, and `SCM_DEVMEM_DMABUF`.
const SENT_TYPES: [i32; 7] = [1, 2, 12, 36, SO_TIMESTAMPING, 65, SCM_DEVMEM_DMABUF];

/// Control message of a devmem receive: one piece of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevmemCmsg {
    /// Number of bytes of an unreadable packet that landed in host memory and were copied to the iovec.
    #[doc(alias = "SCM_DEVMEM_LINEAR")]
    Linear(u32),
    /// A piece in device memory.
    #[doc(alias = "SCM_DEVMEM_DMABUF")]
    Dmabuf(DmabufCmsg),
}

impl DevmemCmsg {
    /// Parses a received message; `None` if it has another type or is too short.
    pub fn parse(cmsg: &Cmsg<'_>) -> Option<Self> {
        if cmsg.level != SOL_SOCKET || !matches!(cmsg.ty, SCM_DEVMEM_LINEAR | SCM_DEVMEM_DMABUF) {
            return None;
        }
        let (body, _) = DmabufCmsg::read_from_prefix(cmsg.data).ok()?;
        Some(match cmsg.ty {
            SCM_DEVMEM_LINEAR => Self::Linear(body.frag_size),
            _ => Self::Dmabuf(body),
        })
    }

    /// Returns the payload bytes of the piece.
    pub const fn payload_len(&self) -> u32 {
        match self {
            Self::Linear(len) => *len,
            Self::Dmabuf(DmabufCmsg { frag_size, .. }) => *frag_size,
        }
    }
}

/// Destination of the control messages of a recvmsg: a control buffer, or a typed batch.
pub trait CmsgSink {
    /// Appends a message.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was appended.
    fn push(&mut self, cmsg: DevmemCmsg) -> Result<(), NoSpace>;

    /// Appends an entry of the error queue. The default implementation always returns [`NoSpace`].
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was appended.
    fn push_error(
        &mut self,
        _entry: SockExtendedErr,
        _family: OffenderFamily,
    ) -> Result<(), NoSpace> {
        Err(NoSpace)
    }

    /// Appends a send timestamp of the error queue: the timestamp, then the entry.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was appended.
    fn push_stamp(&mut self, _stamp: TxStamp, _family: OffenderFamily) -> Result<(), NoSpace> {
        Err(NoSpace)
    }

    /// Returns how many more messages [`push`](Self::push) has room for.
    fn room(&self) -> usize;
}

impl CmsgSink for CmsgWriter<'_> {
    fn push(&mut self, cmsg: DevmemCmsg) -> Result<(), NoSpace> {
        let (ty, body) = match cmsg {
            DevmemCmsg::Dmabuf(body) => (SCM_DEVMEM_DMABUF, body),
            // The kernel fills in nothing but the size (linux net/ipv4/tcp.c
            // `tcp_recvmsg_dmabuf`).
            DevmemCmsg::Linear(frag_size) => {
                let (frag_token, dmabuf_id) = (FragToken(0), DmabufId(0));
                let body = DmabufCmsg {
                    frag_offset: 0,
                    frag_size,
                    frag_token,
                    dmabuf_id,
                    flags: 0,
                };
                (SCM_DEVMEM_LINEAR, body)
            }
        };
        Self::push(self, SOL_SOCKET, ty, body.as_bytes())
    }

    fn push_error(
        &mut self,
        entry: SockExtendedErr,
        family: OffenderFamily,
    ) -> Result<(), NoSpace> {
        entry.push(family, self)
    }

    fn push_stamp(&mut self, stamp: TxStamp, family: OffenderFamily) -> Result<(), NoSpace> {
        self.push_stamp_as(SCM_TIMESTAMPING, stamp, family)
    }

    fn room(&self) -> usize {
        // 24 bytes of data need no padding, so length and space are the same.
        (self.buf.len() - self.written) / cmsg_space(size_of::<DmabufCmsg>())
    }
}
const _: () = assert!(cmsg_space(size_of::<DmabufCmsg>()) == cmsg_len(size_of::<DmabufCmsg>()));

#[cfg(test)]
mod tests;
