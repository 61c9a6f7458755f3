//! Telling those who wait without a thread that a send may be tried again.
//!
//! Not a part of the readiness fd: a connection can nearly always be written to, and an fd that said so would never be
//! quiet. This one speaks up once, after it was armed.
#![cfg_attr(
    not(feature = "tokio"),
    allow(dead_code, reason = "tasks are the only ones who wait so")
)]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use stack::{Readiness, SocketId, Stack};

use crate::driver::{StackIndex, set};

/// What lets a send be tried again: it may succeed, or fail for good.
const SENDABLE: Readiness = Readiness::WRITABLE
    .union(Readiness::WRITE_CLOSED)
    .union(Readiness::ERROR);

struct SendSignal {
    fd: Arc<OwnedFd>,
    armed: bool,
}

/// The signals of a driver's sockets, as far as asked for.
#[derive(Default)]
pub(crate) struct SendSignals {
    signals: HashMap<(StackIndex, SocketId), SendSignal>,
    /// How many of them are armed.
    armed: usize,
}

impl SendSignals {
    /// The eventfd that becomes readable when a send of the socket may be tried again; it is readable at first.
    pub(crate) fn fd(&mut self, of: (StackIndex, SocketId)) -> rustix::io::Result<Arc<OwnedFd>> {
        if let Some(signal) = self.signals.get(&of) {
            return Ok(Arc::clone(&signal.fd));
        }
        let fd = Arc::new(eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let signal = SendSignal {
            fd: Arc::clone(&fd),
            armed: false,
        };
        self.signals.insert(of, signal);
        Ok(fd)
    }

    /// Asks to be told once. To be called before the attempt that must not be missed.
    pub(crate) fn arm(&mut self, of: (StackIndex, SocketId)) {
        if let Some(signal) = self.signals.get_mut(&of) {
            self.armed += usize::from(!signal.armed);
            signal.armed = true;
        }
    }

    /// Tells those who have room now, or a connection at its end. To be called after whatever may have made room.
    ///
    /// A socket may wait although it is writable, for want of memory that all sockets share: it then hears of every
    /// call and poll that did something.
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
