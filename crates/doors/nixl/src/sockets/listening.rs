//! Where peers connect.

use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use peer_socket::PeerSocket;
use rustix::net::{AddressFamily, SocketFlags, sockopt};

use super::readiness::Readiness;
use super::socket::{Socket, family, stream_socket};
use crate::address::Address;

/// Waiting connections of a listener.
const BACKLOG: i32 = 1024;
/// Connections of other users on this machine that are sent away in one turn.
const STRANGERS: usize = 16;

/// Where peers connect: one port, on all addresses or on some; and on the same machine.
#[derive(Debug)]
pub(super) struct Listening {
    listeners: Vec<TcpListener>,
    port: u16,
    unix: Option<PeerSocket>,
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
        let unix = iter::from_fn(|| unix?.accept(flags).ok());
        let mut unix = unix.take(STRANGERS);
        unix.find_map(|socket| Socket::of_unix(socket, readiness).ok())
            .or_else(|| {
                self.listeners.iter().find_map(|listener| {
                    let socket = rustix::net::accept_with(listener, flags).ok()?;
                    Socket::of_tcp(socket, timeout, readiness).ok()
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
        let mut it = Listening::new(&[Ipv4Addr::LOCALHOST.into()], 0).unwrap();
        it.add_unix(cookie).unwrap();
        it
    }

    #[test]
    fn processes_of_other_users_are_no_peers_on_one_machine() {
        if !geteuid().is_root() {
            eprintln!("SKIP: becoming another user needs root");
            return;
        }
        let readiness = Arc::new(Readiness::new().unwrap());
        let connect =
            |cookie| Socket::connect(Address::Unix(cookie), Duration::from_secs(1), &readiness);
        let accept = |from: &Listening| from.accept(Duration::from_secs(1), &readiness);
        let cookie = u64::from(std::process::id()) << 32;
        let ours = listening(cookie);
        let refused = as_nobody(|| connect(cookie)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(accept(&ours).is_none());
        // Those of others do not keep ours from being seen.
        let _ = as_nobody(|| connect(cookie));
        let _connected = connect(cookie).unwrap();
        assert!(accept(&ours).is_some());

        let theirs = as_nobody(|| listening(cookie + 1));
        let refused = connect(cookie + 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        drop(theirs);
    }
}
