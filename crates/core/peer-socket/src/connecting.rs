//! Connecting to a listener that may never answer.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::socket::PeerSocket;

/// Time between two attempts while the queue of the listener is full: nothing tells when it has room.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns a socket that refuses descriptors.
pub(crate) fn new_socket(kind: SocketType) -> Result<PeerSocket, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, kind, flags, None).map(PeerSocket::refusing)
}

/// Connects to the listener at `path`. While its queue is full, tries again, for `limit` at most; a limit of 0 never waits. The
/// connection is non-blocking and refuses descriptors, if the kernel can.
///
/// # Errors
/// As connect(2); `TimedOut` if the queue is full all the time, or for a limit of 0 `WouldBlock`.
pub fn connect(path: &Path, kind: SocketType, limit: Duration) -> io::Result<PeerSocket> {
    let address = SocketAddrUnix::new(path)?;
    let start = Instant::now();
    let socket = new_socket(kind)?;
    loop {
        // A blocking connect(2) would wait for room without limit, and again after each signal.
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) if start.elapsed() < limit => {}
            Err(Errno::AGAIN) if limit.is_zero() => return Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::AGAIN) if start.elapsed() < limit => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => {
                let text = "the listener does not accept connections: its queue is full";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl PeerSocket {
    /// Makes calls on the socket wait, or not.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(ioctl_fionbio(self, nonblocking)?)
    }
}
