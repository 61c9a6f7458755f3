//! Definitions of the Linux uAPI of device memory TCP: control messages, tokens, flags, errnos, limits.
//!
//! Both backends use them: the user-space stack implements the semantics, the kernel backend
//! exchanges the bytes. Key types: [`DmabufCmsg`] (where one piece of payload lies),
//! [`DmabufToken`] (a range of frags to give back), [`TokenRanges`] (all that are to be given back) and [`CmsgWriter`] / [`CmsgIter`] (the control
//! buffer of sendmsg and recvmsg as bytes). Through [`CmsgSink`], the same recvmsg fills either a
//! byte buffer or a typed batch.
//!
//! These types appear in steps 8 and 9 of a received segment and in steps 1 and 8 of a send. There
//! is no I/O here, no policy and no system call.
//!
//! Numbers are those of Linux v7.3, `include/uapi/`, for the architectures that use the generic
//! ones.

#![forbid(unsafe_code)]

mod arch;
mod cmsg;
mod dmabuf;
mod dontneed;
mod errno;
mod extended_err;
mod flags;
mod ids;
mod limits;
pub mod netdev;
pub mod sockopt;
pub mod text;
pub mod udmabuf;

pub use cmsg::{
    Cmsg, CmsgIter, CmsgSink, CmsgWriter, DevmemCmsg, NoSpace, cmsg_len, cmsg_space, space_for,
};
pub use dmabuf::{DmabufCmsg, DmabufToken};
pub use dontneed::{Freed, TokenRanges};
pub use errno::Errno;
pub use extended_err::{
    OffenderFamily, SCM_TIMESTAMPING_LEN, SockExtendedErr, StampKind, TxStamp, ZerocopyRange,
};
pub use flags::{MsgFlags, TcpiOptions};
pub use ids::{DmabufId, FragToken, IfIndex, ZerocopyId};
pub use limits::{MAX_DONTNEED_FRAGS, MAX_DONTNEED_TOKENS, UIO_MAXIOV};
