//! `devmem-tcp restore`: restores the settings that a crashed run left changed.

use std::path::Path;

use devmem_linux::nic_setup::{
    Leftover, LeftoverStatus, RestoreReport, StateError, StateFault, restore_from_state_file,
    state_files,
};
use serde::Serialize;

use crate::args;
use tool::output::{Failure, note, print_json, print_line};

/// Result of one interface. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
struct InterfaceReport {
    interface: String,
    restored: Vec<String>,
    left: Vec<String>,
    failed: Vec<String>,
}

impl InterfaceReport {
    fn of(interface: String, report: RestoreReport) -> Self {
        let RestoreReport {
            restored,
            left,
            failed,
        } = report;
        let failed = failed.iter().map(|(what, why)| format!("{what}: {why}"));
        Self {
            interface,
            restored,
            left,
            failed: failed.collect(),
        }
    }
}

/// Lists the changed settings, or restores them.
///
/// # Errors
///
/// A setting could not be restored, or the named interface is in use.
pub fn run(args: &args::Restore) -> Result<(), Failure> {
    let mut leftovers = Vec::new();
    let mut unread = Vec::new();
    for path in state_files()? {
        match Leftover::read(&path) {
            Ok(leftover) => leftovers.push(leftover),
            // The run has ended meanwhile and removed its file.
            Err(error) if error.is_not_found() => {}
            // An invalid file does not prevent the restoring of other interfaces.
            Err(error) => match args.interface.as_deref() {
                Some(name) if !is_named(&path, name) => {}
                _ => unread.push(error),
            },
        }
    }
    if let Some(name) = &args.interface {
        leftovers.retain(|leftover| leftover.interface == *name);
    }
    let judged = match unread.is_empty() {
        true => Judged::All,
        false => Judged::Some,
    };
    let done = match args.list {
        true => list(args, &leftovers, judged),
        false => restore(args, leftovers, judged),
    };
    // The error of the run is that of a failed restore, else that of the last invalid file.
    let last = match &done {
        Ok(()) => unread.pop(),
        Err(_) => None,
    };
    for error in unread {
        note(Failure::from(error));
    }
    match last {
        Some(error) => Err(error)?,
        None => done,
    }
}

/// Whether all state files could be read. Otherwise it is unknown whether settings are left changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    All,
    Some,
}

/// Returns whether a state file has the name of an interface: NAME-NAMESPACE.json.
fn is_named(path: &Path, interface: &str) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let rest = stem.and_then(|stem| stem.strip_prefix(interface)?.strip_prefix('-'));
    rest.is_some_and(|namespace| namespace.bytes().all(|byte| byte.is_ascii_digit()))
}

fn list(args: &args::Restore, leftovers: &[Leftover], judged: Judged) -> Result<(), Failure> {
    if args.output.json {
        return print_json(&leftovers);
    }
    if leftovers.is_empty() && judged == Judged::All {
        note("nothing is left to restore");
    }
    for leftover in leftovers {
        print_line(description(leftover))?;
    }
    Ok(())
}

/// Describes the status of an interface and its changes.
fn description(leftover: &Leftover) -> String {
    let Leftover {
        interface,
        pid,
        standing,
        changes,
        path,
    } = leftover;
    let standing = match standing {
        LeftoverStatus::Left => format!("left changed by process {pid}, which has ended"),
        LeftoverStatus::InUse => format!("in use by process {pid}, which restores it when it ends"),
        LeftoverStatus::OtherNamespace => {
            format!("left changed by process {pid} in another network namespace: restore it there")
        }
        LeftoverStatus::Void => "from an earlier boot, which the reboot has undone".to_owned(),
    };
    let mut text = format!("{interface}: {standing} ({})", path.display());
    for change in changes {
        text.push_str("\n  ");
        text.push_str(change);
    }
    text
}

