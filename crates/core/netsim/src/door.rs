//! The interface between test programs and a stack.
//!
//! The behaviour of sockets must not depend on how a program calls them. So each scenario is written once, over a
//! [`Door`], and every crate that implements a door runs it: the stack's tests over [`Direct`], those of the socket
//! table over files.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Shutdown, SocketAddr};

use devmem_uapi::{
    CmsgIter, CmsgWriter, DmabufId, DmabufToken, Errno, MsgFlags, SockExtendedErr, ZerocopyRange,
};
use netmem::{Dmabuf, NiovSize};
use stack::{
    BindRx, Readiness, RecvMsg, SendMsg, SocketId, SocketOption, Stack, StackStats, Stopped,
};
use steer::RxQueueId;
use wire::Instant;
use zerocopy::IntoBytes;

/// Buffers of a receive.
#[derive(Debug)]
pub struct RecvRoom<'a> {
    /// Host memory.
    pub host: &'a mut [u8],
    /// Maximum number of bytes; may exceed the length of `host` where only device memory is expected.
    pub len: usize,
    /// Room for control messages.
    pub control: &'a mut [u8],
}

/// Result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvResult {
    /// Bytes received into host and device memory; 0 is the end of the stream.
    pub bytes: usize,
    /// Of those, bytes in host memory.
    pub host_bytes: usize,
    /// Bytes of control messages.
    pub control_bytes: usize,
    /// Reason why it did not return more.
    pub stopped: Stopped,
}

/// Interface of a program to a stack. Calls fail with an errno and never block.
pub trait Door: fmt::Debug {
    /// Handle of a socket.
    type Socket: Copy + Eq + fmt::Debug + fmt::Display;

    /// Returns the door of a stack.
    fn open(stack: Stack) -> Self;

    /// Calls `look` with the stack, for state that programs cannot see, such as counters.
    fn look<T>(&self, look: impl FnOnce(&Stack) -> T) -> T;

    /// Returns the stack, for administration such as NIC settings.
    fn stack_mut(&mut self) -> &mut Stack;

    /// Returns the stack's id of a socket.
    ///
    /// # Errors
    /// EBADF.
    fn id(&self, socket: Self::Socket) -> Result<SocketId, Errno>;

    /// Polls the stack; returns whether it did any work.
    fn poll(&mut self, now: Instant) -> bool;

    /// Binds `memory` to RX queues (bind-rx); header split must be on.
    ///
    /// # Errors
    /// The errnos of the kernel.
    fn bind_rx(
        &mut self,
        memory: &Dmabuf,
        niov_size: NiovSize,
        queues: &[RxQueueId],
    ) -> Result<DmabufId, Errno>;

    /// Binds `memory` for sending (bind-tx).
    ///
    /// # Errors
    /// The errnos of the kernel.
    fn bind_tx(&mut self, memory: &Dmabuf) -> Result<DmabufId, Errno>;

    /// Ends a binding of either kind.
    ///
    /// # Errors
    /// EINVAL if there is no such binding.
    fn unbind(&mut self, id: DmabufId) -> Result<(), Errno>;

    /// Creates a listening socket.
    ///
    /// # Errors
    /// As bind(2) and listen(2).
    fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<Self::Socket, Errno>;

    /// accept(2).
    ///
    /// # Errors
    /// As accept(2).
    fn accept(&mut self, listener: Self::Socket) -> Result<(Self::Socket, SocketAddr), Errno>;

    /// Creates a socket and starts to connect it.
    ///
    /// # Errors
    /// The immediate errors of connect(2), except that EINPROGRESS is success.
    fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<Self::Socket, Errno>;

    /// sendmsg(2).
    ///
    /// # Errors
    /// As sendmsg(2).
    fn sendmsg(
        &mut self,
        socket: Self::Socket,
        msg: &SendMsg<'_>,
        flags: MsgFlags,
    ) -> Result<usize, Errno>;

    /// recvmsg(2).
    ///
    /// # Errors
    /// As recvmsg(2).
    fn recvmsg(
        &mut self,
        socket: Self::Socket,
        room: RecvRoom<'_>,
        flags: MsgFlags,
    ) -> Result<RecvResult, Errno>;

    /// Sets SO_DEVMEM_DONTNEED to `value`; returns how many frags were freed.
    ///
    /// # Errors
    /// As setsockopt(2).
    fn dontneed_bytes(&mut self, socket: Self::Socket, value: &[u8]) -> Result<u32, Errno>;

    /// setsockopt(2).
    ///
    /// # Errors
    /// As setsockopt(2).
    fn set_option(&mut self, socket: Self::Socket, option: SocketOption) -> Result<(), Errno>;

    /// Returns and clears SO_ERROR, the error of the connection.
    ///
    /// # Errors
    /// EBADF.
    fn take_error(&mut self, socket: Self::Socket) -> Result<Option<Errno>, Errno>;

