//! A virtual clock: one thread (the driver) advances it, other threads block in calls.
//!
//! The driver advances time from one deadline to the next. A thread that waits in a call is woken after a change or at its
//! deadline, and time does not advance before that thread has tried its call again. So the result of a run does not depend
//! on the scheduler of the machine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use runtime::WaitLimit;
use rustix::thread::{Pid, gettid};
use stack::Stack;
use wire::Instant;

use crate::posix::Posix;
use crate::table::{Settings, Table};
use crate::waiter::{Waiter, Waits};

/// Maximum polls at one time. Time then advances, even if the stack still has work.
const MAX_POLLS: usize = 10_000;

/// Maximum real time for which the driver waits for a thread that runs after its blocking call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Real time between two checks whether such a thread sleeps.
const CHECK_INTERVAL: Duration = Duration::from_micros(500);

/// Number of checks in a row that must find the threads asleep before the driver stops waiting for them: a thread that
/// waits for a lock sleeps briefly.
const SLEEPING_CHECKS: u32 = 4;

/// The smallest step of time; each reading of the clock takes one.
const STEP: Duration = Duration::from_micros(1);

/// The clock, and the threads that it waits for.
#[derive(Debug)]
struct State {
    now: Instant,
    /// Deadlines of the threads that wait, one entry each.
    until: Vec<Option<Instant>>,
    /// Number of threads that were woken and have not tried their calls again yet.
    woken_threads: usize,
    /// Threads whose blocking call has returned, until they make another call, read the clock or sleep.
    returning: Vec<Pid>,
    /// A thread that has read the clock after a blocking call, and now records its result.
    recording: Option<Pid>,
    /// Number of wake-ups so far.
    epoch: u64,
    /// The table's count of changes at the last wake-up.
    changes_seen: u64,
}

/// What a thread does after a blocking call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It makes another call.
    Calls,
    /// It has read the clock and records the result: a test program does so under a lock that its driver releases only
    /// while the driver sleeps.
    RecordsResult,
}

/// A table for [`Posix`] with a clock that is advanced by the thread that created it, the driver.
///
/// The driver may make blocking calls, too: time passes while it waits.
#[derive(Debug)]
pub struct VirtualTime {
    driver: ThreadId,
    table: Mutex<Table>,
    state: Mutex<State>,
    woken: Condvar,
    tried: Condvar,
}

