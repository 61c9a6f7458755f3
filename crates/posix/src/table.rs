//! The socket table: file descriptors over one stack. Nothing here waits; EAGAIN says that waiting may help.

mod epoll;
mod names;
mod open;
mod pipe;
mod receive;
mod send;
mod settings;
mod splice;
mod teardown;

use std::collections::HashMap;
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno, IfIndex};
use netmem::{Dmabuf, NiovSize};
use nic::{Rings, TcpDataSplit};
use slab::Slab;
use stack::{BindRx, BindTx, Readiness, SocketId, Stack, StackStats};
use steer::RxQueueId;
use wire::Instant;

use crate::abi::ev;
use crate::options::Options;
use crate::sockaddr::Family;
use epoll::Epoll;
use pipe::{End, Pipe};

pub use epoll::EpollEvent;
pub use receive::{Received, RecvArgs};
pub use send::{SendArgs, names_dmabuf};
pub use settings::{FD_BASE, Settings};
pub(crate) use splice::Way;

/// Most files of a table (linux `RLIMIT_NOFILE`, a usual hard limit).
const MAX_FILES: usize = 65_536;

/// The interface of a stack that has one.
pub(crate) const IFINDEX: IfIndex = IfIndex(1);

/// File descriptors and the stack below them.
#[derive(Debug)]
pub struct Table {
    pub(crate) stack: Stack,
    files: Slab<File>,
    /// Pipes with an open end.
    pipes: Slab<Pipe>,
    /// Which file a socket of the stack belongs to.
    by_socket: HashMap<SocketId, usize>,
    /// Memories bound for receiving.
    memories: HashMap<DmabufId, Dmabuf>,
    settings: Settings,
    next_serial: u64,
    /// Counts what may have made somebody's waiting end.
    changes: u64,
    /// The time of the last call.
    clock: Instant,
}

/// One file: what its number stands for, and who looks at it.
#[derive(Debug)]
pub(crate) struct File {
    /// Never that of another file, unlike the number.
    serial: u64,
    kind: FileKind,
    nonblocking: bool,
    close_on_exec: bool,
    /// Epolls that watch it, by their index.
    watchers: Vec<usize>,
    /// What was ready, and how much had arrived, when they were last told: what is new is an edge.
    told: (u32, u64),
}

#[derive(Debug)]
enum FileKind {
    Socket(Box<Sock>),
    Epoll(Epoll),
    Pipe(End),
}

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct Sock {
    family: Family,
    state: SockState,
    options: Options,
    bound: Option<std::net::SocketAddr>,
}

/// What stands behind a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SockState {
    /// Nothing yet, or nothing any more.
    Fresh,
    Listening(SocketId),
    /// connect was called and has not told its outcome.
    Connecting(SocketId),
    Connected(SocketId),
}

impl SockState {
    fn id(self) -> Option<SocketId> {
        match self {
            Self::Fresh => None,
            Self::Listening(id) | Self::Connecting(id) | Self::Connected(id) => Some(id),
        }
    }
}

/// What a call needs to know of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Names the file beyond its number's life.
    pub(crate) serial: u64,
    /// The program set O_NONBLOCK.
    pub(crate) nonblocking: bool,
    /// SO_RCVTIMEO, SO_SNDTIMEO.
    pub(crate) receive: Option<Duration>,
    pub(crate) send: Option<Duration>,
}

impl Table {
    /// Returns an empty table over `stack`.
    pub fn new(stack: Stack, settings: Settings) -> Self {
        Self {
            stack,
            files: Slab::new(),
            pipes: Slab::new(),
            by_socket: HashMap::new(),
            memories: HashMap::new(),
            settings,
            next_serial: 0,
            changes: 0,
            clock: Instant::ZERO,
        }
    }

    /// Notes the time of the call that comes.
    pub(crate) fn set_clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Polls the stack once and notes what became ready. Returns whether there was work.
    pub fn poll_stack(&mut self, now: Instant) -> bool {
        let worked = self.stack.poll(now).worked;
        self.note_events();
        worked
    }

    /// Sends what a call left to be sent, and notes what became ready.
    pub(crate) fn after_call(&mut self, now: Instant) {
        self.clock = now;
        if self.stack.wants_flush() {
            self.stack.flush(now);
        }
        self.note_events();
    }

    /// Returns a number that grows whenever a socket's readiness changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that something changed that no event of the stack tells.
    fn touch(&mut self) {
        self.changes += 1;
    }

