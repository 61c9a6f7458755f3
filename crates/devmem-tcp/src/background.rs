//! The background thread, which polls a stack while no application thread does.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::driver::{Driver, Leader};

/// How often the thread checks whether the application still polls. While it does, the thread does nothing else.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Time without a poll by the application after which this thread polls.
const AWAY_AFTER: Duration = Duration::from_millis(2);

/// How long the thread sleeps while an application thread sleeps in a call; that thread wakes it when it leaves the call.
const REST: Duration = Duration::from_secs(1);

/// The running background thread; ends when the driver is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread. It holds only a weak reference to the driver, so it does not keep the driver alive.
    pub(crate) fn start(driver: &Arc<Driver>) -> std::io::Result<Self> {
        let driver = Arc::downgrade(driver);
        let thread = std::thread::Builder::new()
            .name("devmem-tcp".to_owned())
            .spawn(move || run(&driver))?;
        Ok(Self {
            thread: Some(thread),
        })
    }

    /// Waits for the thread to end. The caller has called [`Driver::close`].
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // An error is a panic in the stack, which has been printed already.
            let _ = thread.join();
        }
    }
}

fn run(driver: &Weak<Driver>) {
    while let Some(driver) = driver.upgrade() {
        if driver.is_closing() {
            return;
        }
        step(&driver);
    }
}

/// Polls and leads if the application does not poll; otherwise sleeps for a tick, or until it is woken.
pub(crate) fn step(driver: &Driver) {
    let Some(mut core) = driver.lock_in_background() else {
        driver.rest_in_background(driver.blind_rest());
        return;
    };
    if let Leader::Application(..) = core.leader {
        core.background_sleeps = true;
        drop(core);
        driver.rest_in_background(REST);
        driver.lock().background_sleeps = false;
        return;
    }
    let now = core.clock.now();
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
