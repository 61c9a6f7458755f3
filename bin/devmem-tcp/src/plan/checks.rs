//! Checks that several plans make.

use pattern::RepeatingPattern;
use tool::output::Failure;

/// Maximum number of simultaneous connections; the sender needs a thread for each.
const MAX_CONNECTIONS: u16 = 1024;

pub(super) fn check_connections(connections: u16) -> Result<u16, Failure> {
    if (1..=MAX_CONNECTIONS).contains(&connections) {
        Ok(connections)
    } else {
        Err(Failure::usage(format!(
            "--connections {connections}: 1 to {MAX_CONNECTIONS}"
        )))
    }
}

pub(super) fn check_period(validate: Option<u16>) -> Result<(), Failure> {
    let periods = RepeatingPattern::PERIODS;
    match validate {
        Some(n) if !periods.contains(&n) => Err(Failure::usage(format!(
            "--validate {n}: {} to {}, the length of the pattern",
            periods.start(),
            periods.end()
        ))),
        _ => Ok(()),
    }
}
