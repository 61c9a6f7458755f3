//! sendmsg: bytes of the caller's memory, copied to host pages.
//!
//! Sending from device memory needs a binding for it (`bind_tx`), which does not exist yet: a
//! message that names one is refused as the kernel refuses an id it does not know.

use devmem_uapi::MsgFlags;
use netmem::{FragList, PagePool};
use tcp::{Push, StateKind};

use super::cmsg::{TxSource, parse_tx};
use super::error::SendError;
use super::{ConnectionSocket, SocketId};

/// What a [`sendmsg`](crate::Stack::sendmsg) sends.
#[derive(Debug, Clone, Copy)]
pub struct SendMsg<'a> {
    host: &'a [u8],
    control: &'a [u8],
}

impl<'a> SendMsg<'a> {
    /// Sends `host`.
    pub const fn new(host: &'a [u8]) -> Self {
        Self { host, control: &[] }
    }

    /// Sends what the control messages in `control` say of `host`.
    pub const fn with_control(host: &'a [u8], control: &'a [u8]) -> Self {
        Self { host, control }
    }
}

/// Most bytes copied at once: what one outgoing packet can carry, so that its frags need not be
/// split.
const COPY_BYTES: usize = 64 << 10;

/// Queues as many bytes as there is room for, returns how many.
pub(crate) fn sendmsg(
    id: SocketId,
    socket: &mut ConnectionSocket,
    pool: &mut PagePool,
    msg: &SendMsg<'_>,
    flags: MsgFlags,
) -> Result<usize, SendError> {
    match parse_tx(msg.control).map_err(|_| SendError::BadControl)? {
        TxSource::Host => {}
        TxSource::Devmem(_) if !flags.contains(MsgFlags::ZEROCOPY) => {
            return Err(SendError::ZerocopyNeeded);
        }
        TxSource::Devmem(dmabuf) => return Err(SendError::UnknownBinding { dmabuf }),
    }
    can_send(id, socket)?;
    let mut sent = 0;
    while let Some(chunk) = msg.host.get(sent..).filter(|rest| !rest.is_empty()) {
        let n = chunk.len().min(COPY_BYTES).min(socket.conn.write_room());
        let Some(payload) = chunk.get(..n).filter(|chunk| !chunk.is_empty()) else {
            return partial(sent, SendError::WouldBlock);
        };
        let Some(payload) = FragList::from_host_bytes(pool, payload) else {
            return partial(sent, SendError::NoMemory);
        };
        let more = n < chunk.len() || flags.contains(MsgFlags::MORE);
        if socket
            .conn
            .send(payload, if more { Push::Later } else { Push::Now })
            .is_err()
        {
            return partial(sent, SendError::WouldBlock);
        }
        sent += n;
    }
    Ok(sent)
}

fn partial(sent: usize, error: SendError) -> Result<usize, SendError> {
    if sent == 0 { Err(error) } else { Ok(sent) }
}

/// Returns whether the connection takes bytes, or why not.
fn can_send(id: SocketId, socket: &mut ConnectionSocket) -> Result<(), SendError> {
    if let Some(error) = socket.take_error() {
        return Err(SendError::Connection(error));
    }
    match socket.conn.state() {
        StateKind::Established | StateKind::CloseWait => Ok(()),
        StateKind::SynSent | StateKind::SynReceived => Err(SendError::WouldBlock),
        _ => Err(SendError::Shutdown { id }),
    }
}
