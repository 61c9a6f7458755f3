//! The kinds of sockets, and what programs wait for at each.

use std::net::IpAddr;

use tcp::TimeWait;
use wire::FourTuple;

use super::connection::ConnectionSocket;
use super::listener::Listener;
use super::readiness::{Pollable, Readiness, Snapshot};

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

    /// Returns what the socket is ready for.
    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Connection(connection) => connection.readiness(),
            Self::Listener(listener) => listener.readiness(),
            Self::TimeWait(_) => Readiness::NONE,
        }
    }

    /// Returns the total number of bytes received in order, or of connections at a listener.
    pub(crate) fn arrivals(&self) -> u64 {
        match self {
            Self::Connection(connection) => connection.delivered(),
            Self::Listener(listener) => listener.accepted_ever(),
            Self::TimeWait(_) => 0,
        }
    }

    /// Returns the total number of entries of the error queue.
    pub(crate) fn error_arrivals(&self) -> u64 {
        match self {
            Self::Connection(connection) => connection.writer.errors.noted(),
            Self::Listener(_) | Self::TimeWait(_) => 0,
        }
    }
}

impl Pollable for SocketKind {
    fn snapshot(&self) -> Option<Snapshot> {
        match self {
            Self::Connection(connection) => connection.snapshot(),
            Self::Listener(listener) => listener.snapshot(),
            Self::TimeWait(_) => None,
        }
    }
}
