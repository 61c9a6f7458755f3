//! Transfers of an agent to itself: copies within the process.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::broken::Broken;
use crate::inbox::Inbox;
use crate::log::warn;
use crate::raw::scatter::Scatter;
use crate::regions::Regions;
use crate::status::{Failure, Status};
use crate::transfer::{Op, Posted, Transfer};

/// Bytes that one turn copies at most.
const TURN_BYTES: usize = 2 << 20;

/// A transfer that is going on.
#[derive(Debug)]
struct Copying {
    transfer: Arc<Transfer>,
    from: Scatter,
    to: Scatter,
    notification: Option<Vec<u8>>,
}

/// Transfers of an agent to itself, in order.
#[derive(Debug)]
pub(crate) struct OwnTransfers {
    agent: Arc<str>,
    queue: VecDeque<Copying>,
}

impl OwnTransfers {
    pub(crate) fn new(agent: Arc<str>) -> Self {
        Self {
            agent,
            queue: VecDeque::new(),
        }
    }

    pub(crate) fn post(&mut self, posted: Posted, regions: &Regions) -> Result<(), Failure> {
        let transfer = Arc::clone(&posted.transfer);
        let remote = regions.own(transfer.spans());
        let (Some(local), Some(remote)) = (transfer.whole(&posted.uses), remote) else {
            let text = "a range of the transfer is not registered any more; prepare the transfer again with memory that is registered";
            return Err(Failure::new(Status::NotFound, text));
        };
        let (from, to) = match transfer.op {
            Op::Read => (remote, local),
            Op::Write => (local, remote),
        };
        self.queue.push_back(Copying {
            transfer,
            from,
            to,
            notification: posted.notification,
        });
        Ok(())
    }

    /// Copies. Returns how many bytes.
    pub(crate) fn turn(&mut self, inbox: &mut Inbox) -> usize {
        let mut budget = TURN_BYTES;
        while let Some(first) = self.queue.front_mut() {
            let copied = first.from.copy_to(&mut first.to, budget);
            budget -= *copied.as_ref().unwrap_or(&0);
            if copied.is_ok() && first.from.left() > 0 {
                break;
            }
            if let Some(Copying {
                transfer,
                from,
                to,
                notification,
            }) = self.queue.pop_front()
            {
                // Before the program learns of it: it may deregister the memory.
                drop((from, to));
                if let Err(error) = copied {
                    warn(&format!(
                        "a transfer of the agent to itself failed: {}",
                        Broken::from(error)
                    ));
                    transfer.set_status(Status::Backend);
                    continue;
                }
                if let Some(message) = notification {
                    inbox.push(&self.agent, message);
                }
                transfer.set_status(Status::Success);
            }
        }
        TURN_BYTES - budget
    }

    pub(crate) fn cancel(&mut self, transfer: &Arc<Transfer>) {
        self.queue.retain(|it| !Arc::ptr_eq(&it.transfer, transfer));
        transfer.set_status(Status::Cancelled);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}
