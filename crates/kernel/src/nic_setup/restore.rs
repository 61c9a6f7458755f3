//! Restoring the previous settings exactly, in reverse order.

use std::fmt;
use std::mem;
use std::path::Path;

use devmem_uapi::Errno;

use super::control::{KernelNic, NicControl};
use super::setup::NicSetup;
use super::state::{StateError, StateFile};
use super::undo::Undo;
use crate::ethtool::{DataSplit, EthtoolError, InstalledRule, RingsChange};

/// The outcome of restoring, for each change.
#[derive(Debug, Default)]
pub struct RestoreReport {
    /// Restored settings.
    pub restored: Vec<String>,
    /// Settings left as they are, because another program has changed them since.
    pub left: Vec<String>,
    /// Settings that could not be restored, with the reason. The state file is kept, and restoring can be tried again.
    pub failed: Vec<(String, EthtoolError)>,
}

impl RestoreReport {
    /// Returns whether all settings were restored.
    pub fn is_exact(&self) -> bool {
        self.left.is_empty() && self.failed.is_empty()
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            restored,
            left,
            failed,
        } = self;
        let mut separator = "";
        for what in restored {
            write!(f, "{separator}restored {what}")?;
            separator = "\n";
        }
        for what in left {
            write!(f, "{separator}left {what}: another program has changed it")?;
            separator = "\n";
        }
        for (what, why) in failed {
            write!(f, "{separator}could not restore {what}: {why}")?;
            separator = "\n";
        }
        Ok(())
    }
}

/// The outcome of restoring one change.
pub(super) enum UndoResult {
    Restored,
    /// Another program has changed it since.
    Foreign,
}

impl NicSetup {
    /// Restores the previous settings and returns a report; dropping restores them without one. In a child of fork(2) both do
    /// nothing, because the settings belong to the parent.
    pub fn restore(mut self) -> RestoreReport {
        self.put_back()
    }

    fn put_back(&mut self) -> RestoreReport {
        if !self.state.is_of_this_process() {
            return RestoreReport::default();
        }
        let undo = mem::take(&mut self.undo);
        put_back(self.nic.as_mut(), &mut self.state, undo)
    }
}

impl Drop for NicSetup {
    fn drop(&mut self) {
        // In a child of fork(2) the settings and the state file belong to the parent.
        if !self.undo.is_empty() && self.state.is_of_this_process() {
            let _report = self.put_back();
        }
    }
}

/// Restores the settings that a crashed process left changed, from its state file.
///
/// # Errors
///
/// See [`StateError`]: the process is still alive, or the file cannot be trusted.
pub fn restore_from_state_file(path: &Path) -> Result<RestoreReport, StateError> {
    let (state, record) = StateFile::take_over(path)?;
    let nic = KernelNic::by_index(&record.interface, record.index());
    let nic = nic.map_err(StateError::Kernel)?;
    Ok(put_back_recorded(Box::new(nic), state, record.undo))
}

/// Restores as [`restore_from_state_file`] does, for any [`NicControl`].
pub(super) fn put_back_recorded(
    mut nic: Box<dyn NicControl + Send>,
    mut state: StateFile,
    undo: Vec<Undo>,
) -> RestoreReport {
    put_back(nic.as_mut(), &mut state, undo)
}

fn put_back(nic: &mut dyn NicControl, state: &mut StateFile, undo: Vec<Undo>) -> RestoreReport {
    // An error is ignored: the record is needed only if this process crashes while it restores.
    let _ = state.write(&begun(&undo));
    let (report, kept) = take_all_back(nic, &undo);
    state.finish(&kept);
    report
}

/// Undoes the changes, the last one first. Returns the outcome of each, and the changes that a later try may undo.
pub(super) fn take_all_back(nic: &mut dyn NicControl, undo: &[Undo]) -> (RestoreReport, Vec<Undo>) {
    let mut report = RestoreReport::default();
    let mut kept = Vec::new();
    let mut ours = Vec::new();
    for change in undo.iter().rev() {
        let what = describe(nic.name(), change);
        match take_back(nic, change) {
            Ok(UndoResult::Restored) => {
                ours.push(change.clone());
                if change.is_change() {
                    report.restored.push(what);
                }
            }
            Ok(UndoResult::Foreign) => report.left.push(what),
            // The interface was removed, and its settings with it.
            Err(error) if error.errno() == Some(Errno::ENODEV) => report.restored.push(what),
            Err(error) => {
                report.failed.push((what, error));
                kept.push(change.clone());
            }
        }
    }
    kept.extend(look_again(nic, &begun(&ours), &mut report));
    // In the order in which they were made, as in a record.
    let (kept, undo) = (begun(&kept), begun(undo));
    let kept = undo.into_iter().filter(|u| kept.contains(u)).collect();
    (report, kept)
}

