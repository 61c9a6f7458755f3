//! The server: a socket in the file system, and one client after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bus::Bus;
use crate::closing::ClientSocket;
use crate::connection::{Connection, Gone};
use crate::device::Device;
use crate::session::SessionStats;
use crate::socket_file::{ListenError, SocketFile, is_shut_out};

/// What a poll loop shall wait for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Until there is something to read.
    Read,
    /// Until there is room to write.
    Write,
}

/// What a call of [`Server::on_ready`] brought beside messages.
#[derive(Debug)]
pub enum Event {
    /// A client is there.
    Joined,
    /// Another client came while one was there, and was sent away.
    SentAway,
    /// The client is gone; the device was reset and the next client may come.
    Left(Gone),
    /// A client could not be let in, for want of descriptors or memory. It and others wait at the door until
    /// [`Server::listen_again`]: asked at once, the system would say the same without end.
    NotAccepted(io::Error),
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Clients that were let in.
    pub clients: u64,
    /// Clients that were sent away because one was there.
    pub sent_away: u64,
    /// Clients that were put out for what they sent.
    pub put_out: u64,
    /// The conversation with this client, or the last one.
    pub session: SessionStats,
}

/// A device's socket. Dropping the server puts the client out and removes the file.
#[derive(Debug)]
pub struct Server {
    listener: ClientSocket<UnixListener>,
    file: SocketFile,
    client: Option<Connection>,
    /// The last client could not be let in.
    deaf: bool,
    bus: Bus,
    stats: ServerStats,
}

impl Server {
    /// Listens at `path` for clients of `device`. A socket that a dead server left there is replaced.
    ///
    /// Whoever may write to the socket's file may be the device's driver: the rights of new files apply.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(path: &Path, device: &impl Device) -> Result<Self, ListenError> {
        let bus = Bus::new(device.vectors());
        let bus = bus.map_err(|errno| ListenError::Interrupts(errno.into()))?;
        let (listener, file) = SocketFile::bind(path, |path| {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        Ok(Self {
            listener: ClientSocket::new(listener),
            file,
            client: None,
            deaf: false,
            bus,
            stats: ServerStats::default(),
        })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// True while a client is there.
    pub fn is_connected(&self) -> bool {
        self.client.is_some()
    }

    /// The guest's memory and interrupts, for what the device does by itself.
    pub fn bus(&mut self) -> &mut Bus {
        &mut self.bus
    }

    /// Returns the counters.
    pub fn stats(&self) -> ServerStats {
        let mut stats = self.stats;
        if let Some(client) = &self.client {
            stats.session = client.stats();
        }
        stats
    }

    /// Returns what to wait for: the listening socket unless nobody can be let in, and the client's if there is one.
    pub fn poll_fds(&self) -> (Option<BorrowedFd<'_>>, Option<(BorrowedFd<'_>, Interest)>) {
        let client = self.client.as_ref().map(|client| {
            let interest = match client.wants_to_send() {
                true => Interest::Write,
                false => Interest::Read,
            };
            (client.fd(), interest)
        });
        let listener = (!self.deaf).then(|| self.listener.get().as_fd());
        (listener, client)
    }

    /// Serves what has come, if something has. Never waits. To be called again until neither descriptor is ready.
    pub fn on_ready(&mut self, device: &mut impl Device) -> Option<Event> {
        if let Some(client) = &mut self.client
            && let Err(gone) = client.on_ready(device, &mut self.bus)
        {
            self.put_out(device);
            self.stats.put_out += u64::from(matches!(gone, Gone::Breach(_)));
            return Some(Event::Left(gone));
        }
        if self.deaf {
            return None;
        }
        if let Some(client) = &self.client {
            match look(self.listener.get(), client.fd()) {
                AtTheDoor::Nobody => return None,
                // It may have sent more before it went, which is of no use to anybody now. The next client is let in by
                // the next call.
                AtTheDoor::Successor => {
                    self.put_out(device);
                    return Some(Event::Left(Gone::Left));
                }
                AtTheDoor::Rival => {}
            }
        }
        let stream = match self.listener.get().accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_shut_out(self.listener.get(), &error) => {
                self.deaf = true;
                return Some(Event::NotAccepted(error));
            }
            Err(_) => return None,
        };
        if self.client.is_some() {
            drop(ClientSocket::new(stream));
            self.stats.sent_away += 1;
            return Some(Event::SentAway);
        }
        if let Err(error) = stream.set_nonblocking(true) {
            return Some(Event::NotAccepted(error));
        }
        self.stats.clients += 1;
        device.reset(&mut self.bus);
        self.client = Some(Connection::new(stream.into()));
        Some(Event::Joined)
    }

    /// Lets clients in again after [`Event::NotAccepted`], if that can be done now.
    pub fn listen_again(&mut self) {
        self.deaf = false;
    }

    /// Ends the conversation with the client that is there, if one is, and resets the device.
    pub fn put_out(&mut self, device: &mut impl Device) {
        let Some(client) = self.client.take() else {
            return;
        };
        self.stats.session = client.stats();
        // The device first: it may still want to write to the guest.
        device.reset(&mut self.bus);
        self.bus.clear();
    }
}

/// What a listening socket and a client's tell when they are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtTheDoor {
    /// No connection waits.
    Nobody,
    /// A connection waits, and the client that is there has closed its end.
    Successor,
    /// A connection waits, and the client is still there.
    Rival,
}

/// Looks whether a connection waits and, after that, whether `client` has hung up.
///
/// Asked in the other order, a client that closes its end and connects again in between would count as a rival of
/// itself. poll(2) looks at descriptors in the order of its array (linux fs/select.c `do_poll`).
fn look(listener: &UnixListener, client: BorrowedFd<'_>) -> AtTheDoor {
    let mut fds = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::from_borrowed_fd(client, PollFlags::empty()),
    ];
    if poll(&mut fds, Some(&Timespec::default())).is_err() {
        return AtTheDoor::Nobody;
    }
    let [listener, client] = fds.map(|fd| fd.revents());
    match (listener.is_empty(), client.contains(PollFlags::HUP)) {
        (true, _) => AtTheDoor::Nobody,
        (false, true) => AtTheDoor::Successor,
        (false, false) => AtTheDoor::Rival,
    }
}