    /// Returns the result of poll(2) as four of the stack's bits: READABLE (POLLIN), WRITABLE (POLLOUT), READ_CLOSED
    /// (POLLRDHUP) and ERROR (POLLERR; also set if the error queue is not empty).
    ///
    /// # Errors
    /// EBADF.
    fn readiness(&self, socket: Self::Socket) -> Result<Readiness, Errno>;

    /// getsockname(2).
    ///
    /// # Errors
    /// EBADF.
    fn local_addr(&self, socket: Self::Socket) -> Result<SocketAddr, Errno>;

    /// shutdown(2).
    ///
    /// # Errors
    /// As shutdown(2).
    fn shutdown(&mut self, socket: Self::Socket, how: Shutdown) -> Result<(), Errno>;

    /// close(2).
    ///
    /// # Errors
    /// EBADF.
    fn close(&mut self, socket: Self::Socket) -> Result<(), Errno>;

    /// Closes with a reset: close(2) after SO_LINGER with time 0.
    ///
    /// # Errors
    /// EBADF.
    fn abort(&mut self, socket: Self::Socket) -> Result<(), Errno>;

    /// Returns the text of the last error; `None` for a door that returns errnos only.
    fn words(&self) -> Option<&str> {
        None
    }

    // --- Provided for every door ---

    /// Gives ranges of tokens back.
    ///
    /// # Errors
    /// As setsockopt(2).
    fn dontneed(&mut self, socket: Self::Socket, ranges: &[DmabufToken]) -> Result<u32, Errno> {
        self.dontneed_bytes(socket, ranges.as_bytes())
    }

    /// Reads one range of zero-copy sends from the error queue.
    ///
    /// # Errors
    /// EAGAIN if none is complete.
    ///
    /// # Panics
    /// If the error queue has an entry of another kind.
    fn completion(&mut self, socket: Self::Socket) -> Result<ZerocopyRange, Errno> {
        let mut control = [0; 64];
        let room = RecvRoom {
            host: &mut [],
            len: 0,
            control: &mut control,
        };
        let result = self.recvmsg(socket, room, MsgFlags::ERRQUEUE)?;
        assert_eq!((result.bytes, result.stopped), (0, Stopped::ErrorQueue));
        let mut messages = CmsgIter::new(&control[..result.control_bytes]);
        let entry = messages.find_map(|cmsg| SockExtendedErr::parse(&cmsg));
        Ok(ZerocopyRange::try_from(entry.expect("an entry")).expect("of a zero-copy send"))
    }

    /// Returns the statistics of a connection; `None` for a listener.
    ///
    /// # Errors
    /// EBADF.
    fn info(&self, socket: Self::Socket) -> Result<Option<tcp::Info>, Errno> {
        let id = self.id(socket)?;
        let info = self.look(|stack| stack.info(id));
        info.map_err(|error| error.errno())
    }

    /// Returns how many frags are lent through a socket.
    ///
    /// # Errors
    /// EBADF.
    fn tokens_outstanding(&self, socket: Self::Socket) -> Result<usize, Errno> {
        let id = self.id(socket)?;
        let tokens = self.look(|stack| stack.tokens_outstanding(id));
        tokens.map_err(|error| error.errno())
    }

    /// Returns how many sends use the memory of a send binding; `None` if there is no such binding.
    fn sends_in_flight(&self, id: DmabufId) -> Option<usize> {
        self.look(|stack| stack.sends_in_flight(id))
    }

    /// Returns the stack's counters.
    fn stats(&self) -> StackStats {
        self.look(Stack::stats)
    }

    /// Returns the drop counters that are not 0, by name.
    fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.look(|stack| stack.drops().filter(|&(_, count)| count > 0).collect())
    }

    /// Returns the bytes of a queue's memory that are set aside for windows of active connections.
    fn promised(&self, queue: RxQueueId) -> u64 {
        self.look(|stack| stack.promised(queue))
    }

    /// Returns the free space in a queue's memory.
    fn rx_space(&mut self, queue: RxQueueId) -> nic::RxSpace {
        self.stack_mut().nic_mut().rx_space(queue)
    }
}

/// Door over the stack's own interface, with errors mapped to errnos.
#[derive(Debug)]
pub struct Direct {
    stack: Stack,
    words: String,
}

impl Direct {
    /// Converts an error to its errno and keeps its text, except for EAGAIN.
    fn note_error<T, E: fmt::Display>(
        &mut self,
        outcome: Result<T, E>,
        errno: impl Fn(&E) -> Errno,
    ) -> Result<T, Errno> {
        outcome.map_err(|error| {
            let errno = errno(&error);
            if errno != Errno::EAGAIN {
                self.words = error.to_string();
            }
            errno
        })
    }
}

impl Door for Direct {
    type Socket = SocketId;

    fn open(stack: Stack) -> Self {
        Self {
            stack,
            words: String::new(),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&Stack) -> T) -> T {
        look(&self.stack)
    }

    fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    fn words(&self) -> Option<&str> {
        Some(&self.words)
    }

