//! Switches header split off for a moment, to test that a binding is refused.

use super::apply::StepError;
use super::setup::NicSetup;
use super::undo::Undo;
use crate::ethtool::{DataSplit, RingsChange};

impl NicSetup {
    /// Sets header split to the driver's choice, calls `body`, and switches header split on again. After a crash meanwhile
    /// the state file restores the settings as usual.
    ///
    /// # Errors
    ///
    /// If header split cannot be switched, or the state file cannot be written.
    pub fn without_split<T>(&mut self, body: impl FnOnce() -> T) -> Result<T, StepError> {
        self.mark_split(true)?;
        let split = |split, hds_thresh| RingsChange {
            data_split: Some(split),
            hds_thresh,
            ..RingsChange::default()
        };
        self.nic.set_rings(split(DataSplit::Unknown, None))?;
        let done = body();
        let thresh = self.nic.rings()?.hds_thresh.map(|_| 0);
        self.nic.set_rings(split(DataSplit::Enabled, thresh))?;
        self.keep_table()?;
        self.mark_split(false)?;
        Ok(done)
    }

    /// Records in the state file whether header split is the driver's choice.
    fn mark_split(&mut self, is_given_back: bool) -> Result<(), StepError> {
        for change in &mut self.undo {
            if let Undo::Rings { given_back, .. } = change {
                *given_back = is_given_back;
            }
        }
        Ok(self.state.write(&self.undo)?)
    }
}
