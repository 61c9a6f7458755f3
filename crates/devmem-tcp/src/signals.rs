//! Eventfds of sockets, for programs that wait in poll(2) or epoll, and for tasks.
//!
//! The *readiness fd* is for programs: it is readable exactly while the socket is ready. *Task signals* are for the tokio
//! adapter, which registers them edge-triggered: an armed one is written once, at the next event that concerns it, and never
//! read. So a task that is working costs no system call, and one that waits costs one.
//!
//! A call writes to the eventfds of the sockets that it changed. Its cost does not depend on how many others there are.
#![cfg_attr(
    not(feature = "tokio"),
    allow(dead_code, reason = "only tasks use task signals")
)]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use runtime::StackIndex;
use runtime::fds::{clear, set};
use rustix::event::{EventfdFlags, eventfd};
use stack::{Readiness, SocketId};

/// A socket of a driver.
pub(crate) type SocketKey = (StackIndex, SocketId);

/// The readiness that makes a readiness fd readable. WRITABLE is not included: a connection is nearly always writable, so the
/// fd would always be readable.
const INTEREST: Readiness = Readiness::READABLE
    .union(Readiness::ACCEPTABLE)
    .union(Readiness::READ_CLOSED)
    .union(Readiness::ERROR)
    .union(Readiness::ERROR_QUEUE);

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSignal {
    /// A receive can be retried.
    Receive,
    /// A send can be retried.
    Send,
    /// Sends are complete.
    Complete,
}

impl TaskSignal {
    const ALL: [Self; 3] = [Self::Receive, Self::Send, Self::Complete];

    /// Returns the readiness after which the call succeeds, or fails permanently.
    pub(crate) const fn interest(self) -> Readiness {
        match self {
            Self::Receive => Readiness::READABLE
                .union(Readiness::READ_CLOSED)
                .union(Readiness::ERROR),
            Self::Send => Readiness::WRITABLE
                .union(Readiness::WRITE_CLOSED)
                .union(Readiness::ERROR),
            Self::Complete => Readiness::ERROR_QUEUE
                .union(Readiness::WRITE_CLOSED)
                .union(Readiness::ERROR),
        }
    }
}

/// A readiness fd.
#[derive(Debug)]
struct ReadinessFd {
    fd: Arc<OwnedFd>,
    is_readable: bool,
}

impl ReadinessFd {
    fn update(&mut self, ready: Readiness) -> ReadinessChange {
        let is_ready = ready.intersects(INTEREST);
        match (self.is_readable, is_ready) {
            (false, true) => set(self.fd.as_fd()),
            (true, false) => clear(self.fd.as_fd()),
            (false, false) | (true, true) => return ReadinessChange::Other,
        }
        self.is_readable = is_ready;
        match is_ready {
            true => ReadinessChange::Other,
            false => ReadinessChange::NotReady,
        }
    }
}

/// Effect of an event on a readiness fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ReadinessChange {
    /// It was readable and is not any more: the program may wait for it from now on.
    NotReady,
    /// It became readable, did not change, or does not exist.
    Other,
}

/// The eventfd of a task signal.
#[derive(Debug)]
struct TaskFd {
    fd: Arc<OwnedFd>,
    is_armed: bool,
}

impl TaskFd {
    /// Writes to it if it is armed. `awaited` is [`Signals::awaited`].
    fn fire(&mut self, awaited: &mut usize) {
        if std::mem::take(&mut self.is_armed) {
            *awaited -= 1;
            set(self.fd.as_fd());
        }
    }
}

/// The eventfds of one socket that were requested.
#[derive(Debug, Default)]
struct SocketSignals {
    readiness: Option<ReadinessFd>,
    /// By the number of the signal in [`TaskSignal::ALL`].
    tasks: [Option<TaskFd>; TaskSignal::ALL.len()],
    /// In the list of sockets that lack memory.
    lacks_memory: bool,
}

/// The eventfds of a driver's sockets.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    sockets: HashMap<SocketKey, SocketSignals>,
    /// Number of eventfds that a program may be waiting for: readiness fds, and task signals while they are armed.
    awaited: usize,
    /// Sockets with an armed send signal that were writable when it was armed: they lack memory, which all sockets share.
    lacking_memory: Vec<SocketKey>,
    /// Signals that were armed since [`Signals::tell_armed`]. Their attempt may empty a queue, and the call that it makes may
    /// fill it again: the readiness is the one that was told before, so that [`Signals::tell`] is not called.
    just_armed: Vec<(SocketKey, TaskSignal)>,
}

impl Signals {
    /// Returns the readiness fd of a socket, which is `ready`; the first call creates it.
    pub(crate) fn readiness_fd(
        &mut self,
        of: SocketKey,
        ready: Readiness,
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        let signals = self.sockets.entry(of).or_default();
        if let Some(readiness) = &signals.readiness {
            return Ok(Arc::clone(&readiness.fd));
        }
        let readiness = signals.readiness.insert(ReadinessFd {
            fd: new_eventfd(0)?,
            is_readable: false,
        });
        self.awaited += 1;
        // A new fd does not become unreadable.
        let _ = readiness.update(ready);
        Ok(Arc::clone(&readiness.fd))
    }

