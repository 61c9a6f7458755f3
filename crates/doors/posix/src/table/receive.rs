//! recv, recvfrom, recvmsg and read.

use std::time::Duration;

use devmem_uapi::{
    CmsgSink, CmsgWriter, DevmemCmsg, DmabufToken, Errno, MsgFlags, NoSpace, OffenderFamily,
    SockExtendedErr, TxStamp,
};
use stack::{RecvError, RecvMsg, RecvOutcome, SocketId, Stopped};
use tcp::StateKind;
use wire::Instant;

use super::{FileKind, SockState, Table};
use crate::abi::{MSG_OOB, SOL_TCP, TCP_CM_INQ, sof};
use crate::sockaddr::Family;

/// Frags that are copied out at once.
const COPY_FRAGS: usize = 64;

/// Buffers of a receive.
#[derive(Debug)]
pub struct RecvArgs<'a> {
    /// Host memory.
    pub host: &'a mut [u8],
    /// Maximum bytes to return; more than `host` holds only if device memory is expected.
    pub len: usize,
    /// Room for control messages.
    pub control: &'a mut [u8],
}

/// What a receive returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes in host and device memory; 0 is the end of the stream.
    pub bytes: usize,
    /// Bytes of those in host memory.
    pub host_bytes: usize,
    /// Bytes of control messages.
    pub control_bytes: usize,
    /// Flags for the caller: MSG_ERRQUEUE, MSG_TRUNC, MSG_CTRUNC.
    pub flags: u32,
    /// Time at which the last byte arrived, in the stack's time, if receive timestamps are on.
    pub arrived: Option<Instant>,
    /// Why it did not return more.
    pub stopped: Stopped,
}

impl Received {
    /// An empty result.
    pub(crate) const NOTHING: Self = Self {
        bytes: 0,
        host_bytes: 0,
        control_bytes: 0,
        flags: 0,
        arrived: None,
        stopped: Stopped::Empty,
    };

    /// Adds the result of the next receive of the same call.
    pub(crate) fn and(self, more: Self) -> Self {
        Self {
            bytes: self.bytes + more.bytes,
            host_bytes: self.host_bytes + more.host_bytes,
            control_bytes: self.control_bytes + more.control_bytes,
            flags: self.flags | more.flags,
            arrived: more.arrived.or(self.arrived),
            stopped: more.stopped,
        }
    }
}

/// A control buffer that reports errors in the format of the socket's family, not the connection's.
struct Control<'a> {
    writer: CmsgWriter<'a>,
    family: OffenderFamily,
    /// Wall-clock time of the stack's time 0; `None` if the program wants no times (no SOF_TIMESTAMPING_SOFTWARE), only
    /// the events.
    clock_base: Option<Duration>,
    /// Type of the message with the time.
    stamp_message: i32,
    /// A time of a send was reported.
    has_stamp: bool,
}

impl CmsgSink for Control<'_> {
    fn push(&mut self, cmsg: DevmemCmsg) -> Result<(), NoSpace> {
        CmsgSink::push(&mut self.writer, cmsg)
    }

    fn push_error(&mut self, entry: SockExtendedErr, _: OffenderFamily) -> Result<(), NoSpace> {
        entry.push(self.family, &mut self.writer)
    }

    fn push_stamp(&mut self, stamp: TxStamp, _: OffenderFamily) -> Result<(), NoSpace> {
        match self.clock_base {
            Some(base) => {
                let base = u64::try_from(base.as_nanos()).unwrap_or(u64::MAX);
                let nanos = stamp.nanos.saturating_add(base);
                let stamp = TxStamp { nanos, ..stamp };
                self.writer
                    .push_stamp_as(self.stamp_message, stamp, self.family)?;
            }
            None => SockExtendedErr::from(stamp).push(self.family, &mut self.writer)?,
        }
        self.has_stamp = true;
        Ok(())
    }

    fn room(&self) -> usize {
        self.writer.room()
    }
}

/// Control messages about device memory that will be copied out.
#[derive(Default)]
struct Batch(Vec<DevmemCmsg>);

impl CmsgSink for Batch {
    fn push(&mut self, cmsg: DevmemCmsg) -> Result<(), NoSpace> {
        self.0.push(cmsg);
        Ok(())
    }

