//! Header split off for a moment, to see a binding refused.

use super::NicSetup;
use super::apply::StepError;
use super::undo::Undo;
use crate::ethtool::{DataSplit, RingsChange};

impl NicSetup {
    /// Gives header split back to the driver, does `body`, and asks for it again. A crash meanwhile restores as at
    /// any other time.
    ///
    /// # Errors
    ///
    /// If header split cannot be switched, or the state file not be written.
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

    /// Writes down that header split is, or is not, as the driver likes it.
    fn mark_split(&mut self, is_given_back: bool) -> Result<(), StepError> {
        for change in &mut self.undo {
            if let Undo::Rings { given_back, .. } = change {
                *given_back = is_given_back;
            }
        }
        Ok(self.state.write(&self.undo)?)
    }
}
