//! Payload in the SYN: TCP Fast Open (RFC 7413).

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::MsgFlags;
use stack::{SendMsg, SocketId, SocketOption, Stack};

use crate::bound_tx::BoundTx;
use crate::connect::ConnectOptions;
use crate::driver::WaitLimit;
use crate::error::{ConnectError, Refusal, SendError};
use crate::kernel;
use crate::netdev::{Backend, Netdev, resolve};
use crate::send::{SendId, advance, check_ranges, device_control, length};
use crate::shards::UserShard;
use crate::socket::{Inner, Socket, merging_frags};
use crate::stream::Stream;

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

impl EarlyCookie {
    fn in_stack(self) -> stack::EarlyCookie {
        match self {
            Self::Needed => stack::EarlyCookie::Needed,
            Self::NotNeeded => stack::EarlyCookie::NotNeeded,
        }
    }
}

/// Payload with which [`Netdev::connect_with_data`] opens a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EarlyData<'a> {
    /// Bytes of host memory, which are copied.
    Host(&'a [u8]),
    /// Ranges of bound device memory, in this order.
    Device(&'a BoundTx, &'a [Range<usize>]),
}

impl EarlyData<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(_, ranges) => length(ranges),
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses what could not be sent on connections of `nic`, before anything is.
    fn check(&self, nic: &Netdev) -> Result<(), SendError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(tx, _) if !tx.is_on(nic) => {
                Err(SendError::OtherNetdev { dmabuf: tx.id() })
            }
            Self::Device(tx, ranges) => check_ranges(tx, ranges),
        }
    }

    /// Returns the id of the first `taken` bytes, which the SYN has.
    pub(crate) fn begun(&self, taken: usize) -> SendId {
        SendId::of_syn(taken, matches!(self, Self::Device(..)) && taken > 0)
    }

    /// Queues the bytes behind the first `taken`, which the SYN had. Returns the id of all.
    fn send_rest(&self, stream: &mut Stream, taken: usize) -> Result<SendId, SendError> {
        let begun = self.begun(taken);
        match self {
            Self::Host(bytes) => {
                let mut queued = taken;
                while let Some(rest) = bytes.get(queued..).filter(|rest| !rest.is_empty()) {
                    queued += stream.socket().write(rest, WaitLimit::Forever)?;
                }
                Ok(begun.with_bytes(queued))
            }
            Self::Device(_, ranges) if taken == length(ranges) => Ok(begun),
            Self::Device(tx, ranges) => {
                let mut rest = ranges.to_vec();
                advance(&mut rest, taken);
                Ok(begun.through(stream.send(tx, &rest)?))
            }
        }
    }
}

impl Netdev {
    /// Connects to `address` as [`connect_with`](Self::connect_with) does, with the first bytes of `data` in the SYN: TCP Fast
    /// Open (RFC 7413). The peer's program can read them a round trip earlier. Waits until the connection is established
    /// and all of `data` is queued; `options` limit the time of the handshake only.
    ///
    /// The first connection to a peer only requests its cookie, unless [`ConnectOptions::early_cookie`] says that none is needed;
    /// later SYNs carry as much as fits one packet beside it, about
    /// 1,400 bytes with an MTU of 1,500. The rest follows as of [`Stream::send`], and so does everything if the peer
    /// does not allow Fast Open ([`Listener::set_fast_open`](crate::Listener::set_fast_open)) or the path drops such packets.
    /// [`TcpInfo::syn_data_acked`](crate::TcpInfo::syn_data_acked) says whether the peer accepted bytes of the SYN.
    ///
    /// **Requests that may not be repeated must not be sent so.** If the network duplicates the SYN, or the peer
    /// restarts, the peer's program can receive the bytes of the SYN on two connections (RFC 7413 2.1). That also holds
    /// where this call fails: the peer may have acted on them.
    ///
    /// With a kernel NIC, ranges of device memory follow the handshake: the kernel copies the payload of a SYN, and cannot
    /// copy device memory.
    ///
    /// ```
    /// use devmem_tcp::{ConnectOptions, EarlyData, Netdev};
    ///
    /// let (a, b) = Netdev::pair("seed=1".parse()?)?;
    /// let listener = b.listen("10.77.0.2:5201")?;
    /// listener.set_fast_open(16)?;
    /// let options = ConnectOptions::new();
    /// for is_known in [false, true] {
    ///     let request = EarlyData::Host(b"GET /shard/7");
    ///     let (stream, sent) = a.connect_with_data("10.77.0.2:5201", &options, request)?;
    ///     assert_eq!(sent.bytes(), 12);
    ///     let info = stream.tcp_info().expect("the connection is open");
    ///     assert_eq!(info.syn_data_acked, is_known);                   // the second SYN has the peer's cookie
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect). Before anything is sent: a range is outside the memory, the memory is bound to another
    /// NIC, or the kernel's setting `net.ipv4.tcp_fastopen` forbids Fast Open.
    #[doc(alias = "MSG_FASTOPEN")]
    #[doc(alias = "TCP_FASTOPEN_CONNECT")]
    pub fn connect_with_data(
        &self,
        address: impl ToSocketAddrs,
        options: &ConnectOptions,
        data: EarlyData<'_>,
    ) -> Result<(Stream, SendId), ConnectError> {
        let address = resolve(address).map_err(ConnectError::Address)?;
        let (mut stream, taken) = self.begin_with_data(address, options, data)?;
        stream.socket().await_connected(options)?;
        let sent = data.send_rest(&mut stream, taken);
        Ok((stream, sent.map_err(not_sent)?))
    }

    /// Begins to connect, with the first bytes of `data` in the SYN; returns how many these are.
    pub(crate) fn begin_with_data(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
        data: EarlyData<'_>,
    ) -> Result<(Stream, usize), ConnectError> {
        self.check()?;
        data.check(self).map_err(not_sent)?;
        let (socket, taken) = match (&self.backend, data) {
            (Backend::User(nic), data) => {
                let shard = nic.shard_for(address, options)?;
                let (inner, taken) = shard.begin_with_data(address, options, data)?;
                (Socket::User(inner), taken)
            }
            (Backend::Kernel(nic), EarlyData::Host(bytes)) => {
                let begun = kernel::Socket::begin_with_data(nic, address, options, bytes)?;
                (Socket::Kernel(begun.0), begun.1)
            }
            (Backend::Kernel(nic), EarlyData::Device(..)) => {
                let socket = kernel::Socket::begin_connect(nic, address, options)?;
                (Socket::Kernel(socket), 0)
            }
        };
        Ok((Stream::new(socket), taken))
    }
}

