//! `devmem-tcp lab test`: runs a guest for each group and prints a table of the results.

mod collect;
mod far_end;
mod group;
mod one_guest;
pub mod plan;
mod two_guests;

use std::time::Instant;

use lab::accel::Accel;
use lab::group::Group;
use lab::kit::Kit;
use serde::Serialize;
use tool::output::{Failure, note, print_json};

use self::group::GroupReport;
use self::plan::{TestPlan, has_two_guests, wanted_rows};
use super::stack_rows;
use crate::verdict::Verdict;

/// Results of all groups.
#[derive(Debug, Serialize)]
struct TestReport {
    passed: usize,
    failed: usize,
    skipped: usize,
    accel: Accel,
    bytes: u64,
    qemu: String,
    kernel: String,
    seconds: f64,
    /// How often a guest was started again because it gave no sign of life while booting.
    boot_retries: u32,
    /// Rate of device memory divided by that of an ordinary socket, for streams without verification.
    #[serde(skip_serializing_if = "Option::is_none")]
    devmem_rx_to_plain: Option<f64>,
    groups: Vec<GroupReport>,
}

/// Runs the groups.
///
/// # Errors
///
/// A guest did not boot; a row failed or did not run; or the kernel logged a warning.
pub fn run(kit: &Kit, plan: &TestPlan) -> Result<(), Failure> {
    let start = Instant::now();
    let groups = run_groups(kit, plan)?;
    let all = || groups.iter().flat_map(|group: &GroupReport| &group.rows);
    let count = |verdict| all().filter(|row| row.verdict == verdict).count();
    let rate = |name: &str| all().find(|row| row.row == name)?.mb_per_s;
    let (plain, devmem) = (
        rate(stack_rows::SPEED_PLAIN),
        rate(stack_rows::SPEED_DEVMEM),
    );
    let devmem_rx_to_plain = plain
        .zip(devmem)
        .map(|(plain, devmem)| devmem / plain.max(1e-9));
    let report = TestReport {
        devmem_rx_to_plain,
        passed: count(Verdict::Passed),
        failed: count(Verdict::Failed),
        skipped: count(Verdict::Skipped),
        accel: groups
            .iter()
            .find_map(|group| group.accel)
            .unwrap_or(plan.machine.accel),
        bytes: plan.bytes,
        qemu: kit.qemu.version.clone(),
        kernel: kit.kernel.release.clone(),
        seconds: start.elapsed().as_secs_f64(),
        boot_retries: groups.iter().map(|group| group.boot_retries).sum(),
        groups,
    };
    note(format_args!(
        "{} passed, {} failed, {} skipped, in {:.0} s",
        report.passed, report.failed, report.skipped, report.seconds
    ));
    if report.boot_retries > 0 {
        note(format_args!(
            "guests that gave no sign of life while booting, and were started again: {}",
            report.boot_retries
        ));
    }
    if let Some(ratio) = report.devmem_rx_to_plain {
        note(format_args!(
            "devmem rx runs at {ratio:.1}x the rate of an ordinary socket"
        ));
    }
    if plan.json {
        print_json(&report)?;
    }
    judge(&report)
}

/// Runs each group. Once a guest has run, a group whose guest fails is a failed group, and the next ones run.
fn run_groups(kit: &Kit, plan: &TestPlan) -> Result<Vec<GroupReport>, Failure> {
    let mut groups: Vec<GroupReport> = Vec::new();
    for group in &plan.groups {
        let has_run = groups.iter().any(|group| group.accel.is_some());
        groups.push(match run_group(kit, plan, *group) {
            Err(failure) if has_run && !plan.machine.stop.is_set() => {
                GroupReport::lost(plan, *group, &failure)
            }
            ran => ran?,
        });
    }
    Ok(groups)
}

fn run_group(kit: &Kit, plan: &TestPlan, group: Group) -> Result<GroupReport, Failure> {
    let report = GroupReport::new(group);
    if wanted_rows(plan, group).is_empty() {
        return Ok(report);
    }
    match has_two_guests(group) {
        true => two_guests::run_group(kit, plan, report),
        false => one_guest::run_group(kit, plan, report),
    }
}

fn judge(report: &TestReport) -> Result<(), Failure> {
    match *report {
        TestReport {
            passed: 0,
            failed: 0,
            skipped: 0,
            ..
        } => Err(Failure::usage("no row has that text in its name")),
        TestReport { failed: 0, .. } => Ok(()),
        TestReport { failed, .. } => {
            Err(Failure::failed(format!("{failed} rows of the lab failed")))
        }
    }
}
