//! The thread that makes progress with the endpoints of a fabric, if the program wants one: one thread for all of them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devmem_tcp::Watch;

use crate::fabric_connections::FabricConnections;
use crate::shared::Shared;

/// Longest sleep of the thread: bounds the delay of a missed wake-up.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Longest sleep while connections of closed endpoints linger: their ends are not watched.
const LINGER_TICK: Duration = Duration::from_millis(10);

/// Time between the thread's looks at connections that are not part of an endpoint.
const ARRIVALS_TICK: Duration = Duration::from_millis(100);

/// The running thread. Dropping it waits for the end of the thread.
pub(crate) struct ProgressThread {
    served: Arc<Served>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works on.
struct Served {
    connections: Arc<FabricConnections>,
    /// Locked during the thread's turns, before the locks of the endpoints.
    endpoints: Mutex<Vec<Arc<Shared>>>,
    is_closing: AtomicBool,
}

impl ProgressThread {
    pub(crate) fn start(connections: &Arc<FabricConnections>) -> io::Result<Self> {
        let served = Arc::new(Served {
            connections: Arc::clone(connections),
            endpoints: Mutex::default(),
            is_closing: AtomicBool::new(false),
        });
        let shared = Arc::clone(&served);
        let thread = std::thread::Builder::new()
            .name("devmem-exchange".to_owned())
            .spawn(move || shared.run())?;
        Ok(Self {
            served,
            thread: Some(thread),
        })
    }

    /// Lets the thread serve an endpoint.
    pub(crate) fn add(&self, endpoint: &Arc<Shared>) {
        self.served.endpoints().push(Arc::clone(endpoint));
        self.served.connections.poller.wake();
    }

    /// Takes an endpoint from the thread. Afterwards the thread has no handle of it.
    pub(crate) fn remove(&self, endpoint: &Arc<Shared>) {
        let mut endpoints = self.served.endpoints();
        endpoints.retain(|other| !Arc::ptr_eq(other, endpoint));
    }
}

impl Served {
    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        let endpoints = self.endpoints.lock();
        endpoints.unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a turn of each endpoint. Returns whether one of them did something. Afterwards `watches` are what all of them
    /// wait for.
    fn turn(&self, watches: &mut Vec<Watch>) -> bool {
        watches.clear();
        let mut worked = false;
        for endpoint in self.endpoints().iter() {
            worked |= endpoint.turn(watches);
        }
        worked
    }

    fn run(&self) {
        let mut watches = Vec::new();
        let (mut looked, mut half_made) = (Instant::now(), 0);
        while !self.is_closing.load(Ordering::Acquire) {
            let worked = self.turn(&mut watches);
            if looked.elapsed() >= ARRIVALS_TICK {
                half_made = self.connections.arrivals().tidy(Instant::now());
                looked = Instant::now();
            }
            let at_most = match (self.connections.step_lingering(), half_made) {
                (0, 0) => LONGEST_SLEEP,
                (0, _) => ARRIVALS_TICK,
                (_, _) => LINGER_TICK,
            };
            if !worked && self.connections.poller.wait(&watches, at_most).is_err() {
                // Without descriptors or memory the thread polls.
                std::thread::sleep(LINGER_TICK);
            }
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.served.is_closing.store(true, Ordering::Release);
        self.served.connections.poller.wake();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which has been printed already.
            let _ = thread.join();
        }
    }
}
