//! Waiting for several sockets.

use std::io;
use std::time::Duration;

use super::listening::Listening;
use super::nic::Nic;
use super::socket::Socket;
use crate::driver::WaitLimit;
use crate::error::{Forked, RecvError};
use crate::interest::{Interest, elsewhere};
use crate::{kernel, user};

/// Waits for sockets of a NIC.
#[derive(Debug)]
pub(crate) enum Poller {
    User(user::Poller),
    Kernel(kernel::Poller),
}

/// A socket to wait for. It is not kept open.
#[derive(Clone, Debug)]
pub(crate) enum Watch {
    User(user::Watch),
    Kernel(kernel::Watch),
}

impl Watch {
    pub(crate) fn of_socket(socket: &Socket, interest: Interest) -> Self {
        match socket {
            Socket::User(socket) => Self::User(socket.watch(interest)),
            Socket::Kernel(socket) => Self::Kernel(socket.watch(interest)),
        }
    }

    pub(crate) fn of_listening(listening: &Listening) -> Self {
        match listening {
            Listening::User(listening) => Self::User(listening.watch()),
            Listening::Kernel(listening) => Self::Kernel(listening.watch()),
        }
    }

    /// Waits for so many bytes; without effect on a NIC in user space.
    pub(crate) fn at_least(&mut self, bytes: usize) {
        if let Self::Kernel(watch) = self {
            watch.at_least(bytes);
        }
    }

    fn user(&self) -> Option<&user::Watch> {
        match self {
            Self::User(watch) => Some(watch),
            Self::Kernel(_) => None,
        }
    }

    fn kernel(&self) -> Option<&kernel::Watch> {
        match self {
            Self::User(_) => None,
            Self::Kernel(watch) => Some(watch),
        }
    }
}

impl Poller {
    pub(crate) fn new(nic: &Nic) -> io::Result<Self> {
        Ok(match nic {
            Nic::User(nic) => Self::User(nic.poller()?),
            Nic::Kernel(nic) => Self::Kernel(nic.poller()?),
        })
    }

    fn here(&self) -> Result<&Self, Forked> {
        each!(self, poller => poller.check())?;
        Ok(self)
    }

    /// Makes each wait that finds nothing sleep for `rest` once before it looks again; without effect on a NIC of the kernel.
    pub(crate) fn rest(&mut self, rest: Duration) {
        if let Self::User(poller) = self {
            poller.rest(rest);
        }
    }

    pub(crate) fn wait<'a>(
        &self,
        watches: impl Iterator<Item = &'a Watch> + Clone,
        at_most: Duration,
    ) -> io::Result<bool> {
        match self.here()? {
            Self::User(poller) => poller.wait(watches.map(Watch::user), at_most),
            Self::Kernel(poller) => poller.wait(watches.filter_map(Watch::kernel), at_most),
        }
    }

    /// As [`wait`](Self::wait), and reads what arrives on `socket`: bytes in host memory.
    pub(crate) fn wait_read<'a>(
        &self,
        socket: &Socket,
        out: &mut [u8],
        watches: impl Iterator<Item = &'a Watch> + Clone,
        at_most: Duration,
    ) -> io::Result<Option<usize>> {
        match (self.here()?, socket) {
            (Self::User(poller), Socket::User(socket)) => {
                poller.wait_read(socket, out, watches.map(Watch::user), at_most)
            }
            (Self::Kernel(poller), Socket::Kernel(socket)) => {
                let arrival = socket.watch(Interest::Receive);
                let others: Vec<_> = watches.filter_map(Watch::kernel).collect();
                if !poller.wait(std::iter::once(&arrival).chain(others), at_most)? {
                    return Ok(None);
                }
                match socket.read(out, WaitLimit::Never) {
                    Err(RecvError::WouldBlock) => Ok(None),
                    read => Ok(read?),
                }
            }
            _ => Err(elsewhere().into()),
        }
    }

    pub(crate) fn wake(&self) {
        if let Ok(poller) = self.here() {
            each!(poller, poller => poller.wake());
        }
    }

    pub(crate) fn add(&self, key: u64, watch: &Watch) -> io::Result<()> {
        match (self.here()?, watch) {
            (Self::User(poller), Watch::User(watch)) => poller.add(key, watch),
            (Self::Kernel(poller), Watch::Kernel(watch)) => poller.add(key, watch),
            _ => Err(elsewhere().into()),
        }
    }

    pub(crate) fn remove(&self, key: u64) {
        if let Ok(poller) = self.here() {
            each!(poller, poller => poller.remove(key));
        }
    }

    pub(crate) fn wait_ready(&self, keys: &mut Vec<u64>, at_most: Duration) -> io::Result<()> {
        each!(self.here()?, poller => poller.wait_ready(keys, at_most))
    }
}
