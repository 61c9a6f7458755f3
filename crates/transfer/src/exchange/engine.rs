//! What makes progress: calls of the program, or a thread of the fabric. One thread serves all endpoints of a fabric.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, Poller, Watch};

use super::arrivals::Arrivals;
use super::budget::Budget;
use super::endpoint::Shared;
use super::keeper::Keeper;
use super::linger::Lingering;

/// Longest sleep of the thread: bounds the delay of a missed wake-up.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Longest sleep while connections of closed endpoints linger: their ends are not watched.
const LINGER_TICK: Duration = Duration::from_millis(10);

/// Time between the thread's looks at connections that are not part of an endpoint.
const ARRIVALS_TICK: Duration = Duration::from_millis(100);

/// What makes progress with the endpoints of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Calls of the program: [`Endpoint::progress`](super::Endpoint::progress), or waiting for an event. Only closing connections needs
    /// no call: in real time a thread that exists for it does that.
    #[default]
    Calls,
    /// Also a thread of the fabric. Operations go on while the program does something else, and it sleeps in
    /// [`Endpoint::wait_event`](super::Endpoint::wait_event) until there is an event. The thread sleeps while there is nothing to do.
    Thread,
}

/// What the thread of a fabric and its endpoints share.
pub(super) struct Board {
    pub(super) engine: Engine,
    pub(super) poller: Poller,
    /// Endpoints that the thread serves. Locked during its turns, before the locks of the endpoints.
    endpoints: Mutex<Vec<Arc<Shared>>>,
    /// Connections that are not part of an endpoint. Locked before the connections of closed ones.
    arrivals: Mutex<Arrivals>,
    /// Connections of closed endpoints. Locked last, apart from the state of the keeper.
    lingering: Mutex<Vec<Lingering>>,
    pub(super) keeper: Keeper,
    /// Only calls move the clock: no thread may poll.
    is_virtual: bool,
    /// The process that has opened the fabric.
    process: u32,
    is_closing: AtomicBool,
}

impl Board {
    pub(super) fn new(nic: &Netdev, engine: Engine, arrivals: Arrivals) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            engine,
            poller: Poller::new(nic)?,
            endpoints: Mutex::default(),
            arrivals: Mutex::new(arrivals),
            lingering: Mutex::default(),
            keeper: Keeper::default(),
            is_virtual: nic.is_in_virtual_time(),
            process: std::process::id(),
            is_closing: AtomicBool::new(false),
        }))
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        let endpoints = self.endpoints.lock();
        endpoints.unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the thread serve an endpoint.
    pub(super) fn add(&self, endpoint: &Arc<Shared>) {
        if self.engine == Engine::Thread {
            self.endpoints().push(Arc::clone(endpoint));
            self.poller.wake();
        }
    }

    /// Takes an endpoint from the thread. Afterwards the thread has no handle of it, and so none of its fabric.
    pub(super) fn remove(&self, endpoint: &Arc<Shared>) {
        if self.engine == Engine::Thread {
            self.endpoints()
                .retain(|other| !Arc::ptr_eq(other, endpoint));
        }
    }

    /// Returns whether this is a child of fork(2). The threads of the fabric do not exist there, but may have held locks; and the connections
    /// belong to the parent.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has connections closed in time, although the program may make no further call.
    pub(super) fn keep(self: &Arc<Self>) {
        match self.engine {
            Engine::Thread => self.poller.wake(),
            Engine::Calls if self.is_virtual => {}
            Engine::Calls => self.keeper.start(self),
        }
    }

    /// Keeps the connections of a closed endpoint until the peer has closed them.
    pub(super) fn linger(self: &Arc<Self>, lingering: Lingering) {
        let all = self.lingering.lock();
        all.unwrap_or_else(PoisonError::into_inner).push(lingering);
        if self.step_lingering() > 0 {
            self.keep();
        }
    }

    /// Makes progress with closed endpoints, unless another thread does. Returns how many are left.
    pub(super) fn step_lingering(&self) -> usize {
        let Ok(mut all) = self.lingering.try_lock() else {
            return 1;
        };
        let mut budget = Budget::payload();
        all.retain_mut(|lingering| !lingering.step(&mut budget));
        if budget.left() == 0 && !all.is_empty() {
            // One that sends all the time must not use up the next turn, too.
            all.rotate_left(1);
        }
        all.len()
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
                half_made = self.arrivals().tidy(Instant::now());
                looked = Instant::now();
            }
            let at_most = match (self.step_lingering(), half_made) {
                (0, 0) => LONGEST_SLEEP,
                (0, _) => ARRIVALS_TICK,
                (_, _) => LINGER_TICK,
            };
            if !worked && self.poller.wait(&watches, at_most).is_err() {
                // Without descriptors or memory the thread polls.
                std::thread::sleep(LINGER_TICK);
            }
        }
    }
}

/// The running thread. Dropping it waits for the end of the thread.
pub(super) struct ProgressThread {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(super) fn start(board: &Arc<Board>) -> io::Result<Self> {
        let shared = Arc::clone(board);
        let thread = std::thread::Builder::new()
            .name("devmem-exchange".to_owned())
            .spawn(move || shared.run())?;
        Ok(Self {
            board: Arc::clone(board),
            thread: Some(thread),
        })
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.board.is_closing.store(true, Ordering::Release);
        self.board.poller.wake();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which has been printed already.
            let _ = thread.join();
        }
    }
}
