//! The fd for programs that never wait in a call: when a send can be repeated, or a connection attempt is over.
//!
//! It is separate from the readiness fd: a connection is nearly always writable, so that fd would always be readable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Weak;

use crate::backend::Socket;
use crate::signals::TaskSignal;
use crate::user;

/// An fd that tells a program, which never blocks in a call, when it can repeat a send that found the queue full, from
/// [`SendHalf::send_signal`](crate::SendHalf::send_signal); or when a connection attempt is over, from
/// [`Connecting::signal`](crate::Connecting::signal).
///
/// The program calls [`arm`](Self::arm) before each attempt, and waits for the fd if the attempt would block. Register the fd
/// for edges (EPOLLIN and EPOLLET): each one is an event, also while the fd is readable, and nothing has to be read. An
/// event can be spurious.
///
/// ```
/// use devmem_tcp::Netdev;
/// use std::io::Write;
///
/// let (a, b) = Netdev::pair("seed=1".parse()?)?;
/// let listener = b.listen("10.77.0.2:5201")?;
/// let mut stream = a.connect("10.77.0.2:5201")?;
/// stream.set_nonblocking(true);
/// let signal = stream.send_signal()?;
/// signal.arm();
/// assert_eq!(stream.write(b"there is room")?, 13);              // or WouldBlock: wait for the next edge of `signal`
/// # drop(listener);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It does not keep the connection open: after its end it has no edges any more.
#[derive(Debug)]
pub struct SendSignal {
    /// The socket in user space, which arms the signal; none with a NIC of the kernel.
    socket: Weak<user::Socket>,
    fd: OwnedFd,
}

impl SendSignal {
    pub(crate) fn of(socket: &Socket) -> io::Result<Self> {
        Ok(Self {
            fd: socket.task_signal(TaskSignal::Send)?,
            socket: socket.armed(),
        })
    }

    /// Arms the signal for one event. Does nothing in a child of fork(2).
    pub fn arm(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.arm(TaskSignal::Send);
        }
    }
}

impl AsFd for SendSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for SendSignal {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
