//! Change of a queue's memory while the other queues run.

use std::sync::Arc;

use steer::RxQueueId;

use super::Nic;
use crate::queue_mgmt::{ProviderChoice, QueueMemory};
use crate::restart_error::RestartError;

impl Nic {
    /// Gives a queue other memory. The other queues keep running; frags of the old memory that are in use
    /// stay valid, and the old memory is freed when the last of them is dropped.
    ///
    /// # Errors
    /// [`RestartError`]: the queue continues with its old memory.
    pub fn restart_queue(
        &mut self,
        queue: RxQueueId,
        choice: ProviderChoice,
    ) -> Result<(), RestartError> {
        let queues = self.rx_queue_count();
        let Some(target) = self.rx.queues.get_mut(queue.index()) else {
            return Err(RestartError::NoSuchQueue { queue, queues });
        };
        let mut new = QueueMemory::allocate(choice, &self.config)?;
        target.memory.stop();
        match new.start() {
            Ok(()) => {
                let old = std::mem::replace(&mut target.memory, new);
                drop(old);
                self.note_sharing();
                Ok(())
            }
            Err(error) => {
                // `stop` has returned the posted net_iovs to the pool, so this finds them.
                let restarted = target.memory.start();
                debug_assert!(restarted.is_ok() || target.memory.fill.pool.available_niovs() == 0);
                Err(error)
            }
        }
    }

    /// Divides each provider's memory equally among its queues: a queue advertises receive windows for its share only.
    pub(crate) fn note_sharing(&mut self) {
        let providers: Vec<_> = self
            .rx
            .queues
            .iter()
            .map(|queue| Arc::clone(queue.memory.fill.pool.provider()))
            .collect();
        for queue in &mut self.rx.queues {
            let fill = &mut queue.memory.fill;
            let mine = fill.pool.provider();
            let sharers = providers
                .iter()
                .filter(|other| Arc::ptr_eq(other, mine))
                .count();
            fill.set_share(mine.area().count() as usize / sharers.max(1));
        }
    }
}
