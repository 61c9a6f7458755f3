//! The calls that wait, and the thread that sleeps on the links for all of them.

use std::thread::Thread;

use stack::SocketId;

/// Index of a stack in its driver: one of several that share a clock in virtual time, otherwise 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackIndex(pub usize);

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The stack.
    pub stack: StackIndex,
    /// Its socket; `None`: any change of the stack, or of what is kept with it.
    pub socket: Option<SocketId>,
}

impl Awaited {
    fn is(self, stack: StackIndex, of: SocketId) -> bool {
        self.stack == stack && self.socket.is_none_or(|socket| socket == of)
    }

    fn is_any(self, stack: StackIndex) -> bool {
        self.stack == stack && self.socket.is_none()
    }
}

/// A thread that is parked until what it waits for may be there.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) awaits: Awaited,
    pub(crate) thread: Thread,
}

/// The thread that sleeps in poll(2) on the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leader {
    /// None: every thread is awake, or outside of the driver.
    #[default]
    Nobody,
    /// The background thread.
    Background,
    /// A thread of the program.
    Program(Awaited),
}

/// The calls that wait, for [`Driven::tell_events`](crate::Driven::tell_events) to wake.
#[derive(Debug, Default)]
pub struct Calls {
    pub(crate) parked: Vec<Parked>,
    pub(crate) leader: Leader,
    due: DueWakes,
}

/// Wakes that are due since they were last taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DueWakes {
    /// The leader: what it waits for may be there.
    pub(crate) leader: bool,
    /// A file descriptor of the program is not ready any more.
    pub(crate) is_fd_drained: bool,
}

impl Calls {
    /// Wakes the calls that wait for `socket`.
    pub fn wake(&mut self, stack: StackIndex, socket: SocketId) {
        self.wake_if(|awaits| awaits.is(stack, socket));
    }

    /// Wakes the calls that wait for any change of `stack`.
    pub fn wake_any(&mut self, stack: StackIndex) {
        self.wake_if(|awaits| awaits.is_any(stack));
    }

    fn wake_if(&mut self, is_awaited: impl Fn(Awaited) -> bool) {
        let parked = self.parked.iter();
        parked
            .filter(|it| is_awaited(it.awaits))
            .for_each(|it| it.thread.unpark());
        self.due.leader |= matches!(self.leader, Leader::Program(awaits) if is_awaited(awaits));
    }

    /// Notes that a file descriptor of the program was ready and is not any more: the program may wait for it from now on.
    pub fn note_drained_fd(&mut self) {
        self.due.is_fd_drained = true;
    }

    pub(crate) fn take_due_wakes(&mut self) -> DueWakes {
        std::mem::take(&mut self.due)
    }
}
