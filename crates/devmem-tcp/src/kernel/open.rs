//! Listening and connecting.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_linux::errors::Operation;
use devmem_linux::socket::bind_to_device;
use devmem_uapi::Errno;
use rustix::event::PollFlags;
use rustix::io::Errno as RawErrno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname,
    listen, sendto, socket_with, sockopt,
};

use super::nic::Nic;
use super::socket::{Socket, end_of_connection, refused};
use super::wait::Deadline;
use crate::congestion::Congestion;
use crate::connect::ConnectOptions;
use crate::driver::WaitLimit;
use crate::error::{Error, ErrorKind, Forked};
use crate::syn_data::{EarlyCookie, SynData};

/// Descriptors are non-blocking: calls wait in poll(2), within the limit of their stream.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Flag of sendto(2): connects, with the bytes in the SYN (linux include/linux/socket.h).
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Bit of `net.ipv4.tcp_fastopen` that allows listeners Fast Open.
const SERVER_MODE: u32 = 2;

/// A listening socket of the kernel.
#[derive(Debug)]
pub(crate) struct Listening {
    fd: OwnedFd,
    nic: Arc<Nic>,
}

impl Nic {
    /// Listens on `address`, not only on this interface, because its addresses may belong to a bond or a VLAN above it.
    pub(crate) fn listen(
        self: &Arc<Self>,
        address: SocketAddr,
        backlog: usize,
    ) -> Result<Arc<Listening>, Error> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        let open = || {
            let fd = tcp_socket(address.ip())?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            bind(&fd, &address)?;
            listen(&fd, backlog)?;
            Ok(fd)
        };
        let opened: Result<OwnedFd, RawErrno> = open();
        let fd = opened.map_err(|errno| match Errno(errno.raw_os_error()) {
            Errno::EADDRINUSE => stack::ListenError::AddrInUse(address).into(),
            Errno::EADDRNOTAVAIL => stack::ListenError::AddrNotAvailable(address.ip()).into(),
            errno => refused(self, "listen", Operation::Socket, errno),
        })?;
        Ok(Arc::new(Listening {
            fd,
            nic: Arc::clone(self),
        }))
    }

    /// Begins to connect through the interface.
    pub(crate) fn begin_connect(
        self: &Arc<Self>,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Socket>, Error> {
        let fd = unconnected(self, address, options)?;
        match connect(&fd, &address) {
            // An interrupted connect continues in the background (connect(2)).
            Ok(()) | Err(RawErrno::INPROGRESS | RawErrno::INTR) => Ok(Socket::new(fd, self)),
            Err(errno) => Err(connect_error(self, errno)),
        }
    }

    /// Begins to connect with `data` in the SYN, as many bytes as fit (RFC 7413); returns their number. None of device memory: the
    /// kernel copies the payload of a SYN.
    pub(crate) fn begin_with_data(
        self: &Arc<Self>,
        address: SocketAddr,
        options: &ConnectOptions,
        data: SynData<'_>,
    ) -> Result<(Arc<Socket>, usize), Error> {
        let SynData::Host(bytes) = data else {
            return Ok((self.begin_connect(address, options)?, 0));
        };
        let fd = unconnected(self, address, options)?;
        if options.cookie == EarlyCookie::NotNeeded {
            set_early_cookie(self, fd.as_fd(), options.cookie)?;
        }
        let flags =
            SendFlags::from_bits_retain(MSG_FASTOPEN) | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let taken = match sendto(&fd, bytes, flags, &address) {
            Ok(taken) => taken,
            // The SYN asks for a cookie.
            Err(RawErrno::INPROGRESS | RawErrno::INTR) => 0,
            Err(RawErrno::OPNOTSUPP) => return Err(no_fast_open(self)),
            Err(errno) => return Err(connect_error(self, errno)),
        };
        Ok((Socket::new(fd, self), taken))
    }
}

impl Listening {
    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.nic.check()
    }

    pub(crate) fn accept(&self, limit: WaitLimit) -> Result<(Arc<Socket>, SocketAddr), Error> {
        let deadline = Deadline::of(limit);
        loop {
            match acceptfrom_with(&self.fd, FLAGS) {
                Ok((fd, peer)) => {
                    let socket = Socket::new(fd, &self.nic);
                    // The peer of an accepted connection has an address of the listener's family.
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    if let Some(peer) = peer.or_else(|| socket.peer_addr().ok()) {
                        return Ok((socket, peer));
                    }
                }
                Err(RawErrno::AGAIN) => {
                    deadline
                        .wait(self.fd.as_fd(), PollFlags::IN)
                        .map_err(Error::no_connection)?;
                }
                Err(errno) if concerns_one_connection(errno) => {}
                Err(errno) => {
                    let errno = Errno(errno.raw_os_error());
                    let refused = refused(&self.nic, "accept", Operation::Socket, errno);
                    return Err(refused);
                }
            }
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(getsockname(&self.fd)?)?)
    }

    /// Changes how many connections may wait to be accepted; Linux allows that on a listening socket.
    pub(crate) fn set_backlog(&self, backlog: u16) -> io::Result<()> {
        Ok(listen(&self.fd, backlog.into())?)
    }

    /// Lets `pending` connections at a time be opened by the payload of their SYN alone (RFC 7413); 0: none.
    pub(crate) fn set_fast_open(&self, pending: u16) -> io::Result<()> {
        if pending > 0 && server_modes().is_none_or(|modes| modes & SERVER_MODE == 0) {
            return Err(no_fast_open(&self.nic).into());
        }
        devmem_linux::socket::set_fast_open(self.fd.as_fd(), pending)
            .map_err(|errno| refused(&self.nic, "TCP_FASTOPEN", Operation::Socket, errno).into())
    }

    /// Sets the congestion control of accepted connections.
    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        Ok(set_congestion(&self.nic, self.fd.as_fd(), congestion)?)
    }

    /// Sets whether payload of a SYN needs a cookie.
    pub(crate) fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        Ok(set_early_cookie(&self.nic, self.fd.as_fd(), cookie)?)
    }

    /// Returns the socket itself.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the modes of TCP Fast Open that the kernel allows in this network namespace.
