//! The socket table: file descriptors over one stack. Nothing here waits; EAGAIN says that waiting may help.

mod bound;
pub(crate) mod early;
pub(crate) mod epoll;
pub(crate) mod hold;
mod names;
mod open;
mod pipe;
mod ready;
mod ready_fd;
pub(crate) mod receive;
pub(crate) mod send;
mod settings;
mod teardown;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, NiovSize};
use nic::{Rings, TcpDataSplit};
use slab::Slab;
use stack::{BindRx, BindRxError, BindTxError, FlushScope, SocketId, Stack, StackStats};
use steer::RxQueueId;
use wire::Instant;

use crate::options::Options;
use crate::sockaddr::Family;
use epoll::Epoll;

pub(crate) use pipe::PipeEnd;
use ready_fd::ReadyFds;
pub use settings::{FD_BASE, Settings};

/// Most files of a table (linux `RLIMIT_NOFILE`, a usual hard limit).
const MAX_FILES: usize = 65_536;

/// File descriptors and the stack below them.
#[derive(Debug)]
pub struct Table {
    pub(crate) stack: Stack,
    files: Slab<File>,
    /// File of each socket of the stack.
    by_socket: HashMap<SocketId, usize>,
    /// Files bound to each port.
    by_port: HashMap<u16, BTreeSet<usize>>,
    /// Files that the current call holds: valid for it even if they were closed.
    held: Vec<usize>,
    /// Memories bound for receiving.
    memories: HashMap<DmabufId, Dmabuf>,
    settings: Settings,
    next_serial: u64,
    /// Number of changes that may end a wait.
    changes: u64,
    /// That number when waiting threads were last woken, in real time.
    changes_reported: u64,
    /// Descriptors of the process.
    ready_fds: ReadyFds,
    /// The time of the last call.
    clock: Instant,
}

/// One file, and the epolls that watch it.
#[derive(Debug)]
pub(crate) struct File {
    /// Unique, unlike the descriptor, which is reused.
    serial: u64,
    kind: FileKind,
    nonblocking: bool,
    close_on_exec: bool,
    /// Epolls that watch it, by their index.
    watchers: Vec<usize>,
    /// State when the watchers were last woken.
    reported: ready::Reported,
    /// A caller was told that there is no room (linux `SOCK_NOSPACE`): the next free space wakes the watchers.
    no_space: Cell<bool>,
    /// Number of calls that wait for it.
    holders: usize,
    /// Its descriptor is closed; it is destroyed when `holders` is 0.
    is_closed: bool,
}

#[derive(Debug)]
enum FileKind {
    Socket(Box<Sock>),
    Epoll(Epoll),
    Pipe(PipeEnd),
}

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct Sock {
    family: Family,
    state: SockState,
    options: Options,
    bound: Option<std::net::SocketAddr>,
    /// The part of `bound` that stays when the socket is disconnected (linux `SOCK_BINDADDR_LOCK`, `SOCK_BINDPORT_LOCK`): what
    /// the program gave to bind(2), without the port of an accepted socket.
    kept: Option<std::net::SocketAddr>,
    /// The peer that the first send connects to (TCP_FASTOPEN_CONNECT).
    deferred: Option<std::net::SocketAddr>,
}

/// State of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SockState {
    /// Not connected and not listening.
    Fresh,
    Listening(SocketId),
    /// connect was called and has not reported its outcome.
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

/// How long calls on a file wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitSettings {
    /// Identifies the file even after its descriptor was reused.
    pub serial: u64,
    /// The program set O_NONBLOCK.
    pub nonblocking: bool,
    /// SO_RCVTIMEO.
    pub receive: Option<Duration>,
    /// SO_SNDTIMEO.
    pub send: Option<Duration>,
}

impl Table {
    /// Returns an empty table over `stack`.
    pub fn new(stack: Stack, settings: Settings) -> Self {
        Self {
            stack,
            files: Slab::new(),
            by_socket: HashMap::new(),
            by_port: HashMap::new(),
            held: Vec::new(),
            memories: HashMap::new(),
            settings,
            next_serial: 0,
            changes: 0,
            changes_reported: 0,
            ready_fds: ReadyFds::default(),
            clock: Instant::ZERO,
        }
    }

