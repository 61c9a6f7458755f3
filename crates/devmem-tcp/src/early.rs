//! Payload in the SYN: TCP Fast Open (RFC 7413).

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;

use crate::bound_tx::BoundTx;
use crate::connect::ConnectOptions;
use crate::driver::WaitLimit;
use crate::error::Error;
use crate::netdev::Netdev;
use crate::ranges::{advance, check_ranges, length};
use crate::resolve::each_in_turn;
use crate::send_id::SendId;
use crate::stream::Stream;
use crate::syn_data::{SynData, not_sent};

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
    fn check(&self, nic: &Netdev) -> Result<(), Error> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(tx, _) if !nic.nic().has(tx.binding()) => Err(tx.binding().is_elsewhere()),
            Self::Device(tx, ranges) => check_ranges(tx.id(), tx.memory().size(), ranges),
        }
    }

    fn for_syn(&self) -> SynData<'_> {
        match self {
            Self::Host(bytes) => SynData::Host(bytes),
            Self::Device(tx, ranges) => SynData::Device(tx.id(), ranges),
        }
    }

    /// Returns the id of the first `taken` bytes, which the SYN has.
    pub(crate) fn begun(&self, taken: usize) -> SendId {
        SendId::of_syn(taken, matches!(self, Self::Device(..)) && taken > 0)
    }

    /// Queues the bytes behind the first `taken`, which the SYN had. Returns the id of all.
    fn send_rest(&self, stream: &mut Stream, taken: usize) -> Result<SendId, Error> {
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
                Ok(begun.through(stream.send_all(tx, &rest)?))
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
    /// [`TcpInfo::syn_data_acked`](crate::tcp::TcpInfo::syn_data_acked) says whether the peer accepted bytes of the SYN.
    ///
    /// **Send only idempotent requests this way.** If the network duplicates the SYN, or the peer restarts, its
    /// program can receive the bytes of the SYN twice, on two connections (RFC 7413 2.1). That also holds
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
    ) -> Result<(Stream, SendId), Error> {
        let (mut stream, taken) = each_in_turn(address, |address| {
            let (stream, taken) = self.begin_with_data(address, options, data)?;
            stream.socket().await_connected(options)?;
            Ok((stream, taken))
        })?;
        let sent = data.send_rest(&mut stream, taken);
        Ok((stream, sent.map_err(not_sent)?))
    }

    /// Begins to connect, with the first bytes of `data` in the SYN; returns how many these are.
    pub(crate) fn begin_with_data(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
        data: EarlyData<'_>,
    ) -> Result<(Stream, usize), Error> {
        self.nic().check()?;
        data.check(self).map_err(not_sent)?;
        let (socket, taken) = self
            .nic()
            .begin_with_data(address, options, data.for_syn())?;
        Ok((Stream::new(socket), taken))
    }
}
