//! Groups whose rows run in one guest, with both ends of a wire or our stack at the other end.

use lab::group::Group;
use lab::kit::Kit;
use lab::machine;
use lab::plan::job;
use lab::scratch::Scratch;
use serde::Deserialize;
use tool::output::{Failure, note};

use super::collect::Collector;
use super::far_end::FarEnd;
use super::group::{GroupReport, NOT_RUN, failed_row, log_row, missing_rows, print_row};
use super::plan::{TestPlan, group_name, guest_command, has_far_end, machine_for, wanted_rows};
use crate::places::{MIN_MEMORY_MIB, ROOT};
use crate::suite::report::RowReport;
use crate::verdict::Verdict;

/// Runs the rows of a group in one guest, and adds their reports to `report`.
///
/// # Errors
///
/// The guest failed, and there is no report of any row.
pub fn run_group(
    kit: &Kit,
    plan: &TestPlan,
    mut report: GroupReport,
) -> Result<GroupReport, Failure> {
    let group = report.group;
    let names = wanted_rows(plan, group);
    let folder = Scratch::new()?;
    let wire = folder.path("wire");
    let most = names.len() * 3;
    let far_end =
        has_far_end(group).then(|| FarEnd::new(&plan.machine.tool, &wire, plan.bytes, most));
    let mut collected = Collector::new(names.clone(), far_end, None, print_row);
    let mut machine = machine_for(&plan.machine, group, &wire);
    if let (Group::Long, Some(root)) = (group, &plan.root) {
        machine.trees.push((root.clone(), ROOT.to_owned()));
        machine.memory_mib = machine.memory_mib.max(MIN_MEMORY_MIB);
    }
    note(format_args!("{}: starting a guest", group_name(group)));
    let job = job(&machine, guest_command(plan, group));
    let outcome = machine::run(kit, &machine, &job, &mut collected);
    report.rows = collected.rows;
    let trouble = match outcome {
        Ok(outcome) => {
            report.add_run(outcome);
            NOT_RUN.to_owned()
        }
        Err(failure) if report.rows.is_empty() => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    report
        .rows
        .extend(far_rows(group, collected.far_end, plan.bytes));
    let missing = missing_rows(&names, &report.rows, &trouble);
    report.rows.extend(missing.into_iter().inspect(print_row));
    let log = log_row(&report);
    print_row(&log);
    report.rows.push(log);
    Ok(report)
}

/// Waits for the processes of our stack, and returns their results: each has a stream of `bytes`.
fn far_rows(group: Group, far_end: Option<FarEnd>, bytes: u64) -> Vec<RowReport> {
    let ended = far_end.map(FarEnd::finish).unwrap_or_default();
    let rows = ended.into_iter().enumerate().map(|(at, (what, ok, said))| {
        let ok = ok && bytes_of(&said) == Some(bytes);
        RowReport {
            verdict: match ok {
                true => Verdict::Passed,
                false => Verdict::Failed,
            },
            row: format!("{}: our end {}", group_name(group), at + 1),
            detail: if ok { what } else { format!("{what}: {said}") },
            ..failed_row("", "")
        }
    });
    rows.inspect(print_row).collect()
}

/// Returns the payload bytes in a report of `send` or `recv`.
fn bytes_of(report: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Report {
        bytes: u64,
    }
    let report: Report = serde_json::from_str(report).ok()?;
    Some(report.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_report_are_parsed() {
        assert_eq!(bytes_of(r#"{"backend":"user","bytes":4096}"#), Some(4096));
        assert_eq!(bytes_of(r#"{"bytes":0}"#), Some(0));
        assert_eq!(bytes_of("connection refused"), None);
    }
}