    /// Returns the eventfd of a task signal; the first call creates it, readable.
    pub(crate) fn task_fd(
        &mut self,
        of: SocketKey,
        signal: TaskSignal,
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        let task = &mut self.sockets.entry(of).or_default().tasks[signal as usize];
        if let Some(task) = task {
            return Ok(Arc::clone(&task.fd));
        }
        let fd = new_eventfd(1)?;
        *task = Some(TaskFd {
            fd: Arc::clone(&fd),
            is_armed: false,
        });
        Ok(fd)
    }

    /// Arms a task signal of a socket, which is `ready` now, for one event. Must be followed by an attempt of the call, so that
    /// no event before this one is missed.
    pub(crate) fn arm(&mut self, of: SocketKey, signal: TaskSignal, ready: Readiness) {
        let Some(socket) = self.sockets.get_mut(&of) else {
            return;
        };
        let Some(task) = &mut socket.tasks[signal as usize] else {
            return;
        };
        if !std::mem::replace(&mut task.is_armed, true) {
            self.awaited += 1;
        }
        if signal != TaskSignal::Send {
            self.just_armed.push((of, signal));
        } else if ready.intersects(signal.interest())
            && !std::mem::replace(&mut socket.lacks_memory, true)
        {
            self.lacking_memory.push(of);
        }
    }

    /// Writes to the eventfds of a socket whose readiness has changed to `ready`.
    pub(crate) fn tell(&mut self, of: SocketKey, ready: Readiness) -> ReadinessChange {
        let Some(socket) = self.sockets.get_mut(&of) else {
            return ReadinessChange::Other;
        };
        let change = match &mut socket.readiness {
            Some(readiness) => readiness.update(ready),
            None => ReadinessChange::Other,
        };
        for (task, signal) in socket.tasks.iter_mut().zip(TaskSignal::ALL) {
            if let Some(task) = task
                && ready.intersects(signal.interest())
            {
                task.fire(&mut self.awaited);
            }
        }
        change
    }

    /// Fires the signals that were armed since the last call, and whose sockets are ready now. Must follow every attempt; the
    /// wake-up is spurious if the attempt is still to come.
    pub(crate) fn tell_armed(&mut self, ready: impl Fn(SocketKey) -> Readiness) {
        for (of, signal) in self.just_armed.drain(..) {
            if let Some(socket) = self.sockets.get_mut(&of)
                && let Some(task) = &mut socket.tasks[signal as usize]
                && ready(of).intersects(signal.interest())
            {
                task.fire(&mut self.awaited);
            }
        }
    }

    /// Returns whether a program may be waiting for an eventfd.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Returns whether a task waits for memory to send from.
    pub(crate) fn any_lacks_memory(&self) -> bool {
        !self.lacking_memory.is_empty()
    }

    /// Fires the send signals of the sockets that lacked memory, on the stack `at`, which has memory now.
    pub(crate) fn tell_memory(&mut self, at: StackIndex) {
        self.lacking_memory.retain(|of| {
            if of.0 != at {
                return true;
            }
            if let Some(socket) = self.sockets.get_mut(of) {
                socket.lacks_memory = false;
                if let Some(task) = &mut socket.tasks[TaskSignal::Send as usize] {
                    task.fire(&mut self.awaited);
                }
            }
            false
        });
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, of: SocketKey) {
        let Some(socket) = self.sockets.remove(&of) else {
            return;
        };
        let armed = socket.tasks.iter().flatten().filter(|task| task.is_armed);
        self.awaited -= armed.count() + usize::from(socket.readiness.is_some());
        if socket.lacks_memory {
            self.lacking_memory.retain(|other| *other != of);
        }
    }
}