impl UserShard {
    /// Sends the SYN; returns how many bytes it has.
    fn begin_with_data(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
        data: EarlyData<'_>,
    ) -> Result<(Arc<Inner>, usize), ConnectError> {
        let begin = |stack: &mut Stack, now| {
            let tcp = stack.tcp_config().settings;
            let cookie = options.cookie.in_stack();
            let id = stack.connect_early(options.source, address, &tcp, cookie, now)?;
            let id = merging_frags(stack, id);
            // Before the SYN leaves, at the end of this call.
            fill_syn(stack, id, data)
                .map(|taken| (id, taken))
                .map_err(|error| {
                    // Cannot fail: the socket was opened just now.
                    let _ = stack.abort(id);
                    not_sent(error.into())
                })
        };
        let (id, taken) = self.with(begin)??;
        let inner = Inner::new(Arc::clone(&self.shared), self.at, id);
        if let EarlyData::Device(..) = data {
            inner.note_early_send(taken);
        }
        Ok((inner, taken))
    }
}

/// Queues as much of `data` as the SYN of `id` has room for: nothing if the peer's cookie is not known.
fn fill_syn(
    stack: &mut Stack,
    id: SocketId,
    data: EarlyData<'_>,
) -> Result<usize, stack::SendError> {
    let sent = match data {
        data if data.is_empty() => Ok(0),
        EarlyData::Host(bytes) => stack.sendmsg(id, &SendMsg::new(bytes), MsgFlags::empty()),
        EarlyData::Device(tx, ranges) => {
            let zerocopy = stack.set_option(id, SocketOption::Zerocopy(true));
            // Cannot fail: the socket was opened just now.
            debug_assert!(zerocopy.is_ok(), "{zerocopy:?}");
            let control = device_control(tx.id());
            let message = SendMsg::device(ranges, &control);
            stack.sendmsg(id, &message, MsgFlags::ZEROCOPY)
        }
    };
    match sent {
        Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => Ok(0),
        sent => sent,
    }
}

/// Converts the error of a send that belongs to a connect.
pub(crate) fn not_sent(error: SendError) -> ConnectError {
    match error {
        SendError::Forked(forked) => ConnectError::Forked(forked),
        SendError::Refused(refusal) => ConnectError::Refused(refusal),
        SendError::WouldBlock | SendError::TimedOut => ConnectError::TimedOut,
        error @ SendError::OtherNetdev { .. } => {
            let text = error.to_string();
            let reason = text.lines().next().unwrap_or_default();
            let refusal = Refusal::new(error.kind(), error.errno(), reason);
            ConnectError::Refused(refusal.with_remedy(error.remedy().unwrap_or_default()))
        }
    }
}
