//! The way `sockets`: TCP of the kernel, without waiting.
//!
//! Readiness is edge-triggered: a socket counts as ready until a call has found that it is not, so a connection whose bytes nobody expects
//! yet wakes nobody, and no call to the kernel changes what is watched.

use std::io::{self, Read, Write};
use std::iter;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use peer_socket::PeerSocket;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::Pid;
use rustix::time::Timespec;

use crate::address::Address;
use crate::ffi::scatter::Scatter;
use crate::settings::Settings;

/// Waiting connections of a listener.
const BACKLOG: i32 = 1024;
/// Connections of other users on this machine that are sent away in one turn.
const STRANGERS: usize = 16;

/// Unanswered probes of a silent connection, after which it is broken.
const PROBES: u32 = 3;

/// What the kernel says of many sockets.
#[derive(Debug)]
pub(crate) struct Readiness(OwnedFd);

/// A socket that is ready for something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The number that it was added with.
    pub(crate) number: u64,
    pub(crate) to_read: bool,
    pub(crate) to_write: bool,
}

impl Readiness {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches a socket. Its readiness is reported as it is now, and at each change.
    pub(crate) fn add(&self, socket: &Socket, number: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            socket.as_fd(),
            EventData::new_u64(number),
            edges(),
        )?)
    }

    /// Gives a socket another number.
    pub(crate) fn renumber(&self, socket: &Socket, number: u64) -> io::Result<()> {
        Ok(epoll::modify(
            &self.0,
            socket.as_fd(),
            EventData::new_u64(number),
            edges(),
        )?)
    }

    /// Watches a listener, as long as connections wait.
    pub(crate) fn add_listener(&self, listener: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            listener,
            EventData::new_u64(number),
            EventFlags::IN,
        )?)
    }

    /// Adds to `ready` what has changed since the last call.
    pub(crate) fn collect(&self, ready: &mut Vec<Ready>) -> io::Result<()> {
        const NOW: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let count = match epoll::wait(&self.0, &mut events, Some(&NOW)) {
            Err(rustix::io::Errno::INTR) => 0,
            count => count?,
        };
        let failed = EventFlags::ERR | EventFlags::HUP;
        ready.extend(events[..count].iter().map(|event| {
            let flags = event.flags;
            Ready {
                number: event.data.u64(),
                to_read: flags.intersects(EventFlags::IN | EventFlags::RDHUP | failed),
                to_write: flags.intersects(EventFlags::OUT | failed),
            }
        }));
        Ok(())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn edges() -> EventFlags {
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    can_read: bool,
    can_write: bool,
}

impl Socket {
    /// Begins to connect.
    pub(crate) fn connect(target: Address, timeout: Duration) -> io::Result<Self> {
        let target = match target {
            Address::Tcp(target) => target,
            Address::Unix(cookie) => {
                let socket = PeerSocket::refusing(stream_socket(AddressFamily::UNIX)?);
                rustix::net::connect(&socket, &Address::unix_name(cookie)?)?;
                return Self::of_unix(socket);
            }
        };
        let socket = stream_socket(family(target))?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Self::of_tcp(socket, timeout),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a connection on this machine, with a process of the same user. Root could read the memory of all others: a peer of another user
    /// could become a set-user-ID program, or leave its number to somebody else's process, and have this one tell what is there.
    fn of_unix(socket: PeerSocket) -> io::Result<Self> {
        if sockopt::socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            let text = "it belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self {
            // The standard library's type for TCP reads and writes any stream socket.
            stream: TcpStream::from(socket.into_trusted()),
            can_read: false,
            can_write: false,
        })
    }

    /// Returns the process at the other end, if the kernel knows it: it was there when the connection was made.
    pub(crate) fn process(&self) -> Option<Pid> {
        let of_peer = sockopt::socket_peercred(&self.stream).ok()?;
        let is_unix = sockopt::socket_domain(&self.stream) == Ok(AddressFamily::UNIX);
        is_unix.then_some(of_peer.pid)
    }

    /// Takes a connection, and lets the kernel find out when its peer is gone.
    fn of_tcp(socket: OwnedFd, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::from(socket);
        sockopt::set_tcp_nodelay(&stream, true)?;
        let interval = (timeout / (PROBES + 1)).max(Duration::from_secs(1));
        sockopt::set_tcp_keepidle(&stream, interval)?;
        sockopt::set_tcp_keepintvl(&stream, interval)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
        Ok(Self {
            stream,
            can_read: false,
            can_write: false,
        })
    }

    /// Takes a connection that counts as ready.
    #[cfg(feature = "test-util")]
    pub(crate) fn ready(stream: TcpStream) -> Self {
        Self {
            stream,
            can_read: true,
            can_write: true,
        }
    }

    /// From now on the socket counts as ready, until a call finds that it is not.
    #[cfg(feature = "test-util")]
    pub(crate) fn assume_ready(&mut self) {
        (self.can_read, self.can_write) = (true, true);
    }

    pub(crate) fn on_ready(&mut self, ready: Ready) {
        self.can_read |= ready.to_read;
        self.can_write |= ready.to_write;
    }

    pub(crate) fn can_write(&self) -> bool {
        self.can_write
    }

    /// Returns whether the connection is there; an error if the attempt has failed.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        if self.can_write {
            sockopt::socket_error(&self.stream)??;
        }
        Ok(self.can_write)
    }

    /// Reads what is there. `None`: nothing yet. 0: the peer has ended its direction.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let room = bytes.len();
        let read = now(self.can_read, || self.stream.read(bytes))?;
        // A later byte, or the end, is a change that is reported.
        self.can_read &= read.is_some_and(|read| read == room || read == 0);
        Ok(read)
    }

    /// Writes what there is room for. `None`: there is none yet.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = now(self.can_write, || self.stream.write(bytes))?;
        self.can_write &= written.is_some();
        Ok(written)
    }

    /// As [`read`](Self::read), straight into registered memory.
    pub(crate) fn receive(
        &mut self,
        to: &mut Scatter,
        at_most: usize,
    ) -> io::Result<Option<usize>> {
        let read = now(self.can_read, || to.receive(self.stream.as_fd(), at_most))?;
        self.can_read &= read.is_some();
        Ok(read)
    }

    /// As [`write`](Self::write), straight from registered memory.
    pub(crate) fn send(&mut self, from: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let written = now(self.can_write, || from.send(self.stream.as_fd(), at_most))?;
        self.can_write &= written.is_some();
        Ok(written)
    }

    /// Ends this direction, after what was written.
    pub(crate) fn end(&self) {
        // The peer may have ended the connection before.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Calls, if the socket counts as ready, until the call is not interrupted.
fn now(is_ready: bool, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    if !is_ready {
        return Ok(None);
    }
    loop {
        match call() {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Where peers connect: one port, on all addresses or on some; and on the same machine.
#[derive(Debug)]
pub(crate) struct Listening {
    listeners: Vec<TcpListener>,
    port: u16,
    unix: Option<PeerSocket>,
}

impl Listening {
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let mut it = Self {
            listeners: Vec::new(),
            port: settings.port,
            unix: None,
        };
        for ip in &settings.addresses {
            it.add(SocketAddr::new(*ip, it.port))?;
        }
        if settings.addresses.is_empty() {
            // With IPv6, one socket takes both; a kernel without it has IPv4.
            it.add((Ipv6Addr::UNSPECIFIED, it.port).into())
                .or_else(|_| it.add((Ipv4Addr::UNSPECIFIED, it.port).into()))?;
        }
        Ok(it)
    }

    /// Listens for agents of the same machine, too.
    pub(crate) fn add_unix(&mut self, cookie: u64) -> io::Result<()> {
        let socket = PeerSocket::refusing(stream_socket(AddressFamily::UNIX)?);
        rustix::net::bind(&socket, &Address::unix_name(cookie)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        self.unix = Some(socket);
        Ok(())
    }

    fn add(&mut self, at: SocketAddr) -> io::Result<()> {
        let socket = stream_socket(family(at))?;
        if at.ip() == Ipv6Addr::UNSPECIFIED {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        if at.port() != 0 {
            // A port that was chosen is taken again after a restart.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        rustix::net::bind(&socket, &at)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = TcpListener::from(socket);
        self.port = listener.local_addr()?.port();
        self.listeners.push(listener);
        Ok(())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn watch(&self, readiness: &Readiness, number: u64) -> io::Result<()> {
        let tcp = self.listeners.iter().map(AsFd::as_fd);
        let mut all = tcp.chain(self.unix.iter().map(AsFd::as_fd));
        all.try_for_each(|listener| readiness.add_listener(listener, number))
    }

    /// Takes the next connection. `None`: there is none.
    pub(crate) fn accept(&self, timeout: Duration) -> Option<Socket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // A connection that has ended before, or the lack of descriptors: the next turn tries again.
        let unix = self.unix.as_ref();
        let unix = iter::from_fn(|| unix?.accept(flags).ok());
        let mut unix = unix.take(STRANGERS);
        unix.find_map(|socket| Socket::of_unix(socket).ok())
            .or_else(|| {
                self.listeners.iter().find_map(|listener| {
                    let socket = rustix::net::accept_with(listener, flags).ok()?;
                    Socket::of_tcp(socket, timeout).ok()
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::process::{Uid, geteuid};
    use rustix::thread::set_thread_res_uid;

    use super::*;

    /// Runs a function as another user. The user of a thread is its own.
    fn as_nobody<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            run()
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    fn listening(cookie: u64) -> Listening {
        let settings = Settings {
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            ..Settings::default()
        };
        let mut it = Listening::new(&settings).unwrap();
        it.add_unix(cookie).unwrap();
        it
    }

    #[test]
    fn processes_of_other_users_are_no_peers_on_one_machine() {
        if !geteuid().is_root() {
            eprintln!("SKIP: becoming another user needs root");
            return;
        }
        let limit = Duration::from_secs(1);
        let cookie = u64::from(std::process::id()) << 32;
        let at = |cookie| Address::Unix(cookie);
        let ours = listening(cookie);
        let refused = as_nobody(|| Socket::connect(at(cookie), limit)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(ours.accept(limit).is_none());
        // Those of others do not keep ours from being seen.
        let _ = as_nobody(|| Socket::connect(at(cookie), limit));
        let _connected = Socket::connect(at(cookie), limit).unwrap();
        assert!(ours.accept(limit).is_some());

        let theirs = as_nobody(|| listening(cookie + 1));
        let refused = Socket::connect(at(cookie + 1), limit).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        drop(theirs);
    }
}
