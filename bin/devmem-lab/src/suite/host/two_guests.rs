//! Groups whose rows run in two guests at the same time, one at each end of the wire.

use std::path::Path;

use lab::kit::Kit;
use lab::pair::Pair;
use lab::plan::job;
use tool::output::{Failure, note};

use super::collect::{Collector, guest_row};
use super::group::{GroupReport, NOT_RUN, failed_row, log_row, missing_rows, print_row};
use super::plan::{TestPlan, group_name, guest_command, machine_for, wanted_rows};
use crate::places::PLUGIN_PATH;

/// Bytes of device memory that the plugin binds to each NIC: four times the buffers of a ring (1,024 of 4 KiB).
const POOL_BYTES: usize = 16 << 20;

/// Runs the rows of a group in two guests, and adds their reports to `report`.
///
/// # Errors
///
/// A guest failed, and there is no report of any row.
pub fn run_group(
    kit: &Kit,
    plan: &TestPlan,
    mut report: GroupReport,
) -> Result<GroupReport, Failure> {
    let group = report.group;
    let names = wanted_rows(plan, group);
    // The wire is that of the pair.
    let mut machine = machine_for(&plan.machine, group, Path::new(""));
    if let Some(plugin) = &plan.plugin {
        machine.put.push((plugin.clone(), PLUGIN_PATH.to_owned()));
    }
    let pair = Pair::new(&machine)?;
    note(format_args!("{}: starting two guests", group_name(group)));
    let jobs = [0, 1].map(|guest| {
        let mut command = guest_command(plan, group);
        command.extend(["--guest".to_owned(), guest.to_string()]);
        let mut job = job(&pair.machines[guest], command);
        job.env.extend(settings());
        job
    });
    let [mut first, mut second] =
        [0, 1].map(|guest| Collector::new(names.clone(), None, Some(guest), print_row));
    let ended = pair.run(kit, &jobs, [&mut first, &mut second]);
    let is_without_rows = first.rows.is_empty() && second.rows.is_empty();
    let mut failure = None;
    for ((guest, ended), collected) in (0..).zip(ended).zip([first, second]) {
        let trouble = match ended {
            Ok(run) => {
                report.add_run(run);
                NOT_RUN.to_owned()
            }
            Err(ended) if is_without_rows => return Err(ended),
            Err(ended) => {
                let text = ended.to_string();
                failure = Some(ended);
                text
            }
        };
        let wanted = names.iter().map(|name| guest_row(name, Some(guest)));
        let wanted = wanted.collect::<Vec<_>>();
        report.rows.extend(collected.rows);
        let missing = missing_rows(&wanted, &report.rows, &trouble);
        report.rows.extend(missing.into_iter().inspect(print_row));
    }
    let mut log = log_row(&report);
    if let Some(failure) = failure {
        log = failed_row(&log.row, &format!("a guest failed: {failure}"));
    }
    print_row(&log);
    report.rows.push(log);
    Ok(report)
}

/// Returns the settings of the plugin.
fn settings() -> [(String, String); 2] {
    [
        ("DEVMEM_TCP_DEVICES", "kernel:eth0".to_owned()),
        ("NCCL_DEVMEM_POOL", POOL_BYTES.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}
