//! Listening and connecting.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use devmem_uapi::{Errno, MsgFlags};
use runtime::fds::sleep_until_readable;
use rustix::event::{PollFd, PollFlags, epoll};
use stack::{Readiness, SendMsg, SocketId, SocketOption, Stack};

use super::nic::Nic;
use super::send::device_control;
use super::shard::Shard;
use super::socket::Socket;
use crate::congestion::Congestion;
use crate::connect::ConnectOptions;
use crate::driver::WaitLimit;
use crate::error::{Error, ErrorKind, Forked, NotReady};
use crate::syn_data::{EarlyCookie, SynData, not_sent};

/// How often a listener tries another free port, if a shard uses the one that the first shard chose.
const PORT_ATTEMPTS: usize = 16;

/// The listening sockets of the shards of a NIC, on one address.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Never empty.
    sockets: Vec<Arc<Socket>>,
    /// Number of accepts: the shards take turns.
    accepts: AtomicUsize,
    /// Readable while one of several sockets is. Created by the first call of [`readiness_fd`](Self::readiness_fd).
    any: OnceLock<OwnedFd>,
}

impl Nic {
    /// Listens on all shards.
    pub(crate) fn listen(&self, address: SocketAddr, backlog: usize) -> Result<Listening, Error> {
        let mut attempts = 1;
        loop {
            let first = listen_on(self.first(), address, backlog)?;
            let mut chosen = address;
            let local = first.with(|stack, id| stack.local_addr(id));
            chosen.set_port(local.map_err(Error::from)?.port());
            let mut sockets = vec![first];
            let others = self.shards()[1..].iter();
            let others = others.map(|shard| listen_on(shard, chosen, backlog));
            match others.collect::<Result<Vec<_>, _>>() {
                Ok(others) => {
                    sockets.extend(others);
                    return Ok(Listening {
                        sockets,
                        accepts: AtomicUsize::new(0),
                        any: OnceLock::new(),
                    });
                }
                // A listener of one shard alone, or a connection, has the port there.
                Err(_) if address.port() == 0 && attempts < PORT_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins to connect: sends the SYN.
    pub(crate) fn begin_connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Socket>, Error> {
        let shard = self.shard_for(address, options);
        let id = shard.with(|stack, now| {
            let tcp = tcp_settings(stack, options);
            let id = stack.connect_from(options.source, address, &tcp, None, now)?;
            Ok::<_, stack::ConnectError>(merging_frags(stack, id))
        })?;
        Ok(Socket::new(shard, id))
    }

    /// Begins to connect with `data` in the SYN, as many bytes as fit (RFC 7413); returns their number.
    pub(crate) fn begin_with_data(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
        data: SynData<'_>,
    ) -> Result<(Arc<Socket>, usize), Error> {
        let shard = self.shard_for(address, options);
        let cookie = match options.cookie {
            EarlyCookie::Needed => stack::EarlyCookie::Needed,
            EarlyCookie::NotNeeded => stack::EarlyCookie::NotNeeded,
        };
        let (id, taken) = shard.with(|stack, now| {
            let tcp = tcp_settings(stack, options);
            let id = stack.connect_from(options.source, address, &tcp, Some(cookie), now)?;
            let id = merging_frags(stack, id);
            // Before the SYN leaves, at the end of this call.
            fill_syn(stack, id, data)
                .map(|taken| (id, taken))
                .map_err(|error| {
                    // Cannot fail: the socket was opened just now.
                    let _ = stack.abort(id);
                    not_sent(error.into())
                })
        })?;
        let socket = Socket::new(shard, id);
        if let SynData::Device(..) = data {
            socket.note_early_send(taken);
        }
        Ok((socket, taken))
    }
}

/// Returns what a connection begins with: the settings of the NIC, as far as the options have no others.
fn tcp_settings(stack: &Stack, options: &ConnectOptions) -> tcp::Settings {
    let settings = stack.tcp_config().settings;
    tcp::Settings {
        congestion: options
            .congestion
            .map_or(settings.congestion, tcp::CongestionKind::from),
        ..settings
    }
}

fn listen_on(shard: &Shard, address: SocketAddr, backlog: usize) -> Result<Arc<Socket>, Error> {
    let id = shard.with(|stack, _| {
        let id = stack.listen(address, backlog)?;
        Ok::<_, stack::ListenError>(merging_frags(stack, id))
    })?;
    Ok(Socket::new(shard, id))
}

/// Has a new socket, or the connections of a new listener, deliver frags that touch as one: fewer tokens, and longer ranges.
fn merging_frags(stack: &mut Stack, id: SocketId) -> SocketId {
    let set = stack.set_option(id, SocketOption::MergeFrags(true));
    debug_assert!(set.is_ok(), "{set:?}");
    id
}

/// Queues as much of `data` as the SYN of `id` has room for: nothing if the peer's cookie is not known.
fn fill_syn(stack: &mut Stack, id: SocketId, data: SynData<'_>) -> Result<usize, stack::SendError> {
    let sent = match data {
        SynData::Host([]) => Ok(0),
        SynData::Host(bytes) => stack.sendmsg(id, &SendMsg::new(bytes), MsgFlags::empty()),
        SynData::Device(_, ranges) if ranges.iter().all(|range| range.is_empty()) => Ok(0),
        SynData::Device(dmabuf, ranges) => {
            let zerocopy = stack.set_option(id, SocketOption::Zerocopy(true));
            // Cannot fail: the socket was opened just now.
            debug_assert!(zerocopy.is_ok(), "{zerocopy:?}");
            let control = device_control(dmabuf);
            let message = SendMsg::device(ranges, &control);
            stack.sendmsg(id, &message, MsgFlags::ZEROCOPY)
        }
    };
    match sent {
        Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => Ok(0),
        sent => sent,
    }
}

impl Socket {
    /// Returns the outcome of a connect, `None` while it is in progress. Never waits.
    pub(crate) fn connected_now(&self) -> Option<Result<(), Error>> {
        self.wait(WaitLimit::Never, connect_result).ok()
    }

    /// Waits until the connection is established or TCP gives up.
    pub(crate) fn await_connected(&self, options: &ConnectOptions) -> Result<(), Error> {
        let limit = WaitLimit::within(options.timeout);
        let connected = self.wait(limit, connect_result);
        connected.map_err(|_| Error::no_answer())?
    }
}

/// Returns the outcome of a connect, `None` while it is in progress.
fn connect_result(stack: &mut Stack, id: SocketId) -> Option<Result<(), Error>> {
    let ready = match stack.readiness(id) {
        Ok(ready) => ready,
        Err(error) => return Some(Err(error.into())),
    };
    if ready.contains(Readiness::ERROR) {
        let error = stack.take_error(id).ok().flatten();
        return Some(Err(error.map_or_else(Error::no_answer, Error::ended)));
    }
    ready.contains(Readiness::WRITABLE).then_some(Ok(()))
}

impl Listening {
    fn first(&self) -> &Arc<Socket> {
        &self.sockets[0]
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.first().check()
    }

    /// Returns the listening socket of each shard.
    pub(super) fn sockets(&self) -> &[Arc<Socket>] {
        &self.sockets
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        self.first().assert_real_time()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.first().local_addr()
    }

    /// Changes how many connections may wait to be accepted, on each shard.
    pub(crate) fn set_backlog(&self, backlog: u16) -> io::Result<()> {
        self.change(|stack, id| stack.set_backlog(id, backlog.into()))
    }

    /// Lets `pending` connections at a time be opened by the payload of their SYN alone (RFC 7413); 0: none.
    pub(crate) fn set_fast_open(&self, pending: u16) -> io::Result<()> {
        self.change(|stack, id| {
            stack.change_fast_open(id, |listener| listener.queue_len = Some(pending.into()))
        })
    }

    /// Sets whether payload of a SYN needs a cookie.
    pub(crate) fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        let no_cookie = cookie == EarlyCookie::NotNeeded;
        self.change(|stack, id| {
            stack.change_fast_open(id, |listener| listener.no_cookie = no_cookie)
        })
    }

    /// Sets the congestion control of accepted connections.
    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        for socket in &self.sockets {
            socket.set_congestion(congestion)?;
        }
        Ok(())
    }

    /// Changes the listening socket of each shard.
    fn change(
        &self,
        change: impl Fn(&mut Stack, SocketId) -> Result<(), stack::BadSocket>,
    ) -> io::Result<()> {
        for socket in &self.sockets {
            let changed = socket.with(|stack, id| change(stack, id));
            changed.map_err(Error::from)?;
        }
        Ok(())
    }

    /// Accepts a connection of any shard.
    pub(crate) fn accept(&self, limit: WaitLimit) -> Result<(Arc<Socket>, SocketAddr), Error> {
        if let [only] = &self.sockets[..] {
            return accept_on(only, limit);
        }
        let driver = self.first().shard().driver();
        let started = driver.now();
        loop {
            match self.accept_on_any() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if let Some(reason) = limit.over(started, driver.now()) {
                return Err(Error::no_connection(reason));
            }
            // While this thread sleeps, the background threads of the shards keep the fd up to date.
            let fd = self.readiness_fd().map_err(|error| cannot_wait(&error))?;
            let left = limit.left(started, driver.now());
            sleep_until_readable(&mut [PollFd::new(&fd, PollFlags::IN)], left);
        }
    }

    /// Accepts a connection that is pending on any shard. The shards take turns to be first. An error of one of them is returned if no
    /// other one has a connection.
    fn accept_on_any(&self) -> Result<(Arc<Socket>, SocketAddr), Error> {
        let turn = self.accepts.fetch_add(1, Ordering::Relaxed);
        let mut failed = Error::no_connection(NotReady::WouldBlock);
        for n in 0..self.sockets.len() {
            let socket = &self.sockets[turn.wrapping_add(n) % self.sockets.len()];
            match accept_on(socket, WaitLimit::Never) {
                Ok(accepted) => return Ok(accepted),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Returns the fd that is readable while a connection is pending on any shard.
    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let [only] = &self.sockets[..] {
            return only.readiness_fd();
        }
        if let Some(any) = self.any.get() {
            return Ok(any.as_fd());
        }
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for socket in &self.sockets {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&any, socket.readiness_fd()?, data, epoll::EventFlags::IN)?;
        }
        // Of two threads that come here at once, one drops its own.
        Ok(self.any.get_or_init(|| any).as_fd())
    }
}

/// The fd of all shards cannot be created.
fn cannot_wait(error: &io::Error) -> Error {
    let errno = error.raw_os_error().map_or(Errno::ENOMEM, Errno);
    let reason = format!("cannot wait for connections of several shards: {error}");
    let refusal = Error::new(ErrorKind::of_errno(errno), errno, reason);
    let remedy = "the process may be out of file descriptors: see `ulimit -n`";
    refusal.with_remedy(remedy)
}

/// Accepts a connection on the listening socket of one shard.
fn accept_on(socket: &Socket, limit: WaitLimit) -> Result<(Arc<Socket>, SocketAddr), Error> {
    let (accepted, peer) = socket
        .wait(limit, |stack, id| match stack.accept(id) {
            Err(stack::AcceptError::WouldBlock) => None,
            result => Some(result),
        })
        .map_err(Error::no_connection)??;
    Ok((Socket::new(socket.shard(), accepted), peer))
}
