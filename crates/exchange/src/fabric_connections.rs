//! Connections of a fabric that are not those of an endpoint, and the poller for all of them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use devmem_tcp::{Netdev, Poller};

use crate::arrivals::Arrivals;
use crate::budget::Budget;
use crate::closing_thread::ClosingThread;
use crate::linger::Lingering;
use crate::options::Engine;

/// What endpoints leave behind and have before them: the connections of closed ones, and those that are not part of one yet; and what watches
/// them.
pub(crate) struct FabricConnections {
    pub(crate) engine: Engine,
    pub(crate) poller: Poller,
    /// Connections that are not part of an endpoint. Locked before the connections of closed ones.
    arrivals: Mutex<Arrivals>,
    /// Connections of closed endpoints. Locked last, apart from the state of the closing thread.
    lingering: Mutex<Vec<Lingering>>,
    pub(crate) closing_thread: Arc<ClosingThread>,
    /// Only calls move the clock: no thread may poll.
    is_virtual: bool,
    /// The process that has opened the fabric.
    process: u32,
}

impl FabricConnections {
    pub(crate) fn new(nic: &Netdev, engine: Engine, arrivals: Arrivals) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            engine,
            poller: Poller::new(nic)?,
            arrivals: Mutex::new(arrivals),
            lingering: Mutex::default(),
            closing_thread: Arc::default(),
            is_virtual: nic.is_in_virtual_time(),
            process: std::process::id(),
        }))
    }

    /// Returns whether this is a child of fork(2). The threads of the fabric do not exist there, but may have held locks; and the connections
    /// belong to the parent.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections whose time is over. Returns how many are left of those that have to be closed in time.
    fn tidy(&self) -> usize {
        self.step_lingering() + self.arrivals().tidy(Instant::now())
    }

    /// Has connections closed in time, although the program may make no further call.
    pub(crate) fn keep(self: &Arc<Self>) {
        match self.engine {
            Engine::Thread => self.poller.wake(),
            Engine::Calls if self.is_virtual => {}
            Engine::Calls => {
                let connections = Arc::clone(self);
                self.closing_thread.start(move || connections.tidy() > 0);
            }
        }
    }

    /// Keeps the connections of a closed endpoint until the peer has closed them.
    pub(crate) fn linger(self: &Arc<Self>, lingering: Lingering) {
        let all = self.lingering.lock();
        all.unwrap_or_else(PoisonError::into_inner).push(lingering);
        if self.step_lingering() > 0 {
            self.keep();
        }
    }

    /// Makes progress with closed endpoints, unless another thread does. Returns how many are left.
    pub(crate) fn step_lingering(&self) -> usize {
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
}
