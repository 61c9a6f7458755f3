//! The result of restoring the settings of a kernel NIC.

use std::fmt;

/// A setting that has changed since it was made, by another program or a device reset. `Display` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// The setting and its current value.
    pub what: String,
    /// The command that makes it again, if there is one.
    pub command: Option<String>,
}

/// The result of restoring the settings of a NIC. `Display` prints one line per setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Restored settings.
    pub restored: Vec<String>,
    /// Settings left as they are, because another program has changed them since.
    pub left: Vec<String>,
    /// Settings that could not be restored, with the reason. `devmem-tcp restore` tries again.
    pub failed: Vec<(String, String)>,
}

impl RestoreReport {
    /// Returns whether all settings were restored.
    pub fn is_exact(&self) -> bool {
        self.left.is_empty() && self.failed.is_empty()
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let restored = self.restored.iter().map(|what| format!("restored {what}"));
        let left = self.left.iter().map(|what| format!("left {what}"));
        let failed = self.failed.iter();
        let failed = failed.map(|(what, why)| format!("could not restore {what}: {why}"));
        let lines: Vec<_> = restored.chain(left).chain(failed).collect();
        f.write_str(&lines.join("\n"))
    }
}

#[doc(hidden)]
impl From<devmem_linux::nic_setup::Drift> for Drift {
    fn from(drift: devmem_linux::nic_setup::Drift) -> Self {
        let devmem_linux::nic_setup::Drift { what, command } = drift;
        Self { what, command }
    }
}

#[doc(hidden)]
impl From<devmem_linux::nic_setup::RestoreReport> for RestoreReport {
    fn from(report: devmem_linux::nic_setup::RestoreReport) -> Self {
        let devmem_linux::nic_setup::RestoreReport {
            restored,
            left,
            failed,
        } = report;
        let failed = failed.into_iter();
        Self {
            restored,
            left,
            failed: failed.map(|(what, why)| (what, why.to_string())).collect(),
        }
    }
}
