//! Copies that a device was given.

use std::sync::Arc;

use crate::device::{CopyEngine, DeviceError, Fence};

/// Copies that an engine is doing. Dropping it waits for their end, so an owner has it before the memory that it keeps.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) engine: Arc<dyn CopyEngine>,
    /// The last of them; `None`: there is none, or they are over.
    pub(crate) fence: Option<Fence>,
}

impl Submitted {
    pub(crate) fn none_by(engine: Arc<dyn CopyEngine>) -> Self {
        Self {
            engine,
            fence: None,
        }
    }

    /// Returns whether the copies are done. Does not wait.
    pub(crate) fn is_done(&mut self) -> Result<bool, DeviceError> {
        let Some(fence) = self.fence else {
            return Ok(true);
        };
        let done = self.engine.is_done(fence);
        if done != Ok(false) {
            self.fence = None;
        }
        done
    }

    /// Waits until the copies are done.
    pub(crate) fn wait(&mut self) -> Result<(), DeviceError> {
        match self.fence.take() {
            Some(fence) => self.engine.wait(fence),
            None => Ok(()),
        }
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // An error means that no copy is running any more; an owner that needs it calls `wait`.
        let _ = self.wait();
    }
}
