//! Payload of a SYN (RFC 7413), as the backends take it.

use std::ops::Range;

use devmem_uapi::DmabufId;

use crate::error::Error;

/// Whether the payload of a SYN needs a cookie, by which a host recognises peers that it has spoken with (RFC 7413).
///
/// Without cookies, an attacker that forges source addresses can open connections with payload, and make the host answer
/// to addresses that sent nothing. So a listener should accept them only on a network that nobody else can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EarlyCookie {
    /// A SYN to a host whose cookie is not known requests it, and has no payload.
    #[default]
    Needed,
    /// Every SYN may have payload (TCP_FASTOPEN_NO_COOKIE).
    NotNeeded,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SynData<'a> {
    /// Bytes of host memory, which are copied.
    Host(&'a [u8]),
    /// Ranges of memory bound for sending.
    Device(DmabufId, &'a [Range<usize>]),
}

/// Converts the error of a send that belongs to a connect.
pub(crate) fn not_sent(error: Error) -> Error {
    match error.kind().is_not_ready() {
        true => Error::no_answer(),
        false => error,
    }
}