fn server_modes() -> Option<u32> {
    let modes = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").ok()?;
    modes.trim().parse().ok()
}

/// Sets TCP_FASTOPEN_NO_COOKIE.
fn set_early_cookie(nic: &Nic, fd: BorrowedFd<'_>, cookie: EarlyCookie) -> Result<(), Error> {
    let set = match cookie {
        EarlyCookie::Needed => devmem_linux::socket::demand_fast_open_cookie(fd),
        EarlyCookie::NotNeeded => devmem_linux::socket::allow_fast_open_without_cookie(fd),
    };
    set.map_err(|errno| refused(nic, "TCP_FASTOPEN_NO_COOKIE", Operation::Socket, errno))
}

/// The kernel's settings forbid TCP Fast Open.
fn no_fast_open(nic: &Nic) -> Error {
    let name = nic.name();
    Error::new(
        ErrorKind::Unsupported,
        Errno::EOPNOTSUPP,
        format!("TCP Fast Open on {name} is switched off: net.ipv4.tcp_fastopen"),
    )
    .with_remedy("switch it on for both sides: sysctl -w net.ipv4.tcp_fastopen=3")
}

/// Returns whether an error concerns only one connection, which ended before it was accepted (accept(2)).
fn concerns_one_connection(errno: RawErrno) -> bool {
    matches!(
        errno,
        RawErrno::INTR
            | RawErrno::CONNABORTED
            | RawErrno::NETDOWN
            | RawErrno::PROTO
            | RawErrno::NOPROTOOPT
            | RawErrno::HOSTDOWN
            | RawErrno::NONET
            | RawErrno::HOSTUNREACH
            | RawErrno::OPNOTSUPP
            | RawErrno::NETUNREACH
    )
}

impl Socket {
    /// Waits until the connection is established or TCP gives up.
    pub(crate) fn await_connected(&self, options: &ConnectOptions) -> Result<(), Error> {
        let deadline = Deadline::of(WaitLimit::within(options.timeout));
        let waited = deadline.wait(self.fd(), PollFlags::OUT);
        waited.map_err(|_| Error::no_answer())?;
        self.connect_result()
    }

    /// Returns the outcome of a completed connect.
    fn connect_result(&self) -> Result<(), Error> {
        match sockopt::socket_error(&self.ledger.fd) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) | Err(errno) => Err(connect_error(&self.nic, errno)),
        }
    }

    /// Returns the outcome of a connect, `None` while it is in progress.
    pub(crate) fn connected_now(&self) -> Option<Result<(), Error>> {
        use rustix::event::{PollFd, Timespec, poll};
        let mut fds = [PollFd::new(&self.ledger.fd, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match poll(&mut fds, Some(&at_once)) {
            Ok(ready) if ready > 0 => Some(self.connect_result()),
            _ => None,
        }
    }
}

/// Returns a socket that connects through the interface.
fn unconnected(nic: &Nic, address: SocketAddr, options: &ConnectOptions) -> Result<OwnedFd, Error> {
    let ended = |errno| connect_error(nic, errno);
    let fd = tcp_socket(address.ip()).map_err(ended)?;
    // Device memory can be sent only through the interface that it is bound to.
    match bind_to_device(fd.as_fd(), nic.name()) {
        // Before Linux 5.7 this needed CAP_NET_RAW; the route may use the interface anyway.
        Ok(()) | Err(Errno::EPERM) => {}
        Err(errno) => {
            let refused = refused(nic, "connect", Operation::Socket, errno);
            return Err(refused);
        }
    }
    if let Some(congestion) = options.congestion {
        set_congestion(nic, fd.as_fd(), congestion)?;
    }
    if let Some(source) = options.source {
        bind(&fd, &source).map_err(ended)?;
    }
    Ok(fd)
}

fn set_congestion(nic: &Nic, fd: BorrowedFd<'_>, congestion: Congestion) -> Result<(), Error> {
    sockopt::set_tcp_congestion(fd, congestion.name()).map_err(|errno| {
        let errno = Errno(errno.raw_os_error());
        refused(nic, "TCP_CONGESTION", Operation::Socket, errno)
    })
}

fn connect_error(nic: &Nic, errno: RawErrno) -> Error {
    let errno = Errno(errno.raw_os_error());
    match end_of_connection(errno) {
        Some(end) => Error::ended(end),
        None => refused(nic, "connect", Operation::Socket, errno),
    }
}

fn tcp_socket(ip: IpAddr) -> Result<OwnedFd, RawErrno> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    socket_with(family, SocketType::STREAM, FLAGS, None)
}
