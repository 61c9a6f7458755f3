//! The background thread, which polls while no thread of the program does.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::calls::Leader;
use crate::driven::Driven;
use crate::driver::Driver;

/// Time without a poll by the program after which this thread polls.
const AWAY_AFTER: Duration = Duration::from_millis(2);

/// How long the thread sleeps while a thread of the program sleeps in a call; that one wakes it when it leaves the call.
const REST: Duration = Duration::from_secs(1);

/// The running background thread of a driver. Dropping it ends the thread.
#[derive(Debug)]
pub struct Background<D: Driven> {
    driver: Arc<Driver<D>>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Driven + 'static> Background<D> {
    /// Starts the thread, with a name for debuggers. It does not keep the driver alive.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn start(driver: &Arc<Driver<D>>, name: &str) -> std::io::Result<Self> {
        let polled = Arc::downgrade(driver);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&polled))?;
        Ok(Self {
            driver: Arc::clone(driver),
            thread: Some(thread),
        })
    }
}

impl<D: Driven> Drop for Background<D> {
    fn drop(&mut self) {
        self.driver.close();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // An error is a panic in the stack, which has been printed already.
            let _ = thread.join();
        }
    }
}

fn run<D: Driven>(driver: &Weak<Driver<D>>) {
    while let Some(driver) = driver.upgrade() {
        if driver.is_closing() {
            return;
        }
        step(&driver);
    }
}

/// Polls and leads if the program does not poll; otherwise sleeps for a tick, or until it is woken.
pub(crate) fn step<D: Driven>(driver: &Driver<D>) {
    let Some(mut core) = driver.lock_in_background() else {
        driver.rest_in_background(driver.blind_rest());
        return;
    };
    if let Leader::Program(..) = core.calls.leader {
        core.background_sleeps = true;
        drop(core);
        driver.rest_in_background(REST);
        driver.end_sleep_of_background();
        return;
    }
    let now = driver.now();
    let away = core
        .last_foreground
        .is_none_or(|last| now.saturating_since(last) >= AWAY_AFTER);
    if !away || driver.has_callers() {
        let Some(rest) = driver.rest(&mut core, now) else {
            driver.stay_awake();
            driver.poll(&mut core);
            return;
        };
        drop(core);
        driver.rest_in_background(rest);
        return;
    }
    driver.stay_awake();
    // If the link is empty and nothing waits for another look at it, the sleep ends at once if a packet has come meanwhile. A second
    // poll would take the lock that the threads need which this one has just woken.
    if !driver.poll(&mut core) || !core.wants_flush() {
        drop(driver.lead_in_background(core));
    }
}
