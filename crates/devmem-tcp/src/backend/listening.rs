//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::socket::Socket;
use crate::congestion::Congestion;
use crate::driver::WaitLimit;
use crate::error::{Error, Forked};
use crate::syn_data::EarlyCookie;
use crate::{kernel, user};

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listening {
    User(user::Listening),
    Kernel(Arc<kernel::Listening>),
}

impl Listening {
    /// Returns this socket; fails in a child of fork(2) of the process that opened the NIC.
    fn here(&self) -> Result<&Self, Forked> {
        each!(self, listening => listening.check())?;
        Ok(self)
    }

    /// Fails in virtual time.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match self.here()? {
            Self::User(listening) => listening.assert_real_time(),
            Self::Kernel(_) => Ok(()),
        }
    }

    pub(crate) fn accept(&self, limit: WaitLimit) -> Result<(Socket, SocketAddr), Error> {
        each!(self.here()?, listening => {
            let (socket, peer) = listening.accept(limit)?;
            Ok((socket.into(), peer))
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        each!(self.here()?, listening => listening.local_addr())
    }

    pub(crate) fn set_backlog(&self, connections: u16) -> io::Result<()> {
        each!(self.here()?, listening => listening.set_backlog(connections))
    }

    pub(crate) fn set_fast_open(&self, pending: u16) -> io::Result<()> {
        each!(self.here()?, listening => listening.set_fast_open(pending))
    }

    pub(crate) fn set_early_cookie(&self, cookie: EarlyCookie) -> io::Result<()> {
        each!(self.here()?, listening => listening.set_early_cookie(cookie))
    }

    pub(crate) fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        each!(self.here()?, listening => listening.set_congestion(congestion))
    }

    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self.here()? {
            Self::User(listening) => listening.readiness_fd(),
            Self::Kernel(listening) => Ok(listening.fd()),
        }
    }
}
