//! A connection of the kernel, without waiting.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use peer_socket::PeerSocket;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::Pid;

use super::readiness::Readiness;
use crate::address::Address;
use crate::raw::scatter::Scatter;
use crate::wire::{Ready, Wire};

/// Unanswered probes of a silent connection, after which it is broken.
const PROBES: u32 = 3;

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    readiness: Arc<Readiness>,
    can_read: bool,
    can_write: bool,
}

impl Socket {
    /// Begins to connect.
    pub(super) fn connect(
        target: Address,
        timeout: Duration,
        readiness: &Arc<Readiness>,
    ) -> io::Result<Self> {
        let target = match target {
            Address::Tcp(target) => target,
            Address::Unix(cookie) => {
                let socket = PeerSocket::refusing(stream_socket(AddressFamily::UNIX)?);
                rustix::net::connect(&socket, &Address::unix_name(cookie)?)?;
                return Self::of_unix(socket, readiness);
            }
        };
        let socket = stream_socket(family(target))?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Self::of_tcp(socket, timeout, readiness),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a connection. The standard library's type for TCP reads and writes any stream socket.
    pub(crate) fn new(stream: TcpStream, readiness: &Arc<Readiness>) -> Self {
        Self {
            stream,
            readiness: Arc::clone(readiness),
            can_read: false,
            can_write: false,
        }
    }

    /// Takes a connection on this machine, with a process of the same user. Root could read the memory of all others: a peer of another user
    /// could become a set-user-ID program, or leave its number to somebody else's process, and have this one tell what is there.
    pub(super) fn of_unix(socket: PeerSocket, readiness: &Arc<Readiness>) -> io::Result<Self> {
        if sockopt::socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            let text = "it belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self::new(socket.into_trusted().into(), readiness))
    }

    /// Takes a connection, and lets the kernel find out when its peer is gone.
    pub(super) fn of_tcp(
        socket: OwnedFd,
        timeout: Duration,
        readiness: &Arc<Readiness>,
    ) -> io::Result<Self> {
        let stream = TcpStream::from(socket);
        sockopt::set_tcp_nodelay(&stream, true)?;
        let interval = (timeout / (PROBES + 1)).max(Duration::from_secs(1));
        sockopt::set_tcp_keepidle(&stream, interval)?;
        sockopt::set_tcp_keepintvl(&stream, interval)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
        Ok(Self::new(stream, readiness))
    }
}

impl Wire for Socket {
    fn on_ready(&mut self, ready: Ready) {
        self.can_read |= ready.to_read;
        self.can_write |= ready.to_write;
    }

    fn can_write(&self) -> bool {
        self.can_write
    }

    fn is_connected(&mut self) -> io::Result<bool> {
        if self.can_write {
            sockopt::socket_error(&self.stream)??;
        }
        Ok(self.can_write)
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let room = bytes.len();
        let read = now(self.can_read, || self.stream.read(bytes))?;
        // A later byte, or the end, is a change that is reported.
        self.can_read &= read.is_some_and(|read| read == room || read == 0);
        Ok(read)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = now(self.can_write, || self.stream.write(bytes))?;
        self.can_write &= written.is_some();
        Ok(written)
    }

    fn receive(&mut self, to: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let read = now(self.can_read, || to.receive(self.stream.as_fd(), at_most))?;
        self.can_read &= read.is_some();
        Ok(read)
    }

    fn send(&mut self, from: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let written = now(self.can_write, || from.send(self.stream.as_fd(), at_most))?;
        self.can_write &= written.is_some();
        Ok(written)
    }

    fn end(&self) {
        // The peer may have ended the connection before.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn renumber(&mut self, number: u64) -> io::Result<()> {
        self.readiness.renumber(self.as_fd(), number)
    }

    /// The kernel names the process that was there when the connection was made.
    fn process(&self) -> Option<Pid> {
        let of_peer = sockopt::socket_peercred(&self.stream).ok()?;
        let is_unix = sockopt::socket_domain(&self.stream) == Ok(AddressFamily::UNIX);
        is_unix.then_some(of_peer.pid)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

pub(super) fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

pub(super) fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
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
