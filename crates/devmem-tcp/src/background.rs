//! The thread that keeps a stack alive while the application is elsewhere.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::driver::{Driver, Leader};

/// How often the thread looks whether the application still polls. While it does, this is all the thread costs.
const TICK: Duration = Duration::from_millis(10);

/// The application is away when it has not polled for this long.
const AWAY_AFTER: Duration = Duration::from_millis(2);

/// How long it rests while a thread of the application sleeps in a call; that thread wakes it when it leaves.
const REST: Duration = Duration::from_secs(1);

/// The running background thread; ends when the driver is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread. It holds only a weak reference: the driver's owner decides how long it lives.
    pub(crate) fn start(driver: &Arc<Driver>) -> std::io::Result<Self> {
        let driver = Arc::downgrade(driver);
        let thread = std::thread::Builder::new()
            .name("devmem-tcp".to_owned())
            .spawn(move || run(&driver))?;
        Ok(Self {
            thread: Some(thread),
        })
    }

    /// Waits for the thread's end. The caller has made the driver unreachable and woken it.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread's only way to fail is a panic in the stack, which has been printed.
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

/// Leads if the application is away; else only looks again after a tick, or when it is told to.
fn step(driver: &Driver) {
    let Some(mut core) = driver.lock_in_background() else {
        driver.rest_in_background(TICK);
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
        drop(core);
        driver.rest_in_background(TICK);
        return;
    }
    if !driver.poll(&mut core) {
        drop(driver.lead_in_background(core));
    }
}
