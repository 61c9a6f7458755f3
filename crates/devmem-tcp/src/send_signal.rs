//! Eventfds that signal to tasks that a send can be retried.
//!
//! They are separate from the readiness fd: a connection is nearly always writable, so that fd would always be readable. A
//! send signal fires once after it was armed.
#![cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only tasks use it"))]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use stack::{Readiness, SocketId, Stack};

use crate::driver::{StackIndex, set};

/// The readiness after which a send can be retried: it succeeds, or fails permanently.
const SENDABLE: Readiness = Readiness::WRITABLE
    .union(Readiness::WRITE_CLOSED)
    .union(Readiness::ERROR);

struct SendSignal {
    fd: Arc<OwnedFd>,
    armed: bool,
}

/// The send signals of a driver's sockets, for sockets that requested one.
#[derive(Default)]
pub(crate) struct SendSignals {
    signals: HashMap<(StackIndex, SocketId), SendSignal>,
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
        let signal = SendSignal {
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
