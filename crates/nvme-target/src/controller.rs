//! Controllers: one for each association.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme::Status;
use nvme::property::Phase;

/// All controllers, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    controllers: Mutex<BTreeMap<u16, Arc<Controller>>>,
}

/// The end of one association.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    /// Name of its host.
    host_nqn: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    configuration: u32,
    /// Its connections, by the number of their queue.
    queues: BTreeMap<u16, TcpStream>,
}

impl Controllers {
    /// Begins an association with the host whose admin queue is `stream`.
    pub(crate) fn add(&self, host_nqn: String, stream: TcpStream) -> Option<Arc<Controller>> {
        let mut controllers = lock(&self.controllers);
        let id = (1..=u16::MAX - 1).find(|id| !controllers.contains_key(id))?;
        let controller = Arc::new(Controller {
            id,
            host_nqn,
            state: Mutex::new(State {
                configuration: 0,
                queues: BTreeMap::from([(0, stream)]),
            }),
        });
        controllers.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// Returns the controller of a host that connects an I/O queue.
    pub(crate) fn get(&self, id: u16, host_nqn: &str) -> Option<Arc<Controller>> {
        let controllers = lock(&self.controllers);
        let found = controllers.get(&id)?;
        (found.host_nqn == host_nqn).then(|| Arc::clone(found))
    }

    /// Ends a controller and its queues: its admin queue has ended.
    pub(crate) fn remove(&self, controller: &Controller) {
        lock(&self.controllers).remove(&controller.id);
        controller.end();
    }

    pub(crate) fn end_all(&self) {
        for controller in std::mem::take(&mut *lock(&self.controllers)).into_values() {
            controller.end();
        }
    }
}

impl Controller {
    /// Adds a queue.
    ///
    /// # Errors
    /// It is there already, or the controller is not enabled.
    pub(crate) fn connect(&self, queue: u16, stream: TcpStream) -> Result<(), Status> {
        let mut state = lock(&self.state);
        let is_ready = Phase::of(Phase::after(state.configuration)) == Phase::Ready;
        if !is_ready || state.queues.contains_key(&queue) {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        state.queues.insert(queue, stream);
        Ok(())
    }

    pub(crate) fn disconnect(&self, queue: u16) {
        lock(&self.state).queues.remove(&queue);
    }

    pub(crate) fn configure(&self, configuration: u32) {
        lock(&self.state).configuration = configuration;
    }

    pub(crate) fn configuration(&self) -> u32 {
        lock(&self.state).configuration
    }

    fn end(&self) {
        for stream in lock(&self.state).queues.values() {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both are valid at any time, so a panic of another thread does not matter.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
