//! Where peers connect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, sockopt};

use super::readiness::Readiness;
use super::socket::{Socket, family, stream_socket};
use crate::address::Address;

/// Waiting connections of a listener.
const BACKLOG: i32 = 1024;

/// Where peers connect: one port, on all addresses or on some; and on the same machine.
#[derive(Debug)]
pub(super) struct Listening {
    listeners: Vec<TcpListener>,
    port: u16,
    unix: Option<OwnedFd>,
}

impl Listening {
    /// Listens on these addresses, or on all.
    pub(super) fn new(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let mut it = Self {
            listeners: Vec::new(),
            port,
            unix: None,
        };
        for ip in addresses {
            it.add(SocketAddr::new(*ip, it.port))?;
        }
        if addresses.is_empty() {
            // With IPv6, one socket takes both; a kernel without it has IPv4.
            it.add((Ipv6Addr::UNSPECIFIED, it.port).into())
                .or_else(|_| it.add((Ipv4Addr::UNSPECIFIED, it.port).into()))?;
        }
        Ok(it)
    }

    /// Listens for agents of the same machine, too.
    pub(super) fn add_unix(&mut self, cookie: u64) -> io::Result<()> {
        let socket = stream_socket(AddressFamily::UNIX)?;
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

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn watch(&self, readiness: &Readiness, number: u64) -> io::Result<()> {
        let tcp = self.listeners.iter().map(AsFd::as_fd);
        let mut all = tcp.chain(self.unix.iter().map(AsFd::as_fd));
        all.try_for_each(|listener| readiness.add_listener(listener, number))
    }

    /// Takes the next connection. `None`: there is none.
    pub(super) fn accept(&self, timeout: Duration, readiness: &Arc<Readiness>) -> Option<Socket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // A connection that has ended before, or the lack of descriptors: the next turn tries again.
        let unix = self.unix.as_ref();
        let unix = unix.and_then(|listener| rustix::net::accept_with(listener, flags).ok());
        let unix = unix.map(|socket| Socket::new(socket.into(), readiness));
        unix.or_else(|| {
            self.listeners.iter().find_map(|listener| {
                let socket = rustix::net::accept_with(listener, flags).ok()?;
                Socket::of_tcp(socket, timeout, readiness).ok()
            })
        })
    }
}
