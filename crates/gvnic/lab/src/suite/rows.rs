//! In the guest: runs the rows of a group, and prints one JSON object for each to stdout.

use std::fmt;
use std::io::Write;
use std::time::Instant;

use anyhow::Context as _;

use super::traffic::{Network, Rate};
use super::{
    Group, RowReport, Verdict, devmem_rows, exchange_rows, load_rows, long_rows, nic_rows,
    stack_rows,
};
use tool::output::Failure;

/// Result of a row that passed.
#[derive(Debug, Default)]
pub struct Seen {
    /// Observations as text.
    pub detail: String,
    /// Rate, if measured.
    pub rate: Option<Rate>,
}

impl From<String> for Seen {
    fn from(detail: String) -> Self {
        Self { detail, rate: None }
    }
}

impl From<Rate> for Seen {
    fn from(rate: Rate) -> Self {
        Self {
            detail: format!("{} MB correct", rate.bytes / 1_000_000),
            rate: Some(rate),
        }
    }
}

/// Error of a row that is skipped because the guest's kernel does not have the tested function; the reason.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Environment of a row.
#[derive(Debug)]
pub struct Context {
    /// Both network namespaces, if the guest has two NICs.
    network: Option<Network>,
    /// Bytes of a large stream; small streams are a fraction of it.
    pub bytes: u64,
    /// Number of this guest, 0 or 1, if there are two.
    pub guest: u8,
}

impl Context {
    /// Returns both network namespaces.
    ///
    /// # Errors
    ///
    /// The guest has only one NIC.
    pub fn network(&self) -> anyhow::Result<&Network> {
        self.network.as_ref().context("this guest has one NIC")
    }

    /// Returns the bytes of a small stream, which only shows that streams work.
    pub fn few(&self) -> u64 {
        (self.bytes / 8).max(1 << 20)
    }
}

/// A row: name and function.
pub type Row = (&'static str, fn(&Context) -> anyhow::Result<Seen>);

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

/// Command line of the rows in a guest.
#[derive(Debug, clap::Parser)]
pub struct GuestTest {
    #[arg(long, value_enum)]
    group: Group,
    #[arg(long)]
    bytes: u64,
    /// Run only rows with this text in their name
    #[arg(long)]
    only: Option<String>,
    /// Number of this guest
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    guest: u8,
    /// Run the receiver that gets killed
    #[arg(long)]
    victim: bool,
}

/// Runs the rows.
///
/// # Errors
///
/// A row failed.
pub fn run(args: &GuestTest) -> Result<(), Failure> {
    if args.victim {
        return Ok(devmem_rows::be_the_victim(args.bytes)?);
    }
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

fn report(name: &str, result: anyhow::Result<Seen>, seconds: f64) -> RowReport {
    let (verdict, seen) = match result {
        Ok(seen) => (Verdict::Passed, seen),
        Err(error) => match error.chain().find_map(|cause| cause.downcast_ref::<Skip>()) {
            Some(Skip(reason)) => (Verdict::Skipped, Seen::from(reason.clone())),
            None => (Verdict::Failed, Seen::from(format!("{error:#}"))),
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

/// Runs a program of the guest and returns its output.
///
/// # Errors
///
/// The program failed; the error has its output.
pub fn program(words: &[&str]) -> anyhow::Result<String> {
    let (name, arguments) = words.split_first().expect("a command has a name");
    let output = std::process::Command::new(name).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "{}: {}: {}",
        words.join(" "),
        output.status,
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
