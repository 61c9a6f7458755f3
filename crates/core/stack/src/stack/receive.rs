//! recvmsg, and giving the memory of tokens back. No call blocks and none sends; the next poll sends.

use devmem_uapi::{CmsgSink, DmabufToken, MsgFlags, ZerocopyRange};
use zerocopy::FromBytes;

use super::Stack;
use crate::socket::agenda::Mark;
use crate::socket::error::{DontneedError, RecvError};
use crate::socket::id::SocketId;
use crate::socket::recvmsg::{RecvCall, RecvMsg, RecvOutcome};

impl Stack {
    /// Receives payload in order into `msg` and `sink`. MSG_WAITALL and MSG_DONTWAIT have
    /// no effect, because no call blocks: [`RecvOutcome::stopped`] tells a blocking caller whether to wait for more.
    ///
    /// A net_iov with bytes that were received as tokens stays in use until [`Stack::dontneed`]: a reader that keeps
    /// all tokens can use up the memory of a binding (see [`Stack::bind_rx`]).
    ///
    /// # Errors
    /// [`RecvError`] if nothing was delivered. An error after delivered bytes is returned by the next call.
    pub fn recvmsg(
        &mut self,
        id: SocketId,
        msg: &mut RecvMsg<'_>,
        sink: &mut dyn CmsgSink,
        flags: MsgFlags,
    ) -> Result<RecvOutcome, RecvError> {
        let Self { nic, sockets, .. } = self;
        let mut connection = sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        if flags.contains(MsgFlags::ERRQUEUE) {
            return connection.recv_error(sink);
        }
        let call = RecvCall {
            msg,
            sink,
            flags,
            merge: connection.options.merge_frags,
            home: &mut |payload| nic.recycle(payload),
        };
        let is_peek = call.is_peek();
        let outcome = connection.receive(call);
        if outcome.is_ok() && !is_peek {
            // The window may grow, and memory for windows of other connections may become free.
            connection.mark(Mark::Touched);
        }
        outcome
    }

    /// Takes the oldest range of completed zero-copy sends from the error queue, as MSG_ERRQUEUE does, without a
    /// control buffer.
    ///
    /// # Errors
    /// [`RecvError::ErrorQueueEmpty`], or the socket is not a connection.
    pub fn completion(&mut self, id: SocketId) -> Result<ZerocopyRange, RecvError> {
        let mut connection = self
            .sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        connection
            .writer
            .errors
            .pop()
            .ok_or(RecvError::ErrorQueueEmpty)
    }

    /// Gives frags back by their tokens (SO_DEVMEM_DONTNEED); returns how many were freed. If it is fewer than given,
    /// call again for the rest: one call handles at most 1,024 tokens.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed(&mut self, id: SocketId, ranges: &[DmabufToken]) -> Result<u32, DontneedError> {
        let Self { nic, sockets, .. } = self;
        // A listener is a TCP socket, too, but has no tokens.
        let Some(mut connection) = sockets.connection_mut(id)? else {
            return Ok(0);
        };
        let freed = connection
            .reader
            .dontneed(ranges, |netmem| nic.recycle_netmem(netmem))?;
        if freed > 0 {
            connection.mark(Mark::Touched);
        }
        Ok(freed)
    }

    /// As [`Stack::dontneed`], from the bytes of the option's value.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed_bytes(&mut self, id: SocketId, value: &[u8]) -> Result<u32, DontneedError> {
        self.sockets.get(id)?;
        if !value.len().is_multiple_of(size_of::<DmabufToken>()) {
            return Err(DontneedError::OddLength { len: value.len() });
        }
        let given = value.len() / size_of::<DmabufToken>();
        if given > devmem_uapi::MAX_DONTNEED_TOKENS {
            return Err(DontneedError::TooManyRanges { given });
        }
        let ranges = value
            .chunks_exact(size_of::<DmabufToken>())
            .map(DmabufToken::read_from_bytes);
        let ranges: Vec<_> = ranges.filter_map(Result::ok).collect();
        self.dontneed(id, &ranges)
    }
}
