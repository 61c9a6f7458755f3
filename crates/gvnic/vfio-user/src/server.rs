//! The server: a listening socket, which serves one client after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use peer_socket::{Descriptors, ListenOptions, PeerSocket, SocketFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};

use crate::bus::Bus;
use crate::connection::{ClientConnection, Disconnect};
use crate::device::Device;
use crate::session::SessionStats;

/// Clients that wait to be accepted; that of std's listeners.
const BACKLOG: i32 = 128;

/// Reason why a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] peer_socket::ListenError),
    /// Interrupts cannot be raised.
    #[error("interrupts cannot be raised: io_setup: {0}")]
    Interrupts(io::Error),
}

/// Event to poll for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Writable.
    Write,
}

/// Event of a call of [`Server::on_ready`], besides messages.
#[derive(Debug)]
pub enum Event {
    /// A client has connected.
    Joined,
    /// A second client tried to connect and was refused.
    Refused,
    /// The client is gone; the device was reset, and the next client may connect.
    Left(Disconnect),
    /// A client could not be accepted for lack of descriptors or memory. Clients wait until
    /// [`Server::listen_again`]; retrying at once would only fail again and again.
    NotAccepted(io::Error),
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Clients that were accepted.
    pub clients: u64,
    /// Clients that were refused because another was connected.
    pub refused_clients: u64,
    /// Clients that were disconnected because of invalid messages.
    pub disconnected_clients: u64,
    /// Counters of the current or last session.
    pub session: SessionStats,
}

/// The server of one device. Dropping it disconnects the client and removes the socket file.
#[derive(Debug)]
pub struct Server {
    listener: Arc<PeerSocket>,
    file: SocketFile,
    client: Option<ClientConnection>,
    /// The last client could not be accepted.
    accept_failed: bool,
    bus: Bus,
    stats: ServerStats,
}

impl Server {
    /// Listens at `path` for clients of `device`. Replaces the socket file of a server that no longer runs.
    ///
    /// Everyone with write permission on the socket file can use the device; the umask applies to the file.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn listen(path: &Path, device: &impl Device) -> Result<Self, ServerError> {
        let bus = Bus::new(device.vectors());
        let bus = bus.map_err(|errno| ServerError::Interrupts(errno.into()))?;
        let options = ListenOptions {
            kind: SocketType::STREAM,
            backlog: BACKLOG,
            descriptors: Descriptors::Taken,
        };
        let (listener, file) = SocketFile::listen(path, options)?;
        Ok(Self {
            listener,
            file,
            client: None,
            accept_failed: false,
            bus,
            stats: ServerStats::default(),
        })
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// True while a client is connected.
    pub fn is_connected(&self) -> bool {
        self.client.is_some()
    }

    /// Returns guest memory and interrupts, for work that no message has triggered.
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

    /// Returns the descriptors to poll: the listening socket, unless accepting has failed, and that of the client, if
    /// there is one.
    pub fn poll_fds(&self) -> (Option<BorrowedFd<'_>>, Option<(BorrowedFd<'_>, Interest)>) {
        let client = self.client.as_ref().map(|client| {
            let interest = match client.wants_to_send() {
                true => Interest::Write,
                false => Interest::Read,
            };
            (client.fd(), interest)
        });
        let listener = (!self.accept_failed).then(|| self.listener.as_fd());
        (listener, client)
    }

    /// Serves waiting messages and connections without blocking. Call it again until neither descriptor is ready.
    pub fn on_ready(&mut self, device: &mut impl Device) -> Option<Event> {
        if let Some(client) = &mut self.client
            && let Err(gone) = client.on_ready(device, &mut self.bus)
        {
            self.disconnect(device);
            self.stats.disconnected_clients +=
                u64::from(matches!(gone, Disconnect::ProtocolViolation(_)));
            return Some(Event::Left(gone));
        }
        if self.accept_failed {
            return None;
        }
        if let Some(client) = &self.client {
            match new_client(&self.listener, client.fd()) {
                NewClient::None => return None,
                // Unread messages of the old client are discarded. The next call accepts the next client.
                NewClient::Next => {
                    self.disconnect(device);
                    return Some(Event::Left(Disconnect::Left));
                }
                NewClient::Second => {}
            }
        }
        let stream = match self.listener.accept(SocketFlags::NONBLOCK) {
            Ok(stream) => stream,
            Err(error) if lacks_resources(&self.listener, error) => {
                self.accept_failed = true;
                return Some(Event::NotAccepted(error.into()));
            }
            Err(_) => return None,
        };
        if self.client.is_some() {
            drop(stream);
            self.stats.refused_clients += 1;
            return Some(Event::Refused);
        }
        self.stats.clients += 1;
        device.reset(&mut self.bus);
        self.client = Some(ClientConnection::new(stream));
        Some(Event::Joined)
    }

    /// Accepts clients again after [`Event::NotAccepted`], if that is possible now.
    pub fn listen_again(&mut self) {
        self.accept_failed = false;
    }

    /// Disconnects the client, if there is one, and resets the device.
    pub fn disconnect(&mut self, device: &mut impl Device) {
        let Some(client) = self.client.take() else {
            return;
        };
        self.stats.session = client.stats();
        // The device first: its reset may still write to guest memory.
        device.reset(&mut self.bus);
        self.bus.clear();
    }
}

/// Returns whether accept(2) on a non-blocking listener failed with `error`, for lack of descriptors or memory, while a
/// connection waits. Without these resources the system call fails before it checks for a connection.
fn lacks_resources(listener: &PeerSocket, error: Errno) -> bool {
    if matches!(error, Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) {
        return false;
    }
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

/// State of the listening socket and the client's socket, checked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewClient {
    /// No connection waits.
    None,
    /// A connection waits, and the current client has disconnected.
    Next,
    /// A connection waits, and the current client is still connected.
    Second,
}

/// Checks whether a connection waits and, after that, whether `client` has disconnected.
///
/// In the other order, a client that disconnects and reconnects in between would be taken for a second client. poll(2)
/// checks descriptors in the order of its array (linux fs/select.c `do_poll`).
fn new_client(listener: &PeerSocket, client: BorrowedFd<'_>) -> NewClient {
    let mut fds = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::from_borrowed_fd(client, PollFlags::empty()),
    ];
    if poll(&mut fds, Some(&Timespec::default())).is_err() {
        return NewClient::None;
    }
    let [listener, client] = fds.map(|fd| fd.revents());
    match (listener.is_empty(), client.contains(PollFlags::HUP)) {
        (true, _) => NewClient::None,
        (false, true) => NewClient::Next,
        (false, false) => NewClient::Second,
    }
}