    fn note_events(&mut self) {
        let events: Vec<SocketId> = self.stack.take_events().collect();
        for socket in events {
            self.changes += 1;
            if let Some(&index) = self.by_socket.get(&socket)
                && self.has_news(index, socket)
            {
                self.wake_watchers(index);
            }
        }
    }

    /// Returns whether a file is ready for more than it was, or more has arrived.
    fn has_news(&mut self, index: usize, socket: SocketId) -> bool {
        let ready = self.poll_events(self.fd_at(index)).unwrap_or(0);
        let arrived = self.stack.arrivals(socket).unwrap_or(0);
        let Some(file) = self.files.get_mut(index) else {
            return false;
        };
        let (was_ready, had_arrived) = std::mem::replace(&mut file.told, (ready, arrived));
        ready & !was_ready != 0 || arrived > had_arrived
    }

    /// Returns when the stack wants to be polled even if nothing arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    /// Returns the stack's counters.
    pub fn stats(&self) -> StackStats {
        self.stack.stats()
    }

    /// Returns the counters of dropped packets by name, those that are not 0.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.stack.drops().filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the stack, for those who look deeper than sockets do.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Changes the settings of TCP that sockets begin with from now on.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.stack.set_tcp_config(config);
    }

    /// Returns how many files are open.
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    /// Attaches `memory` to every receive queue, header split switched on for it: payload lands there from now on.
    ///
    /// # Errors
    /// As bind-rx of the kernel.
    pub fn bind_rx(&mut self, memory: &Dmabuf, niov_size: NiovSize) -> Result<DmabufId, Errno> {
        let rings = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            hds_thresh: 0,
            ..self.stack.nic().rings()
        };
        let nic = self.stack.nic_mut();
        nic.set_rings(rings).map_err(|_| Errno::EINVAL)?;
        let queues = (0..nic.channels().rx).map(RxQueueId).collect();
        let request = BindRx {
            ifindex: IFINDEX,
            dmabuf: memory.clone(),
            niov_size,
            queues,
        };
        let id = self.stack.bind_rx(request).map_err(|error| error.errno())?;
        self.memories.insert(id, memory.clone());
        Ok(id)
    }

    /// Makes `memory` known for sending.
    ///
    /// # Errors
    /// As bind-tx of the kernel.
    pub fn bind_tx(&mut self, memory: &Dmabuf) -> Result<DmabufId, Errno> {
        let request = BindTx {
            ifindex: IFINDEX,
            dmabuf: memory.clone(),
        };
        self.stack.bind_tx(request).map_err(|error| error.errno())
    }

    /// Gives a binding up. Receive queues go back to host memory; frags that are out keep the memory.
    ///
    /// # Errors
    /// EINVAL: no such binding.
    pub fn unbind(&mut self, id: DmabufId) -> Result<(), Errno> {
        match self.memories.remove(&id) {
            Some(_) => self.stack.unbind_rx(id).map_err(|error| error.errno()),
            None => self.stack.unbind_tx(id).map_err(|error| error.errno()),
        }
    }

    // --- Files by number ---

    /// Returns the number of the file at `index`.
    fn fd_at(&self, index: usize) -> i32 {
        // At most MAX_FILES above a base that leaves room for them.
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        self.settings.fd_base.saturating_add(index)
    }

    fn index_of(&self, fd: i32) -> Result<usize, Errno> {
        fd.checked_sub(self.settings.fd_base)
            .and_then(|index| usize::try_from(index).ok())
            .filter(|index| self.files.contains(*index))
            .ok_or(Errno::EBADF)
    }

    fn file(&self, fd: i32) -> Result<&File, Errno> {
        let index = self.index_of(fd)?;
        self.files.get(index).ok_or(Errno::EBADF)
    }

    fn file_mut(&mut self, fd: i32) -> Result<&mut File, Errno> {
        let index = self.index_of(fd)?;
        self.files.get_mut(index).ok_or(Errno::EBADF)
    }

    fn sock(&self, fd: i32) -> Result<&Sock, Errno> {
        match &self.file(fd)?.kind {
            FileKind::Socket(sock) => Ok(sock),
            FileKind::Epoll(_) | FileKind::Pipe(_) => Err(Errno::ENOTSOCK),
        }
    }

    fn sock_mut(&mut self, fd: i32) -> Result<&mut Sock, Errno> {
        match &mut self.file_mut(fd)?.kind {
            FileKind::Socket(sock) => Ok(sock),
            FileKind::Epoll(_) | FileKind::Pipe(_) => Err(Errno::ENOTSOCK),
        }
    }

    fn add_file(&mut self, kind: FileKind, flags: i32) -> Result<i32, Errno> {
        if self.files.len() >= MAX_FILES {
            return Err(Errno::EMFILE);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let index = self.files.insert(File {
            serial,
            kind,
            nonblocking: flags & crate::abi::SOCK_NONBLOCK != 0,
            close_on_exec: flags & crate::abi::SOCK_CLOEXEC != 0,
            watchers: Vec::new(),
            told: (0, 0),
        });
        Ok(self.fd_at(index))
    }

    /// Puts a socket of the stack behind a file.
    fn attach(&mut self, fd: i32, state: SockState) -> Result<(), Errno> {
        let index = self.index_of(fd)?;
        let sock = self.sock_mut(fd)?;
        let old = std::mem::replace(&mut sock.state, state);
        if let Some(old) = old.id() {
            self.by_socket.remove(&old);
        }
        if let Some(id) = state.id() {
            self.by_socket.insert(id, index);
        }
        self.touch();
        self.wake_watchers(index);
        Ok(())
    }

    /// Returns what a call on `fd` must know of waiting.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn patience(&self, fd: i32) -> Result<Patience, Errno> {
        let file = self.file(fd)?;
        let (receive, send) = match &file.kind {
            FileKind::Socket(sock) => (sock.options.rcv_timeout, sock.options.snd_timeout),
            FileKind::Epoll(_) | FileKind::Pipe(_) => (None, None),
        };
        Ok(Patience {
            serial: file.serial,
            nonblocking: file.nonblocking,
            receive,
            send,
        })
    }

    /// Returns the bits that poll(2) reports for `fd`, of all there are (linux net/ipv4/tcp.c `tcp_poll`).
    ///
    /// # Errors
    /// EBADF.
    pub fn poll_events(&self, fd: i32) -> Result<u32, Errno> {
        Ok(match &self.file(fd)?.kind {
            FileKind::Epoll(_) => ev::IN.when(self.epoll_has_events(fd)),
            FileKind::Socket(sock) => self.sock_events(sock),
            FileKind::Pipe(end) => self.pipe_events(*end),
        })
    }

    fn sock_events(&self, sock: &Sock) -> u32 {
        let ready = sock.state.id().and_then(|id| self.stack.readiness(id).ok());
        match (sock.state, ready) {
            (SockState::Listening(_), Some(ready)) => {
                (ev::IN | ev::RDNORM).when(ready.contains(Readiness::ACCEPTABLE))
            }
            (_, Some(ready)) => self.connection_events(sock, ready),
            // A socket without a connection (linux TCP_CLOSE).
            (_, None) => ev::OUT | ev::WRNORM | ev::HUP,
        }
    }

    fn connection_events(&self, sock: &Sock, ready: Readiness) -> u32 {
        let has = |what| ready.contains(what);
        let is_closed = has(Readiness::READ_CLOSED) && has(Readiness::WRITE_CLOSED);
        let is_ended = has(Readiness::READ_CLOSED) || has(Readiness::ERROR);
        let is_readable = is_ended || (has(Readiness::READABLE) && self.has_low_water(sock));
        (ev::IN | ev::RDNORM).when(is_readable)
            | (ev::OUT | ev::WRNORM).when(has(Readiness::WRITABLE))
            | ev::RDHUP.when(has(Readiness::READ_CLOSED))
            | ev::HUP.when(is_closed)
            | ev::ERR.when(ready.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE))
    }

    /// Returns whether as many bytes are there as SO_RCVLOWAT asks for.
    fn has_low_water(&self, sock: &Sock) -> bool {
        sock.options.rcv_lowat <= 1 || self.readable_len(sock.state) >= sock.options.rcv_lowat
    }

    /// Returns whether the peer has ended its half.
    fn has_peer_closed(&self, state: SockState) -> bool {
        use tcp::StateKind::{CloseWait, Closing, LastAck, TimeWait};
        let info = state.id().and_then(|id| self.stack.info(id).ok().flatten());
        info.is_some_and(|info| matches!(info.state, CloseWait | Closing | LastAck | TimeWait))
    }

    fn readable_len(&self, state: SockState) -> usize {
        let info = state.id().and_then(|id| self.stack.info(id).ok().flatten());
        info.map_or(0, |info| info.readable)
    }
}

/// Bits under a condition.
trait When {
    fn when(self, condition: bool) -> Self;
}

impl When for u32 {
    fn when(self, condition: bool) -> Self {
        if condition { self } else { 0 }
    }
}
