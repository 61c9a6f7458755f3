//! Time that stands still until somebody moves it: one thread drives, others block in calls.
//!
//! The driving thread moves time from one deadline to the next. Whoever waits in a call is woken when something
//! changed or his own deadline came, and time does not go on before he has looked: a run is the same whatever the
//! machine's scheduler does.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wire::Instant;

use crate::posix::Posix;
use crate::table::Table;
use crate::waiter::Waiter;

/// Polls in a row at one time after which time is moved a little: a stack that always has work would stop it.
const MAX_POLLS: usize = 10_000;

/// How long, in real time, one whose call returned is left to look at the clock.
const THEIR_TURN: Duration = Duration::from_millis(50);

/// The smallest step of time.
const STEP: Duration = Duration::from_micros(1);

/// Threads that wait, and what they wait for.
#[derive(Debug)]
struct State {
    now: Instant,
    /// When those who wait look again by themselves, one entry each.
    until: Vec<Option<Instant>>,
    /// Those of them who were woken and have not looked yet.
    to_look: usize,
    /// Those whose calls return and who have not looked at the clock since.
    returning: usize,
    /// Counts the wakings.
    epoch: u64,
    /// The table's changes as they were told last.
    told: u64,
}

/// A clock for [`Posix`] that its owner moves.
#[derive(Debug)]
pub struct VirtualTime {
    state: Mutex<State>,
    woken: Condvar,
    looked: Condvar,
}

impl VirtualTime {
    /// Returns a clock that shows `start`.
    pub fn new(start: Instant) -> Self {
        Self {
            state: Mutex::new(State {
                now: start,
                until: Vec::new(),
                to_look: 0,
                returning: 0,
                epoch: 0,
                told: 0,
            }),
            woken: Condvar::new(),
            looked: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Between any two statements the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time for one whose call may have returned just now: it was told in time, and time may go on.
    pub fn read_clock(&self) -> Instant {
        let mut state = self.state();
        state.returning = 0;
        self.looked.notify_all();
        state.now
    }

    /// Wakes everybody.
    fn wake(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.to_look = state.until.len();
        self.woken.notify_all();
    }

    /// Returns when somebody who waits looks again by himself.
    fn next_wake(&self) -> Option<Instant> {
        self.state().until.iter().flatten().min().copied()
    }

    /// Sets the clock, which never goes back.
    fn set(&self, now: Instant) {
        let mut state = self.state();
        state.now = state.now.max(now);
    }
}

impl VirtualTime {
    /// Leaves one whose call returns the time to look at the clock before it moves. He may never look: then it goes on.
    fn await_return<'a>(&'a self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let waited = self.looked.wait_timeout(table, THEIR_TURN);
        let (table, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            self.state().returning = 0;
        }
        table
    }
}

impl Waiter for VirtualTime {
    fn now(&self) -> Instant {
        self.state().now
    }

    fn changed(&self, table: &mut Table) {
        let changes = table.changes();
        if std::mem::replace(&mut self.state().told, changes) != changes {
            self.wake();
        }
    }

    fn returning(&self) {
        self.state().returning += 1;
    }

    fn wait<'a>(
        &'a self,
        mut table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Table> {
        let epoch = {
            let mut state = self.state();
            state.until.push(until);
            state.epoch
        };
        while self.state().epoch == epoch {
            table = self
                .woken
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let mut state = self.state();
        if let Some(at) = state.until.iter().position(|other| *other == until) {
            state.until.swap_remove(at);
        }
        state.to_look = state.to_look.saturating_sub(1);
        self.looked.notify_all();
        drop(state);
        table
    }
}

/// What moving the clock does.
impl Posix<VirtualTime> {
    /// Lets the stack do all it has to do now, and those who wait look. Time stands still.
    pub fn run_now(&self) {
        let table = self.settle(self.lock());
        drop(table);
    }

    /// Lets `duration` pass.
    pub fn sleep(&self, duration: Duration) {
        let end = self.waiter().now() + duration;
        let mut table = self.settle(self.lock());
        while let Some(next) = self.next_deadline(&table).filter(|next| *next <= end) {
            self.waiter().set(next);
            table = self.settle(table);
        }
        self.waiter().set(end);
        drop(self.settle(table));
    }

    /// Moves time on until `done` has a result, from deadline to deadline. `None`: there is nothing left that time
    /// could bring.
    pub fn sleep_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        let mut table = self.settle(self.lock());
        loop {
            if let Some(result) = done() {
                return Some(result);
            }
            let next = self.next_deadline(&table)?;
            self.waiter().set(next);
            table = self.settle(table);
        }
    }

    /// Returns when anything happens next, later than now.
    fn next_deadline(&self, table: &Table) -> Option<Instant> {
        let soon = self.waiter().now() + STEP;
        let next = [table.next_deadline(), self.waiter().next_wake()];
        next.into_iter().flatten().min().map(|next| next.max(soon))
    }

    /// Polls until nothing is left to do at this time, and waits until everybody who was woken has looked.
    fn settle<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let clock = self.waiter();
        for _ in 0..MAX_POLLS {
            let now = clock.now();
            let worked = table.poll_stack(now);
            clock.changed(&mut table);
            if clock.next_wake().is_some_and(|next| next <= now) {
                clock.wake();
            }
            let mut looked = false;
            while clock.state().to_look > 0 {
                looked = true;
                table = clock
                    .looked
                    .wait(table)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            while clock.state().returning > 0 {
                table = clock.await_return(table);
            }
            if !worked && !looked {
                break;
            }
        }
        table
    }
}