    fn id(&self, socket: SocketId) -> Result<SocketId, Errno> {
        Ok(socket)
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.stack.poll(now).worked
    }

    fn bind_rx(
        &mut self,
        memory: &Dmabuf,
        niov_size: NiovSize,
        queues: &[RxQueueId],
    ) -> Result<DmabufId, Errno> {
        let request = BindRx {
            dmabuf: memory.clone(),
            niov_size,
            queues: queues.to_vec(),
        };
        let outcome = self.stack.bind_rx(request);
        self.note_error(outcome, |error| error.errno())
    }

    fn bind_tx(&mut self, memory: &Dmabuf) -> Result<DmabufId, Errno> {
        let outcome = self.stack.bind_tx(memory);
        self.note_error(outcome, |error| error.errno())
    }

    fn unbind(&mut self, id: DmabufId) -> Result<(), Errno> {
        match self.stack.provider(id).is_some() {
            true => {
                let outcome = self.stack.unbind_rx(id);
                self.note_error(outcome, |error| error.errno())
            }
            false => {
                let outcome = self.stack.unbind_tx(id);
                self.note_error(outcome, |error| error.errno())
            }
        }
    }

    fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<SocketId, Errno> {
        let listener = self.stack.listen(local, backlog);
        self.note_error(listener, |error| error.errno())
    }

    fn accept(&mut self, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        let outcome = self.stack.accept(listener);
        self.note_error(outcome, |error| error.errno())
    }

    fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<SocketId, Errno> {
        let outcome = self.stack.connect(remote, now);
        self.note_error(outcome, |error| error.errno())
    }

    fn sendmsg(
        &mut self,
        socket: SocketId,
        msg: &SendMsg<'_>,
        flags: MsgFlags,
    ) -> Result<usize, Errno> {
        let sent = self.stack.sendmsg(socket, msg, flags);
        self.note_error(sent, |error| error.errno())
    }

    fn recvmsg(
        &mut self,
        socket: SocketId,
        room: RecvRoom<'_>,
        flags: MsgFlags,
    ) -> Result<RecvResult, Errno> {
        let RecvRoom { host, len, control } = room;
        let mut writer = CmsgWriter::new(control);
        let mut msg = RecvMsg::with_len(host, len);
        let outcome = self.stack.recvmsg(socket, &mut msg, &mut writer, flags);
        let written = writer.written();
        let outcome = self.note_error(outcome, |error| error.errno())?;
        Ok(RecvResult {
            bytes: outcome.bytes,
            host_bytes: outcome.host_bytes,
            control_bytes: written,
            stopped: outcome.stopped,
        })
    }

    fn dontneed(&mut self, socket: SocketId, ranges: &[DmabufToken]) -> Result<u32, Errno> {
        let freed = self.stack.dontneed(socket, ranges);
        self.note_error(freed, |error| error.errno())
    }

    fn dontneed_bytes(&mut self, socket: SocketId, value: &[u8]) -> Result<u32, Errno> {
        let freed = self.stack.dontneed_bytes(socket, value);
        self.note_error(freed, |error| error.errno())
    }

    fn set_option(&mut self, socket: SocketId, option: SocketOption) -> Result<(), Errno> {
        let set = self.stack.set_option(socket, option);
        self.note_error(set, |error| error.errno())
    }

    fn take_error(&mut self, socket: SocketId) -> Result<Option<Errno>, Errno> {
        let error = self
            .stack
            .take_error(socket)
            .map_err(|error| error.errno())?;
        Ok(error.map(stack::connection_errno))
    }

    fn readiness(&self, socket: SocketId) -> Result<Readiness, Errno> {
        let ready = self
            .stack
            .readiness(socket)
            .map_err(|error| error.errno())?;
        let readable = Readiness::READABLE | Readiness::ACCEPTABLE;
        let readable = readable | Readiness::READ_CLOSED | Readiness::ERROR;
        let error = Readiness::ERROR | Readiness::ERROR_QUEUE;
        let same = |bit| Readiness::when(bit, ready.contains(bit));
        Ok(Readiness::READABLE.when(ready.intersects(readable))
            | Readiness::ERROR.when(ready.intersects(error))
            | same(Readiness::WRITABLE)
            | same(Readiness::READ_CLOSED))
    }

    fn local_addr(&self, socket: SocketId) -> Result<SocketAddr, Errno> {
        self.stack.local_addr(socket).map_err(|error| error.errno())
    }

    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Errno> {
        let shut = self.stack.shutdown(socket, how);
        self.note_error(shut, |error| error.errno())
    }

    fn close(&mut self, socket: SocketId) -> Result<(), Errno> {
        let outcome = self.stack.close(socket);
        self.note_error(outcome, |error| error.errno())
    }

    fn abort(&mut self, socket: SocketId) -> Result<(), Errno> {
        let outcome = self.stack.abort(socket);
        self.note_error(outcome, |error| error.errno())
    }
}
