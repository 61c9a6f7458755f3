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

/// How long at most, in real time, the driver waits for a thread that runs after its blocking call.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often, in real time, the driver looks whether such a thread sleeps.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// A thread that sleeps at so many looks in a row does not come back: once may be for a lock.
const SLEEPING_LOOKS: u32 = 4;

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
    /// Threads whose blocking call has returned, until they make another call, read the clock or sleep.
    returning: Vec<Pid>,
    /// A thread that has read the clock after a blocking call, and notes its result.
    noting: Option<Pid>,
    /// Counts the wakings.
    epoch: u64,
    /// The table's count of changes at the last waking.
    told: u64,
}

/// What a thread does after a blocking call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It makes another call.
    Calls,
    /// It has read the clock and notes the result: a tester does so under a lock that its driver releases only while it
    /// sleeps.
    NotesResult,
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

    /// Notes that this thread is back from its last blocking call, and what it does next. Returns the time if it had
    /// made such a call: time stood still since that returned, and may go on now.
    fn is_back(&self, next: Next) -> Option<Instant> {
        let mut state = self.state();
        let before = state.returning.len();
        if before == 0 {
            return None;
        }
        let this = gettid();
        state.returning.retain(|thread| *thread != this);
        let was_away = state.returning.len() < before;
        if was_away {
            state.noting = (next == Next::NotesResult).then_some(this);
            self.looked.notify_all();
        }
        was_away.then_some(state.now)
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
        self.is_back(Next::Calls);
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
            table = self.await_returns(table);
            if !worked && !looked {
                break;
            }
        }
        table
    }

    /// Waits until the threads whose blocking calls have returned read the clock, make another call or sleep.
    fn await_returns<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let begun = std::time::Instant::now();
        let mut asleep = 0;
        loop {
            let threads = self.state().returning.clone();
            if threads.is_empty() {
                return table;
            }
            asleep = match threads.into_iter().any(runs) {
                true => 0,
                false => asleep + 1,
            };
            if asleep >= SLEEPING_LOOKS || begun.elapsed() >= PATIENCE {
                self.state().returning.clear();
                return table;
            }
            let waited = self.looked.wait_timeout(table, LOOK_INTERVAL);
            (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
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
        self.is_back(Next::Calls);
        let changes = table.changes();
        if std::mem::replace(&mut self.state().told, changes) != changes {
            self.wake();
        }
    }

    fn returning(&self) {
        // The driver would wait for itself.
        if this_thread() != self.driver {
            self.state().returning.push(gettid());
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

/// Returns whether a thread of this process runs, or would if a processor were free.
fn runs(thread: Pid) -> bool {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state follows the name, which is in parentheses (proc_pid_stat(5)).
    let text = std::fs::read_to_string(&stat).unwrap_or_default();
    let (_, fields) = text.rsplit_once(')').unwrap_or_default();
    fields.trim_start().starts_with('R')
}

/// Waits until a thread that notes a result sleeps.
fn await_sleep(thread: Pid) {
    let begun = std::time::Instant::now();
    while runs(thread) && begun.elapsed() < PATIENCE {
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
        if let Some(returned) = clock.is_back(Next::NotesResult) {
            return returned;
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