fn new_eventfd(count: u32) -> rustix::io::Result<Arc<OwnedFd>> {
    let fd = eventfd(count, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    Ok(Arc::new(fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::sockets;

    /// Returns how often an eventfd was written since it was read last.
    fn writes(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(fd, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Returns the fds of a signal of every socket, each armed after the first read.
    fn armed(signals: &mut Signals, of: &[SocketKey], signal: TaskSignal) -> Vec<Arc<OwnedFd>> {
        let arm = |of: &SocketKey| {
            let fd = signals.task_fd(*of, signal).expect("an eventfd");
            assert_eq!(writes(&fd), 1, "the first attempt waits for nothing");
            signals.arm(*of, signal, Readiness::NONE);
            fd
        };
        of.iter().map(arm).collect()
    }

    #[test]
    fn a_readiness_fd_is_written_when_the_socket_becomes_ready_and_not_again() {
        let (mut signals, of) = (Signals::default(), sockets(1)[0]);
        let fd = signals.readiness_fd(of, Readiness::WRITABLE).expect("fd");
        assert_eq!(writes(&fd), 0);
        let mut tell = |ready| signals.tell(of, ready);
        for _ in 0..5 {
            let change = tell(Readiness::READABLE | Readiness::WRITABLE);
            assert_eq!(change, ReadinessChange::Other);
        }
        assert_eq!(writes(&fd), 1);
        assert_eq!(tell(Readiness::NONE), ReadinessChange::NotReady);
        assert_eq!(tell(Readiness::ERROR_QUEUE), ReadinessChange::Other);
        assert_eq!(writes(&fd), 1);
        assert_eq!(tell(Readiness::ACCEPTABLE), ReadinessChange::Other);
        assert_eq!(tell(Readiness::WRITABLE), ReadinessChange::NotReady);
        assert_eq!(tell(Readiness::WRITABLE), ReadinessChange::Other);
        assert_eq!(writes(&fd), 0, "it is not ready any more");
        let again = signals.readiness_fd(of, Readiness::READ_CLOSED);
        assert!(Arc::ptr_eq(&fd, &again.expect("the same")));
    }

    #[test]
    fn an_event_is_told_to_its_socket_alone_and_once() {
        let (mut signals, of) = (Signals::default(), sockets(100));
        let receive = armed(&mut signals, &of, TaskSignal::Receive);
        let send = armed(&mut signals, &of, TaskSignal::Send);
        for _ in 0..3 {
            let change = signals.tell(of[7], Readiness::READABLE);
            assert_eq!(change, ReadinessChange::Other);
        }
        let told = |fds: &[Arc<OwnedFd>]| fds.iter().map(|fd| writes(fd)).collect::<Vec<_>>();
        let mut expected = vec![0; 100];
        assert_eq!(told(&send), expected);
        expected[7] = 1;
        assert_eq!(told(&receive), expected);
        let both = Readiness::READABLE | Readiness::WRITABLE;
        assert_eq!(signals.tell(of[7], both), ReadinessChange::Other);
        assert_eq!((told(&receive), told(&send)), (vec![0; 100], expected));
    }

    #[test]
    fn readiness_fds_and_armed_signals_are_awaited() {
        let (mut signals, of) = (Signals::default(), sockets(2));
        assert!(!signals.is_awaited());
        for signal in [TaskSignal::Receive, TaskSignal::Send] {
            let fds = armed(&mut signals, &of, signal);
            signals.arm(of[0], signal, Readiness::NONE);
            drop(fds);
        }
        assert_eq!(signals.awaited, 4, "arming twice is arming once");
        let both = Readiness::READABLE | Readiness::WRITABLE;
        for _ in 0..2 {
            assert_eq!(signals.tell(of[0], both), ReadinessChange::Other);
            assert_eq!(signals.awaited, 2);
        }
        for _ in 0..2 {
            signals.readiness_fd(of[0], both).expect("an eventfd");
            assert_eq!(signals.awaited, 3);
        }
        signals.forget(of[1]);
        assert_eq!(signals.awaited, 1);
        signals.forget(of[0]);
        assert!(!signals.is_awaited());
    }

    #[test]
    fn a_queue_that_the_attempt_emptied_and_that_was_filled_again_is_told() {
        let (mut signals, of) = (Signals::default(), sockets(2));
        let fds = armed(&mut signals, &of, TaskSignal::Complete);
        let refilled = of[1];
        signals.tell_armed(|of| match of == refilled {
            true => Readiness::ERROR_QUEUE,
            false => Readiness::NONE,
        });
        assert_eq!([writes(&fds[0]), writes(&fds[1])], [0, 1]);
        signals.tell_armed(|_| Readiness::ERROR_QUEUE);
        assert_eq!([writes(&fds[0]), writes(&fds[1])], [0, 0], "told once");
        let change = signals.tell(of[0], Readiness::ERROR_QUEUE);
        assert_eq!(change, ReadinessChange::Other);
        assert_eq!(writes(&fds[0]), 1, "it was still armed");
    }

    #[test]
    fn a_send_that_lacked_memory_is_retried_when_there_is_some() {
        let (mut signals, of) = (Signals::default(), sockets(3));
        let fds = armed(&mut signals, &of, TaskSignal::Send);
        assert!(!signals.any_lacks_memory(), "they had no room");
        for of in [of[0], of[1], of[1]] {
            signals.arm(of, TaskSignal::Send, Readiness::WRITABLE);
        }
        assert!(signals.any_lacks_memory());
        signals.forget(of[1]);
        signals.tell_memory(StackIndex(1));
        assert_eq!(writes(&fds[0]), 0, "the memory of another stack");
        signals.tell_memory(StackIndex(0));
        assert_eq!([0, 1, 2].map(|at: usize| writes(&fds[at])), [1, 0, 0]);
        assert!(!signals.any_lacks_memory());
    }
}
