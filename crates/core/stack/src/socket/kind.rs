//! The kinds of sockets.

use std::net::IpAddr;

use tcp::TimeWait;
use wire::FourTuple;

use super::connection::ConnectionSocket;
use super::listener::Listener;

/// A socket.
#[derive(Debug)]
pub(crate) enum SocketKind {
    Connection(Box<ConnectionSocket>),
    Listener(Box<Listener>),
    /// A closed connection in TIME-WAIT. No program has its id.
    TimeWait(Box<TimeWaitSocket>),
}

/// A connection in TIME-WAIT without a program.
#[derive(Debug)]
pub(crate) struct TimeWaitSocket {
    pub(crate) state: TimeWait,
    pub(crate) tuple: FourTuple,
    pub(crate) next_hop: IpAddr,
}

impl SocketKind {
    /// Returns the connection, if it is one.
    pub(crate) fn connection(&self) -> Option<&ConnectionSocket> {
        match self {
            Self::Connection(connection) => Some(connection),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    /// As [`SocketKind::connection`], to change it.
    pub(super) fn connection_mut(&mut self) -> Option<&mut ConnectionSocket> {
        match self {
            Self::Connection(connection) => Some(connection),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    /// Returns the listener, if it is one.
    pub(crate) fn listener(&self) -> Option<&Listener> {
        match self {
            Self::Listener(listener) => Some(listener),
            Self::Connection(_) | Self::TimeWait(_) => None,
        }
    }

    /// As [`SocketKind::listener`], to change it.
    pub(super) fn listener_mut(&mut self) -> Option<&mut Listener> {
        match self {
            Self::Listener(listener) => Some(listener),
            Self::Connection(_) | Self::TimeWait(_) => None,
        }
    }
}