    /// Sets the time of the next call.
    pub fn set_clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Polls the stack once and notes what became ready. Returns whether there was work.
    pub fn poll_stack(&mut self, now: Instant) -> bool {
        let worked = self.stack.poll(now).worked;
        self.note_events();
        worked
    }

    /// Sends what the call queued, and notes what became ready.
    pub fn after_call(&mut self, now: Instant) {
        self.clock = now;
        if self.stack.wants_flush() {
            self.stack.flush(FlushScope::All, now);
        }
        self.note_events();
    }

    /// Returns a number that grows whenever a file's readiness changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether waiting threads must be woken for a change.
    pub(crate) fn has_changed(&self) -> bool {
        self.changes != self.changes_reported
    }

    /// As [`has_changed`](Self::has_changed), once for each change.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.changes_reported, self.changes) != self.changes
    }

    /// Notes a change that the stack reports no event for: waiting calls check again.
    pub(crate) fn touch(&mut self) {
        self.changes += 1;
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

    /// Returns the stack, for state that no socket call reports.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Changes the settings of TCP that sockets begin with from now on.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.stack.set_tcp_config(config);
    }

    /// Returns the stack, for settings of the NIC. Its sockets must only be changed through the table.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Returns the stack's id of the socket of `fd`.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK; ENOTCONN: it was neither connected nor made to listen.
    pub fn socket_id(&self, fd: i32) -> Result<SocketId, Errno> {
        self.sock(fd)?.state.id().ok_or(Errno::ENOTCONN)
    }

    /// Returns how many files are open.
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    /// Attaches `memory` to every receive queue, header split switched on for it: payload lands there from now on.
    ///
    /// # Errors
    /// As bind-rx of the kernel; EBUSY: the memory is bound already, or some of it is still lent from an earlier binding.
    pub fn bind_rx(
        &mut self,
        memory: &Dmabuf,
        niov_size: NiovSize,
    ) -> Result<DmabufId, BindRxError> {
        let queues = 0..self.stack.nic().rx_queue_count();
        let queues: Vec<RxQueueId> = queues.map(RxQueueId).collect();
        self.bind_rx_queues(memory, niov_size, &queues)
    }

    /// As [`Table::bind_rx`], but to these receive queues only.
    ///
    /// # Errors
    /// As bind-rx of the kernel.
    pub fn bind_rx_queues(
        &mut self,
        memory: &Dmabuf,
        niov_size: NiovSize,
        queues: &[RxQueueId],
    ) -> Result<DmabufId, BindRxError> {
        let rings = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            ..self.stack.nic().rings()
        };
        let nic = self.stack.nic_mut();
        // If the NIC refuses header split, the binding is refused below, with the reason.
        let _ = nic.set_rings(rings);
        let request = BindRx {
            dmabuf: memory.clone(),
            niov_size,
            queues: queues.to_vec(),
        };
        let id = self.stack.bind_rx(request)?;
        self.memories.insert(id, memory.clone());
        Ok(id)
    }

    /// Binds `memory` for sending.
    ///
    /// # Errors
    /// As bind-tx of the kernel.
    pub fn bind_tx(&mut self, memory: &Dmabuf) -> Result<DmabufId, BindTxError> {
        self.stack.bind_tx(memory)
    }

    /// Removes a binding. Receive queues return to host memory; lent frags keep the memory alive.
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
            .filter(|index| {
                let file = self.files.get(*index);
                file.is_some_and(|file| !file.is_closed || self.held.contains(index))
            })
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
            reported: ready::Reported::default(),
            no_space: Cell::new(false),
            holders: 0,
            is_closed: false,
        });
        Ok(self.fd_at(index))
    }

    /// Changes the state of a socket, and wakes its watchers.
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
        self.wake_watchers(index, ready::ANYTHING);
        Ok(())
    }

    /// Returns how long calls on `fd` wait.
    ///
    /// # Errors
    /// EBADF.
    pub fn wait_settings(&self, fd: i32) -> Result<WaitSettings, Errno> {
        let file = self.file(fd)?;
        let (receive, send) = match &file.kind {
            FileKind::Socket(sock) => (sock.options.rcv_timeout, sock.options.snd_timeout),
            FileKind::Epoll(_) | FileKind::Pipe(_) => (None, None),
        };
        Ok(WaitSettings {
            serial: file.serial,
            nonblocking: file.nonblocking,
            receive,
            send,
        })
    }
}