/// Reads the restored settings back, in the same order, because restoring one setting can make a driver change another.
/// Returns the changes that are not undone after all.
fn look_again(nic: &mut dyn NicControl, done: &[Undo], report: &mut RestoreReport) -> Vec<Undo> {
    let mut kept = Vec::new();
    for change in done {
        if is_back(nic, change).unwrap_or(true) {
            continue;
        }
        let what = describe(nic.name(), change);
        report.restored.retain(|restored| *restored != what);
        match take_back(nic, change) {
            Ok(_) if is_back(nic, change).unwrap_or(true) => report.restored.push(what),
            Ok(_) => report.left.push(what),
            Err(error) => {
                report.failed.push((what, error));
                kept.push(change.clone());
            }
        }
    }
    kept
}

/// Returns the changes marked as being restored: header split passes through a third state on its way back.
fn begun(undo: &[Undo]) -> Vec<Undo> {
    let mut begun = undo.to_vec();
    for change in &mut begun {
        if let Undo::Rings { given_back, .. } = change {
            *given_back = true;
        }
    }
    begun
}

/// Undoes one change. Can be called again, and also if the change was never made.
pub(super) fn take_back(
    nic: &mut dyn NicControl,
    change: &Undo,
) -> Result<UndoResult, EthtoolError> {
    match change {
        Undo::Rule { .. } => remove_rule(nic, change),
        Undo::Context { .. } => remove_context(nic, change),
        Undo::Netkit { name, index, .. } => remove_netkit(nic, name, *index),
        Undo::RssTable { before, set } => restore_table(nic, before, set),
        Undo::Rings {
            split_before,
            thresh_before,
            given_back,
        } => restore_rings(nic, *split_before, *thresh_before, *given_back),
        Undo::Feature { name, before } => {
            if *before {
                return Ok(UndoResult::Restored);
            }
            // Turning the feature off would remove the rules of all programs.
            if change.is_ntuple() && nic.rules().is_ok_and(|rules| !rules.is_empty()) {
                return Ok(UndoResult::Foreign);
            }
            nic.set_feature(name, false)?;
            Ok(UndoResult::Restored)
        }
    }
}

fn remove_rule(nic: &mut dyn NicControl, change: &Undo) -> Result<UndoResult, EthtoolError> {
    let Undo::Rule {
        location,
        flow,
        action,
    } = change
    else {
        return Ok(UndoResult::Restored);
    };
    let ours = |rule: &&InstalledRule| rule.flow == Some(*flow) && rule.action == *action;
    let rules = nic.rules()?;
    let found = match location {
        // The crash was during the addition. No such rule existed before, so if there is one, it is ours.
        None => rules.iter().find(ours),
        Some(location) => match rules.iter().find(|rule| rule.location == *location) {
            Some(rule) if ours(&rule) => Some(rule),
            Some(_) => return Ok(UndoResult::Foreign),
            None => None,
        },
    };
    if let Some(rule) = found {
        nic.delete_rule(rule.location)?;
    }
    Ok(UndoResult::Restored)
}

fn remove_context(nic: &mut dyn NicControl, change: &Undo) -> Result<UndoResult, EthtoolError> {
    let Undo::Context {
        context,
        table,
        others,
    } = change
    else {
        return Ok(UndoResult::Restored);
    };
    let now = match nic.rss_contexts() {
        Ok(now) => now,
        Err(error) if error.is_unsupported() => match context {
            // The driver cannot list contexts; ours is identified by its number.
            Some(context) => {
                nic.delete_rss_context(*context)?;
                return Ok(UndoResult::Restored);
            }
            None => return Ok(UndoResult::Restored),
        },
        Err(error) => return Err(error),
    };
    let found = match context {
        Some(context) => now.iter().find(|c| c.context == *context),
        // The crash was during the creation. A context that did not exist before and has our table is ours.
        None => now
            .iter()
            .find(|c| !others.contains(&c.context) && c.table == *table),
    };
    match found {
        Some(found) if found.table != *table => Ok(UndoResult::Foreign),
        Some(found) => {
            nic.delete_rss_context(found.context)?;
            Ok(UndoResult::Restored)
        }
        None => Ok(UndoResult::Restored),
    }
}

/// Removes a netkit, which ends the leases and the bindings of its queues.
fn remove_netkit(
    nic: &mut dyn NicControl,
    name: &str,
    index: Option<u32>,
) -> Result<UndoResult, EthtoolError> {
    let netkits = nic.netkits()?;
    let found = match index {
        Some(index) => netkits.iter().find(|(found, _)| *found == index),
        // The crash was while it was made. There was none of this name before, so if there is one, it is ours.
        None => netkits.iter().find(|(_, found)| found == name),
    };
    if let Some((index, _)) = found {
        nic.remove_netkit(*index)?;
    }
    Ok(UndoResult::Restored)
}

