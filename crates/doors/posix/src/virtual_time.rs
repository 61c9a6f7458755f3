//! A virtual clock: one thread (the driver) moves it, other threads block in calls.
//!
//! The driver moves time from one deadline to the next. A thread that waits in a call is woken when something changed
//! or its deadline has come, and time stands still until that thread has looked. So a run gives the same result
//! whatever the scheduler of the machine does.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use rustix::thread::{Pid, gettid};
use wire::Instant;

use crate::posix::Posix;
use crate::table::Table;
use crate::waiter::Waiter;

/// Polls in a row at one time after which time is moved a little: a stack that always has work would stop it.
const MAX_POLLS: usize = 10_000;

/// How long, in real time, the driver waits for a thread whose blocking call has returned to read the clock.
const RETURN_TIME: Duration = Duration::from_millis(50);

/// How long, in real time, the driver then leaves that thread to note its result, if it does not go to sleep before: a
/// tester notes it under a lock that its driver releases only while it sleeps.
const NOTE_TIME: Duration = Duration::from_millis(50);

/// How often, in real time, the driver looks whether that thread sleeps.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// The smallest step of time; each reading of the clock takes one.
const STEP: Duration = Duration::from_micros(1);

/// The clock, and the threads that it waits for.
#[derive(Debug)]
struct State {
    now: Instant,
    /// Deadlines of the threads that wait, one entry each.
    until: Vec<Option<Instant>>,
    /// Threads that were woken and have not looked yet.
    to_look: usize,
    /// Threads whose blocking call has returned, until they make another call or read the clock.
    returning: Vec<ThreadId>,
    /// A thread that has read the clock after a blocking call, and notes its result.
    noting: Option<Pid>,
    /// Counts the wakings.
    epoch: u64,
    /// The table's count of changes at the last waking.
    told: u64,
}

/// A clock for [`Posix`] that the thread that made it, the driver, moves.
///
/// The driver may make blocking calls, too: time passes while it waits.
#[derive(Debug)]
pub struct VirtualTime {
    driver: ThreadId,
    state: Mutex<State>,
    woken: Condvar,
    looked: Condvar,
}