    fn room(&self) -> usize {
        COPY_FRAGS.saturating_sub(self.0.len())
    }
}

impl Table {
    /// Returns how many bytes a blocking receive waits for (SO_RCVLOWAT).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub(crate) fn low_water(&self, fd: i32) -> Result<usize, Errno> {
        Ok(self.sock(fd)?.options.rcv_lowat)
    }

    /// Returns how many bytes can be read at once; 0 for a socket without a connection.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub fn readable(&self, fd: i32) -> Result<usize, Errno> {
        if let FileKind::Pipe(end) = &self.file(fd)?.kind {
            return Ok(end.readable());
        }
        Ok(self.readable_len(self.sock(fd)?.state))
    }

    /// Returns whether one receive may cross from readable to unreadable memory: only if everything is copied out.
    pub(crate) fn crosses_borders(&self, flags: u32) -> bool {
        self.settings.copy_out && flags & MsgFlags::SOCK_DEVMEM.bits() == 0
    }

    /// Receives the data that is available.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn recv(&mut self, fd: i32, args: RecvArgs<'_>, flags: u32) -> Result<Received, Errno> {
        let RecvArgs { host, len, control } = args;
        let part = RecvArgs {
            host,
            len,
            control: &mut *control,
        };
        let received = self.recv_part(fd, part, flags)?;
        self.tell_with(fd, received, control, flags)
    }

    /// Returns who holds the memory that a connection receives into; `None` while a quarter of it is free, and for other files.
    pub fn memory_holders(&mut self, fd: i32) -> Option<stack::MemoryHolders> {
        let SockState::Connected(id) = self.sock(fd).ok()?.state else {
            return None;
        };
        self.stack.memory_holders(id).ok().flatten()
    }

    /// Receives the data that is available, as part of a call that may receive more. [`Table::tell_with`] adds the control
    /// messages that a call reports once.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub(crate) fn recv_part(
        &mut self,
        fd: i32,
        args: RecvArgs<'_>,
        flags: u32,
    ) -> Result<Received, Errno> {
        let sock = self.sock(fd)?;
        if flags & MSG_OOB != 0 {
            // There is no urgent data.
            return Err(Errno::EINVAL);
        }
        let flags = MsgFlags::from_bits_truncate(flags);
        let (family, times) = (sock.family, sock.options.times);
        let id = match sock.state {
            SockState::Connected(id) | SockState::Connecting(id) => id,
            _ if flags.contains(MsgFlags::ERRQUEUE) => return Err(Errno::EAGAIN),
            SockState::Fresh if sock.deferred.is_some() => return Err(Errno::EAGAIN),
            SockState::Fresh | SockState::Listening(_) => return Err(Errno::ENOTCONN),
        };
        let RecvArgs { host, len, control } = args;
        let mut control = Control {
            writer: CmsgWriter::new(control),
            family: match family {
                Family::V4 => OffenderFamily::Ip,
                Family::V6 => OffenderFamily::Ipv6,
            },
            clock_base: times.has(sof::SOFTWARE).then_some(self.settings.clock_base),
            stamp_message: times.message(),
            has_stamp: false,
        };
        let outcome = self.recv_from_stack(id, &mut *host, len, &mut control, flags)?;
        let mut returned = MsgFlags::empty();
        if flags.contains(MsgFlags::ERRQUEUE) {
            returned |= MsgFlags::ERRQUEUE;
            if control.has_stamp && !times.has(sof::OPT_TSONLY) {
                // Linux returns the packet with its time; this table does not keep packets.
                returned |= MsgFlags::TRUNC;
            }
        }
        Ok(Received {
            bytes: outcome.bytes,
            host_bytes: outcome.host_bytes,
            control_bytes: control.writer.written(),
            flags: returned.bits(),
            arrived: outcome.arrived,
            stopped: outcome.stopped,
        })
    }

    /// Adds the control messages of a whole receive: the timestamp, then the bytes left (linux net/ipv4/tcp.c `tcp_recvmsg`).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub(crate) fn tell_with(
        &self,
        fd: i32,
        received: Received,
        control: &mut [u8],
        flags: u32,
    ) -> Result<Received, Errno> {
        let sock = self.sock(fd)?;
        if flags & MsgFlags::ERRQUEUE.bits() != 0 {
            return Ok(received);
        }
        let rest = control.get_mut(received.control_bytes..);
        let mut writer = CmsgWriter::new(rest.unwrap_or_default());
        let mut told = Ok(());
        if let Some(at) = received.arrived {
            let at = Duration::from_nanos(at.as_nanos()).saturating_add(self.settings.clock_base);
            told = sock.options.times.tell(at, &mut writer);
        }
        if sock.options.inq {
            let left = self.inq_hint(sock.state).to_ne_bytes();
            told = told.and(writer.push(SOL_TCP, TCP_CM_INQ, &left));
        }
        let truncated = match told {
            Ok(()) => MsgFlags::empty(),
            Err(NoSpace) => MsgFlags::CTRUNC,
        };
        Ok(Received {
            control_bytes: received.control_bytes + writer.written(),
            flags: received.flags | truncated.bits(),
            ..received
        })
    }

    /// Returns the value of TCP_INQ: the bytes left to read, plus one at the end of the stream, so that a program which reads
    /// that many bytes also reads the end (linux `tcp_inq_hint`).
    fn inq_hint(&self, state: SockState) -> i32 {
        let info = state.id().and_then(|id| self.stack.info(id).ok().flatten());
        let Some(info) = info else {
            return 0;
        };
        let has_ended = matches!(
            info.state,
            StateKind::CloseWait | StateKind::Closing | StateKind::LastAck | StateKind::TimeWait
        );
        let left = info.readable.saturating_add(usize::from(has_ended));
        i32::try_from(left).unwrap_or(i32::MAX)
    }

    fn recv_from_stack(
        &mut self,
        id: SocketId,
        host: &mut [u8],
        len: usize,
        control: &mut Control<'_>,
        flags: MsgFlags,
    ) -> Result<RecvOutcome, Errno> {
        let mut msg = RecvMsg::with_len(host, len);
        match self.stack.recvmsg(id, &mut msg, control, flags) {
            Err(RecvError::Unreadable { .. }) if self.settings.copy_out => {
                self.recv_copied(id, host, flags)
            }
            outcome => outcome,
        }
        .map_err(|error| error.errno())
    }

    /// Receives for a program that does not pass MSG_SOCK_DEVMEM: copies bytes out of device memory.
    fn recv_copied(
        &mut self,
        id: SocketId,
        host: &mut [u8],
        flags: MsgFlags,
    ) -> Result<RecvOutcome, RecvError> {
        let mut linear = vec![0; host.len()];
        let mut batch = Batch::default();
        let mut msg = RecvMsg::with_len(&mut linear, host.len());
        let outcome =
            self.stack
                .recvmsg(id, &mut msg, &mut batch, flags | MsgFlags::SOCK_DEVMEM)?;
        let (mut at, mut linear_at) = (0, 0);
        for cmsg in batch.0 {
            let len = match cmsg {
                DevmemCmsg::Linear(size) => size as usize,
                DevmemCmsg::Dmabuf(frag) => frag.frag_size as usize,
            };
            // The messages add up to what was returned, which is no more than the buffer.
            let out = host.get_mut(at..at + len).unwrap_or_default();
            match cmsg {
                DevmemCmsg::Linear(_) => {
                    out.copy_from_slice(linear.get(linear_at..linear_at + len).unwrap_or_default());
                    linear_at += len;
                }
                DevmemCmsg::Dmabuf(frag) => {
                    self.copy_frag(frag.dmabuf_id, frag.frag_offset, out);
                    let freed = self
                        .stack
                        .dontneed(id, &[DmabufToken::one(frag.frag_token)]);
                    debug_assert_eq!(freed, Ok(1), "the token was issued a moment ago");
                }
            }
            at += len;
        }
        let stopped = match outcome.stopped {
            // More data is available; the caller may call again.
            Stopped::ControlFull => Stopped::Border,
            stopped => stopped,
        };
        Ok(RecvOutcome {
            bytes: at,
            host_bytes: at,
            arrived: outcome.arrived,
            stopped,
        })
    }

    fn copy_frag(&self, id: devmem_uapi::DmabufId, offset: u64, out: &mut [u8]) {
        let memory = self.memories.get(&id);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let copied = memory.map(|memory| memory.copy_out(offset, out));
        debug_assert!(
            matches!(copied, Some(Ok(()))),
            "frags lie in memory that is bound"
        );
    }
}