fn restore_table(
    nic: &mut dyn NicControl,
    before: &[u32],
    set: &[u32],
) -> Result<UndoResult, EthtoolError> {
    let now = nic.rss()?.table;
    if now == before {
        return Ok(UndoResult::Restored);
    }
    let queues = u32::try_from(nic.rx_queues()?.len()).unwrap_or(0);
    // The driver's default table instead of ours: the driver forgot ours.
    if now != set && !is_drivers_own(&now, queues) {
        return Ok(UndoResult::Foreign);
    }
    // If the previous table is the driver's default, the default is requested, so that it still follows later changes of the
    // number of channels; a table that was set explicitly is set again.
    if is_drivers_own(before, queues) && nic.reset_rss_table().is_ok() && nic.rss()?.table == before
    {
        return Ok(UndoResult::Restored);
    }
    nic.set_rss_table(before)?;
    Ok(UndoResult::Restored)
}

/// Returns whether a table is the driver's default (linux include/linux/ethtool.h `ethtool_rxfh_indir_default`).
fn is_drivers_own(table: &[u32], queues: u32) -> bool {
    queues != 0 && (0u32..).zip(table).all(|(i, queue)| *queue == i % queues)
}

/// Sets header split to the driver's choice, reads it, and sets the old value explicitly only if the two differ: some drivers
/// refuse an explicit "off" although it is their default. `given_back`: an earlier process may have made the first step.
fn restore_rings(
    nic: &mut dyn NicControl,
    split_before: DataSplit,
    thresh_before: Option<u32>,
    given_back: bool,
) -> Result<UndoResult, EthtoolError> {
    let now = nic.rings()?;
    let ours = now.data_split == Some(DataSplit::Enabled) && now.hds_thresh.unwrap_or(0) == 0;
    // The same value may be our explicit "on" instead of the driver's earlier choice.
    if now.data_split == Some(split_before) && now.hds_thresh == thresh_before && !ours {
        return Ok(UndoResult::Restored);
    }
    if !ours && !given_back {
        return Ok(UndoResult::Foreign);
    }
    let split = |split| RingsChange {
        data_split: Some(split),
        hds_thresh: thresh_before,
        ..RingsChange::default()
    };
    let gently = nic.set_rings(split(DataSplit::Unknown));
    let now = nic.rings()?;
    if now.data_split == Some(split_before) && now.hds_thresh == thresh_before {
        return Ok(UndoResult::Restored);
    }
    match nic.set_rings(split(split_before)) {
        Ok(()) => Ok(UndoResult::Restored),
        // The driver's error for the first request explains more.
        Err(error) => Err(gently.err().unwrap_or(error)),
    }
}

/// Returns whether a change is undone.
fn is_back(nic: &mut dyn NicControl, change: &Undo) -> Result<bool, EthtoolError> {
    Ok(match change {
        Undo::Feature { name, before } => nic.feature(name)?.is_none_or(|f| f.wanted == *before),
        Undo::Rings {
            split_before,
            thresh_before,
            ..
        } => {
            let rings = nic.rings()?;
            rings.data_split == Some(*split_before) && rings.hds_thresh == *thresh_before
        }
        Undo::RssTable { before, .. } => nic.rss()?.table == *before,
        // These cannot come back by themselves.
        Undo::Context { .. } | Undo::Rule { .. } | Undo::Netkit { .. } => true,
    })
}

fn describe(interface: &str, change: &Undo) -> String {
    match change {
        Undo::Feature { name, before } => {
            let word = if *before { "on" } else { "off" };
            format!("feature {name} {word} on {interface}")
        }
        Undo::Rings {
            split_before,
            thresh_before,
            ..
        } => {
            let thresh = thresh_before.map_or_else(String::new, |t| format!(" hds-thresh {t}"));
            format!("tcp-data-split {split_before}{thresh} on {interface}")
        }
        Undo::RssTable { before, .. } => format!(
            "the RSS table of {interface} ({})",
            super::undo::table_words(before)
        ),
        Undo::Context { context, .. } => format!(
            "no RSS context {} on {interface}",
            context.map_or_else(|| "of ours".to_owned(), |c| c.to_string())
        ),
        Undo::Rule { flow, .. } => format!("no rule for {flow} on {interface}"),
        Undo::Netkit { name, .. } => format!("no netkit {name} with queues of {interface}"),
    }
}