impl VirtualTime {
    /// Returns a clock that shows `start` and is driven by this thread.
    pub fn new(start: Instant) -> Self {
        Self {
            driver: this_thread(),
            state: Mutex::new(State {
                now: start,
                until: Vec::new(),
                to_look: 0,
                returning: Vec::new(),
                noting: None,
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

    /// Wakes every thread that waits.
    fn wake(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.to_look = state.until.len();
        self.woken.notify_all();
    }

    /// Notes that this thread is back from its last blocking call, whose result it notes now if it is `noting`. Returns
    /// whether it had made such a call.
    fn is_back(&self, noting: Option<Pid>) -> bool {
        let mut state = self.state();
        let before = state.returning.len();
        let this = this_thread();
        state.returning.retain(|thread| *thread != this);
        let was_away = state.returning.len() < before;
        if was_away {
            state.noting = noting;
            self.looked.notify_all();
        }
        was_away
    }

    /// Returns the earliest deadline of a thread that waits.
    fn next_wake(&self) -> Option<Instant> {
        self.state().until.iter().flatten().min().copied()
    }

    /// Returns when something happens next, later than now.
    fn next_deadline(&self, table: &Table) -> Option<Instant> {
        let soon = self.now() + STEP;
        let next = [table.next_deadline(), self.next_wake()];
        next.into_iter().flatten().min().map(|next| next.max(soon))
    }

    /// Sets the clock, which never goes back.
    fn set(&self, now: Instant) {
        let mut state = self.state();
        state.now = state.now.max(now);
    }

    /// Polls until nothing is left to do at this time, and waits until every thread that was woken has looked.
    fn settle<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.is_back(None);
        for _ in 0..MAX_POLLS {
            let now = self.now();
            let worked = table.poll_stack(now);
            self.changed(&mut table);
            if self.next_wake().is_some_and(|next| next <= now) {
                self.wake();
            }
            let mut looked = false;
            while self.state().to_look > 0 {
                looked = true;
                table = self
                    .looked
                    .wait(table)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            while !self.state().returning.is_empty() {
                table = self.await_return(table);
            }
            if !worked && !looked {
                break;
            }
        }
        table
    }

    /// Waits until a thread whose blocking call has returned reads the clock or makes another call; not for ever.
    fn await_return<'a>(&'a self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let waited = self.looked.wait_timeout(table, RETURN_TIME);
        let (table, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            self.state().returning.clear();
        }
        table
    }

    /// Moves time to `end`, from deadline to deadline.
    fn pass<'a>(&'a self, table: MutexGuard<'a, Table>, end: Instant) -> MutexGuard<'a, Table> {
        let mut table = self.settle(table);
        while let Some(next) = self.next_deadline(&table).filter(|next| *next <= end) {
            self.set(next);
            table = self.settle(table);
        }
        self.set(end);
        self.settle(table)
    }

    /// Lets the driver wait: time moves to the next deadline. `Err`: there is none, only another thread can end the
    /// wait.
    fn wait_as_driver<'a>(
        &'a self,
        table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> Result<MutexGuard<'a, Table>, MutexGuard<'a, Table>> {
        let before = table.changes();
        let table = self.settle(table);
        if table.changes() != before {
            return Ok(table);
        }
        let next = self.next_deadline(&table).into_iter().chain(until).min();
        let Some(next) = next else { return Err(table) };
        self.set(next);
        Ok(self.settle(table))
    }
}

impl Waiter for VirtualTime {
    fn now(&self) -> Instant {
        self.state().now
    }

    fn changed(&self, table: &mut Table) {
        self.is_back(None);
        let changes = table.changes();
        if std::mem::replace(&mut self.state().told, changes) != changes {
            self.wake();
        }
    }

    fn returning(&self) {
        let this = this_thread();
        // The driver would wait for itself.
        if this != self.driver {
            self.state().returning.push(this);
        }
    }

    fn wait<'a>(
        &'a self,
        mut table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Table> {
        if this_thread() == self.driver {
            table = match self.wait_as_driver(table, until) {
                Ok(table) => return table,
                Err(table) => table,
            };
        }
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

fn this_thread() -> ThreadId {
    std::thread::current().id()
}

/// Waits until a thread of this process sleeps or is gone; not for ever.
fn await_sleep(thread: Pid) {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let end = std::time::Instant::now() + NOTE_TIME;
    let runs = || {
        // The state follows the name, which is in parentheses (proc_pid_stat(5)).
        let text = std::fs::read_to_string(&stat).unwrap_or_default();
        let (_, fields) = text.rsplit_once(')').unwrap_or_default();
        fields.trim_start().starts_with('R')
    };
    while runs() && std::time::Instant::now() < end {
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Calls that move the clock.
impl Posix<VirtualTime> {
    /// Lets the stack do all it has to do now, and the threads that wait look. Time stands still.
    pub fn run_now(&self) {
        drop(self.waiter().settle(self.lock()));
    }

    /// Returns the time, after a step of 1 us: a program that only reads the clock until a time has come gets there.
    /// The first reading after a blocking call takes no step: it tells when the call returned.
    pub fn read_clock(&self) -> Instant {
        let clock = self.waiter();
        if clock.is_back(Some(gettid())) {
            return clock.now();
        }
        let end = clock.now() + STEP;
        drop(clock.pass(self.lock(), end));
        clock.now()
    }

    /// Lets `duration` pass.
    pub fn sleep(&self, duration: Duration) {
        let clock = self.waiter();
        let end = clock.now() + duration;
        let table = clock.pass(self.lock(), end);
        drop(table);
        let noting = clock.state().noting.take();
        if let Some(thread) = noting {
            await_sleep(thread);
        }
    }

    /// Moves time on until `done` has a result, from deadline to deadline. `None`: no deadline is left.
    pub fn sleep_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        let clock = self.waiter();
        let mut table = clock.settle(self.lock());
        loop {
            if let Some(result) = done() {
                return Some(result);
            }
            let next = clock.next_deadline(&table)?;
            clock.set(next);
            table = clock.settle(table);
        }
    }
}
