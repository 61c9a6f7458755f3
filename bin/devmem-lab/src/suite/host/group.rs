//! The results of a group, and the table of its rows.

use lab::accel::Accel;
use lab::group::Group;
use lab::machine::RunReport;
use serde::Serialize;
use tool::output::Failure;
use tool::terminal::tell_table;

use super::plan::{TestPlan, group_name, wanted_rows};
use crate::suite::report::RowReport;
use crate::verdict::Verdict;

/// Reason why a row of a guest that ended well has no report.
pub const NOT_RUN: &str = "it did not run";

/// Results of a group.
#[derive(Debug, Serialize)]
pub struct GroupReport {
    pub group: Group,
    /// How instructions were executed; `None` if the guest did not run.
    #[serde(skip)]
    pub accel: Option<Accel>,
    /// Of two guests, the longer time.
    boot_s: f64,
    /// How often a guest was started again because it gave no sign of life while booting.
    pub boot_retries: u32,
    total_s: f64,
    kernel_complaints: Vec<String>,
    pub rows: Vec<RowReport>,
}

impl GroupReport {
    /// Returns the results of a group of which nothing has run.
    pub fn new(group: Group) -> Self {
        Self {
            group,
            accel: None,
            boot_s: 0.0,
            boot_retries: 0,
            total_s: 0.0,
            kernel_complaints: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Returns the results of a group whose guest failed before any row: all have.
    pub fn lost(plan: &TestPlan, group: Group, failure: &Failure) -> Self {
        let rows = missing_rows(&wanted_rows(plan, group), &[], &failure.to_string());
        rows.iter().for_each(print_row);
        Self {
            rows,
            ..Self::new(group)
        }
    }

    /// Adds the run of a guest.
    pub fn add_run(&mut self, run: RunReport) {
        self.accel = Some(run.accel);
        self.boot_s = self.boot_s.max(run.boot_s);
        self.boot_retries += run.boot_retries;
        self.total_s = self.total_s.max(run.total_s);
        self.kernel_complaints.extend(run.kernel_complaints);
    }
}

/// Returns a failed row for each name that has no report, with the reason.
pub fn missing_rows(
    names: &[impl AsRef<str>],
    reported: &[RowReport],
    trouble: &str,
) -> Vec<RowReport> {
    let is_missing = |name: &&str| reported.iter().all(|row| row.row != *name);
    let names = names.iter().map(AsRef::as_ref).filter(is_missing);
    names.map(|name| failed_row(name, trouble)).collect()
}

/// Returns the row for the kernel's log.
pub fn log_row(report: &GroupReport) -> RowReport {
    let name = format!("{}: no kernel warning", group_name(report.group));
    if report.total_s == 0.0 {
        return failed_row(
            &name,
            "the guest did not end by itself: its log is not checked",
        );
    }
    match report.kernel_complaints.first() {
        None => RowReport {
            verdict: Verdict::Passed,
            ..failed_row(&name, &format!("boot {:.1} s", report.boot_s))
        },
        Some(first) => {
            let count = report.kernel_complaints.len();
            failed_row(&name, &format!("{count} complaints, the first: {first}"))
        }
    }
}

pub fn failed_row(name: &str, detail: &str) -> RowReport {
    RowReport {
        row: name.to_owned(),
        verdict: Verdict::Failed,
        detail: detail.to_owned(),
        seconds: 0.0,
        mb_per_s: None,
    }
}

/// Prints a row of the table.
pub fn print_row(row: &RowReport) {
    let mark = row.verdict.mark();
    let rate = row
        .mb_per_s
        .map(|rate| format!("{rate:7.1} MB/s"))
        .unwrap_or_else(|| " ".repeat(12));
    tell_table(format_args!(
        "{mark} {:<46} {:6.1} s {rate}  {}\n",
        row.row, row.seconds, row.detail
    ));
}