fn restore(args: &args::Restore, leftovers: Vec<Leftover>, judged: Judged) -> Result<(), Failure> {
    let named = args.interface.is_some();
    let mut outcomes = Vec::new();
    let mut refused = None;
    for leftover in leftovers {
        let name = &leftover.interface;
        match leftover.standing {
            LeftoverStatus::InUse if named => {
                let pid = leftover.pid;
                refused = Some(format!(
                    "{name} is in use by process {pid}, which restores it when it ends"
                ));
            }
            LeftoverStatus::InUse | LeftoverStatus::OtherNamespace => note(description(&leftover)),
            LeftoverStatus::Void | LeftoverStatus::Left => outcomes.extend(restore_one(&leftover)),
        }
    }
    if args.output.json {
        print_json(&outcomes)?;
    }
    if let Some(refused) = refused {
        return Err(Failure::failed(refused));
    }
    if outcomes.is_empty() && judged == Judged::All {
        note("nothing is left to restore");
    }
    match complaint(&outcomes) {
        Some(complaint) => Err(Failure::failed(complaint)
            .with_remedy("the state file is kept, so that it can be tried again")),
        None => Ok(()),
    }
}

/// Returns the error for all settings that could not be restored, after all interfaces were tried.
fn complaint(outcomes: &[InterfaceReport]) -> Option<String> {
    let failed = outcomes.iter().filter(|outcome| !outcome.failed.is_empty());
    let words = failed.map(|outcome| {
        let why = outcome.failed.join("; ");
        format!("{} is not restored: {why}", outcome.interface)
    });
    let words: Vec<_> = words.collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Restores one interface; `None` if its state file was removed meanwhile.
fn restore_one(leftover: &Leftover) -> Option<InterfaceReport> {
    let interface = &leftover.interface;
    let report = match restore_from_state_file(&leftover.path) {
        Ok(report) => report,
        Err(StateError::NotOurs {
            fault: StateFault::OtherBoot,
            ..
        }) => {
            note(description(leftover));
            return None;
        }
        // Its run, or another `restore`, has restored it meanwhile.
        Err(error) if error.is_not_found() => return None,
        Err(error) => {
            return Some(InterfaceReport {
                interface: interface.clone(),
                restored: Vec::new(),
                left: Vec::new(),
                failed: vec![Failure::from(error).to_string()],
            });
        }
    };
    for line in report.to_string().lines() {
        note(line);
    }
    if report.is_exact() {
        note(format_args!("{interface} is restored"));
    }
    Some(InterfaceReport::of(interface.clone(), report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_restore_of_one_interface_does_not_prevent_that_of_others() {
        // A folder is not a state file: taking it over fails.
        let folder = tempfile::tempdir().unwrap();
        let leftover = |name: &str| Leftover {
            interface: name.to_owned(),
            pid: 1,
            standing: LeftoverStatus::Left,
            changes: Vec::new(),
            path: folder.path().join(format!("{name}.json")),
        };
        for name in ["one", "two"] {
            std::fs::create_dir_all(&leftover(name).path).unwrap();
        }
        let args = args::Restore {
            interface: None,
            list: false,
            output: tool::parse::OutputArgs { json: false },
        };
        let restored = restore(&args, vec![leftover("one"), leftover("two")], Judged::All);
        let said = restored.unwrap_err().to_string();
        for name in ["one", "two"] {
            assert!(
                said.contains(&format!("{name} is not restored: ")),
                "{said}"
            );
        }
    }

    #[test]
    fn a_state_file_has_the_name_of_its_interface() {
        let named = |path: &str, name| is_named(Path::new(path), name);
        assert!(named("/run/devmem-tcp/eth1-4026531840.json", "eth1"));
        assert!(named("/run/devmem-tcp/a-b-4026531840.json", "a-b"));
        assert!(!named("/run/devmem-tcp/eth1-b-4026531840.json", "eth1"));
        assert!(!named("/run/devmem-tcp/eth10-4026531840.json", "eth1"));
        assert!(!named("/run/devmem-tcp/eth1.json", "eth1"));
    }
}