impl VirtualTime {
    /// Returns a table over `stack`, with a clock that shows `start` and is driven by this thread.
    pub fn new(stack: Stack, settings: Settings, start: Instant) -> Self {
        Self {
            driver: this_thread(),
            table: Mutex::new(Table::new(stack, settings)),
            state: Mutex::new(State {
                now: start,
                until: Vec::new(),
                woken_threads: 0,
                returning: Vec::new(),
                recording: None,
                epoch: 0,
                changes_seen: 0,
            }),
            woken: Condvar::new(),
            tried: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No statement leaves the state inconsistent, so a panic while it is locked does not matter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table without locking it.
    pub fn table_mut(&mut self) -> &mut Table {
        self.table.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an attempt, or a call: sends what it has queued, and wakes waiting threads if the table has changed.
    fn finish(&self, table: &mut Table) {
        table.after_call(self.now());
        self.changed(table);
    }

    fn changed(&self, table: &mut Table) {
        self.note_return(Next::Calls);
        let changes = table.changes();
        if std::mem::replace(&mut self.state().changes_seen, changes) != changes {
            self.wake();
        }
    }

    /// Notes, under the lock of the table, that a call which has waited is about to return.
    fn note_waits(&self, waits: Waits) {
        // The driver waits for these threads, and must not wait for itself.
        if waits.any && this_thread() != self.driver {
            self.state().returning.push(gettid());
        }
    }

    /// Releases the lock until the table changes or `until` is reached, then takes it again. May return early.
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
        state.woken_threads = state.woken_threads.saturating_sub(1);
        self.tried.notify_all();
        drop(state);
        table
    }

    /// Wakes every thread that waits.
    fn wake(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.woken_threads = state.until.len();
        self.woken.notify_all();
    }

    /// Records that this thread has returned from its last blocking call, and what it does next. Returns the time if it
    /// made such a call: the clock has not advanced since that call returned, and may do so now.
    fn note_return(&self, next: Next) -> Option<Instant> {
        let mut state = self.state();
        let before = state.returning.len();
        if before == 0 {
            return None;
        }
        let this = gettid();
        state.returning.retain(|thread| *thread != this);
        let was_away = state.returning.len() < before;
        if was_away {
            state.recording = (next == Next::RecordsResult).then_some(this);
            self.tried.notify_all();
        }
        was_away.then_some(state.now)
    }

    /// Returns the earliest deadline of a thread that waits.
    fn next_wake(&self) -> Option<Instant> {
        self.state().until.iter().flatten().min().copied()
    }

    /// Returns the next deadline of the stack or of a waiting thread, later than now.
    fn next_deadline(&self, table: &Table) -> Option<Instant> {
        let soon = self.now() + STEP;
        let next = [table.next_deadline(), self.next_wake()];
        next.into_iter().flatten().min().map(|next| next.max(soon))
    }

    /// Sets the clock, unless it shows a later time already.
    fn set(&self, now: Instant) {
        let mut state = self.state();
        state.now = state.now.max(now);
    }

    /// Polls until the stack has no more work at this time, and waits until every thread that was woken has tried its call
    /// again.
    fn settle<'a>(&'a self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.note_return(Next::Calls);
        for _ in 0..MAX_POLLS {
            let now = self.now();
            let worked = table.poll_stack(now);
            self.changed(&mut table);
            if self.next_wake().is_some_and(|next| next <= now) {
                self.wake();
            }
            let mut tried = false;
            while self.state().woken_threads > 0 {
                tried = true;
                table = self
                    .tried
                    .wait(table)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            table = self.await_returns(table);
            if !worked && !tried {
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
            if asleep >= SLEEPING_CHECKS || begun.elapsed() >= PATIENCE {
                self.state().returning.clear();
                return table;
            }
            let waited = self.tried.wait_timeout(table, CHECK_INTERVAL);
            (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Advances time to `end`, from deadline to deadline.
    fn pass<'a>(&'a self, table: MutexGuard<'a, Table>, end: Instant) -> MutexGuard<'a, Table> {
        let mut table = self.settle(table);
        while let Some(next) = self.next_deadline(&table).filter(|next| *next <= end) {
            self.set(next);
            table = self.settle(table);
        }
        self.set(end);
        self.settle(table)
    }

    /// Advances time to the next deadline while the driver waits. `Err`: there is no deadline, and only another thread can
    /// end the wait.
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
    type Locked<'a> = MutexGuard<'a, Table>;

    fn now(&self) -> Instant {
        self.state().now
    }

    /// A panic of another thread leaves the stack consistent between its calls, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, waits: Waits, call: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        table.set_clock(self.now());
        let result = call(&mut table);
        self.finish(&mut table);
        self.note_waits(waits);
        result
    }

    fn wait_for<T>(
        &self,
        limit: WaitLimit,
        waits: &mut Waits,
        mut attempt: impl FnMut(&mut Table, Instant) -> Option<T>,
        give_up: impl FnOnce(&mut Table) -> T,
    ) -> T {
        let mut table = self.lock();
        let started = self.now();
        let end = limit.end(started);
        let result = loop {
            let now = self.now();
            if let Some(result) = attempt(&mut table, now) {
                break result;
            }
            if limit.over(started, now).is_some() {
                break give_up(&mut table);
            }
            self.finish(&mut table);
            waits.any = true;
            table = self.wait(table, end);
        };
        self.finish(&mut table);
        self.note_waits(*waits);
        result
    }
}

fn this_thread() -> ThreadId {
    std::thread::current().id()
}

/// Returns whether a thread of this process runs or is ready to run.
fn runs(thread: Pid) -> bool {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state follows the name, which is in parentheses (proc_pid_stat(5)).
    let text = std::fs::read_to_string(&stat).unwrap_or_default();
    let (_, fields) = text.rsplit_once(')').unwrap_or_default();
    fields.trim_start().starts_with('R')
}

/// Waits until a thread that records a result sleeps.
fn await_sleep(thread: Pid) {
    let begun = std::time::Instant::now();
    while runs(thread) && begun.elapsed() < PATIENCE {
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Calls that advance the clock.
impl Posix<VirtualTime> {
    /// Runs the stack, and the threads that it wakes, until there is no more work at this time. The clock does not advance.
    pub fn run_now(&self) {
        drop(self.waiter().settle(self.lock()));
    }

    /// Returns the time, after a step of 1 us, so that a program which reads the clock in a loop sees it advance.
    /// The first reading after a blocking call takes no step: it returns the time at which the call returned.
    pub fn read_clock(&self) -> Instant {
        let clock = self.waiter();
        if let Some(returned) = clock.note_return(Next::RecordsResult) {
            return returned;
        }
        let end = clock.now() + STEP;
        drop(clock.pass(self.lock(), end));
        clock.now()
    }

    /// Advances time by `duration`.
    pub fn sleep(&self, duration: Duration) {
        let clock = self.waiter();
        let end = clock.now() + duration;
        let table = clock.pass(self.lock(), end);
        drop(table);
        let recording = clock.state().recording.take();
        if let Some(thread) = recording {
            await_sleep(thread);
        }
    }

    /// Advances time, from deadline to deadline, until `done` has a result. `None`: no deadline is left.
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
