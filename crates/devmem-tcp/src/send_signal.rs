//! Eventfds that signal to tasks that a send can be retried.
//!
//! They are separate from the readiness fd: a connection is nearly always writable, so that fd would always be readable. A
//! send signal fires once after it was armed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use stack::{Readiness, SocketId, Stack};

use crate::driver::{StackIndex, set};
use crate::socket::{Inner, Socket};

/// The readiness after which a send can be retried: it succeeds, or fails permanently.
const SENDABLE: Readiness = Readiness::WRITABLE
    .union(Readiness::WRITE_CLOSED)
    .union(Readiness::ERROR);

struct Entry {
    fd: Arc<OwnedFd>,
    armed: bool,
}

/// The send signals of a driver's sockets, for sockets that requested one.
#[derive(Default)]
pub(crate) struct SendSignals {
    signals: HashMap<(StackIndex, SocketId), Entry>,
    /// Number of armed signals.
    armed: usize,
}

impl SendSignals {
    /// Returns the eventfd that becomes readable when a send of the socket can be retried; it is readable at first.
    pub(crate) fn fd(&mut self, of: (StackIndex, SocketId)) -> rustix::io::Result<Arc<OwnedFd>> {
        if let Some(signal) = self.signals.get(&of) {
            return Ok(Arc::clone(&signal.fd));
        }
        let fd = Arc::new(eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let signal = Entry {
            fd: Arc::clone(&fd),
            armed: false,
        };
        self.signals.insert(of, signal);
        Ok(fd)
    }

    /// Arms the signal for one event. Must be called before the send attempt, so that no event is missed in between.
    pub(crate) fn arm(&mut self, of: (StackIndex, SocketId)) {
        if let Some(signal) = self.signals.get_mut(&of) {
            self.armed += usize::from(!signal.armed);
            signal.armed = true;
        }
    }

    /// Fires the armed signals of sockets that have room or have ended. Must be called after every change that may have made
    /// room.
    ///
    /// A socket may be writable and still lack memory, which all sockets share: its signal then fires after every call and
    /// every poll that had work.
    pub(crate) fn tell(&mut self, stacks: &[Stack]) {
        if self.armed == 0 {
            return;
        }
        for (&(at, socket), signal) in self.signals.iter_mut().filter(|(_, signal)| signal.armed) {
            let ready = stacks[at.0].readiness(socket);
            if ready.is_ok_and(|ready| ready.intersects(SENDABLE)) {
                signal.armed = false;
                self.armed -= 1;
                set(signal.fd.as_fd());
            }
        }
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, of: (StackIndex, SocketId)) {
        if let Some(signal) = self.signals.remove(&of) {
            self.armed -= usize::from(signal.armed);
        }
    }
}

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
    socket: Weak<Inner>,
    fd: Arc<OwnedFd>,
}

impl SendSignal {
    pub(crate) fn of(socket: &Socket) -> io::Result<Self> {
        socket.check()?;
        let fd = socket.send_signal()?;
        let socket = match socket {
            Socket::User(inner) => Arc::downgrade(inner),
            Socket::Kernel(_) => Weak::new(),
        };
        Ok(Self { socket, fd })
    }

    /// Arms the signal for one event. Does nothing in a child of fork(2).
    pub fn arm(&self) {
        if let Some(inner) = self.socket.upgrade() {
            inner.arm_send_signal();
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
