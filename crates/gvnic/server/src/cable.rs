//! `devmem-tcp wire`: connects two hosts with an impaired cable.

mod clock;
mod join;
mod lane;
mod report;

use std::time::Duration;

use anyhow::Context;

use crate::plan::WirePlan;
use join::{Cable, open};
use report::WireReport;
use tool::output::{Failure, note, print_json};
use tool::signals::StopFlag;

/// Maximum length of one wait; signals are checked between waits, and also interrupt them.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Connects the two ends until the time limit or a signal.
///
/// # Errors
///
/// An end cannot be opened, or failed.
pub fn run(plan: &WirePlan) -> Result<(), Failure> {
    let stop = StopFlag::install().context("install signal handlers")?;
    let [a, b] = &plan.ends;
    let mut cable = Cable::new(
        [open(a, plan.mtu)?, open(b, plan.mtu)?],
        plan.impairment,
        plan.lateness,
    );
    note(format_args!(
        "{} and {} are connected: {}",
        a.port, b.port, plan.impairment
    ));
    while !stop.is_set() && plan.limit.is_none_or(|limit| cable.elapsed() < limit) {
        let left = plan
            .limit
            .map(|limit| limit.saturating_sub(cable.elapsed()));
        cable.step(left.unwrap_or(MAX_WAIT).min(MAX_WAIT))?;
    }
    let [a_to_b, b_to_a] = cable.report();
    let report = WireReport {
        seconds: cable.elapsed().as_secs_f64(),
        impair: plan.impairment.to_string(),
        a_to_b,
        b_to_a,
    };
    report.show();
    if plan.json {
        print_json(&report)?;
    }
    match plan.limit {
        Some(limit) if cable.elapsed() < limit => Err(Failure::interrupted()),
        _ => Ok(()),
    }
}
