//! In the guest: runs the rows of a group, and prints one JSON object for each to stdout.

use std::io::Write;
use std::time::Instant;

use lab::group::Group;
use tool::output::Failure;

use super::report::RowReport;
use super::row::{Context, PassedRow, Row, Skip};
use super::traffic::Network;
use super::{devmem_rows, exchange_rows, load_rows, long_rows, nic_rows, stack_rows};
use crate::args::GuestRows;
use crate::verdict::Verdict;

/// Returns the rows of a group, in the order they run.
pub fn rows(group: Group) -> &'static [Row] {
    match group {
        Group::Nic => nic_rows::ROWS,
        Group::Devmem => devmem_rows::ROWS,
        Group::Load => load_rows::ROWS,
        Group::Loss => devmem_rows::LOSS_ROWS,
        Group::LoadLoss => load_rows::LOSS_ROWS,
        Group::Knobs => devmem_rows::KNOB_ROWS,
        Group::Resets => devmem_rows::RESET_ROWS,
        Group::Stack => stack_rows::ROWS,
        Group::StackLoss => stack_rows::LOSS_ROWS,
        Group::Exchange => exchange_rows::ROWS,
        Group::ExchangeLoss => exchange_rows::LOSS_ROWS,
        Group::ExchangeKnobs => exchange_rows::KNOB_ROWS,
        Group::Long => long_rows::ROWS,
    }
}

/// Runs the rows.
///
/// # Errors
///
/// A row failed.
pub fn run(args: &GuestRows) -> Result<(), Failure> {
    let context = Context {
        network: Network::open().ok(),
        bytes: args.bytes,
        guest: args.guest,
    };
    let mut failed = 0;
    for (name, run) in rows(args.group) {
        if args
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        let start = Instant::now();
        let result = run(&context);
        let report = report(name, result, start.elapsed().as_secs_f64());
        failed += u32::from(report.verdict == Verdict::Failed);
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, &report)?;
        writeln!(stdout)?;
    }
    match failed {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} rows failed"))),
    }
}

fn report(name: &str, result: anyhow::Result<PassedRow>, seconds: f64) -> RowReport {
    let (verdict, seen) = match result {
        Ok(seen) => (Verdict::Passed, seen),
        Err(error) => match error.chain().find_map(|cause| cause.downcast_ref::<Skip>()) {
            Some(Skip(reason)) => (Verdict::Skipped, PassedRow::from(reason.clone())),
            None => (Verdict::Failed, PassedRow::from(format!("{error:#}"))),
        },
    };
    RowReport {
        row: name.to_owned(),
        verdict,
        detail: seen.detail,
        seconds,
        mb_per_s: seen.rate.map(|rate| rate.mb_per_s()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_one_name_in_all_groups() {
        let groups = Group::ALL.into_iter().chain([Group::Long]);
        let names: Vec<&str> = groups.flat_map(rows).map(|(name, _)| *name).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name} exists twice");
        }
        assert!(Group::ALL.into_iter().all(|group| !rows(group).is_empty()));
    }

    #[test]
    fn the_report_of_a_failed_row_has_every_cause() {
        let error = anyhow::anyhow!("no route").context("connect");
        let report = report("x", Err(error), 1.0);
        assert_eq!(report.verdict, Verdict::Failed);
        assert_eq!(report.detail, "connect: no route");
    }

    #[test]
    fn an_error_with_a_skip_among_its_causes_skips_the_row() {
        let error = anyhow::Error::from(Skip("no bind-tx".to_owned())).context("bind");
        let report = report("x", Err(error.context("stream 1")), 1.0);
        assert_eq!(report.verdict, Verdict::Skipped);
        assert_eq!(report.detail, "no bind-tx");
    }
}
