//! The repetitions of a benchmark, which a signal ends early.

use std::fmt;

use anyhow::{Context, Result, bail};
use tool::output::{Failure, note};
use tool::signals::StopFlag;

/// Repetitions of all rows of a benchmark.
///
/// A signal ends them by the rule of [`tool::signals`]: the report has what was measured until then, and the exit status is 1 if
/// anything was left to measure.
#[derive(Debug)]
pub struct Repetitions {
    /// What one of them is called.
    name: &'static str,
    count: u64,
    stop: StopFlag,
}

/// How far the repetitions came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Rows that were measured, in all repetitions.
    pub measured: usize,
    /// Whether a signal came before the end.
    pub is_interrupted: bool,
}

impl Repetitions {
    /// Installs the signal handlers: call it before the set-up of the benchmark. `option` is that of the command line for the number.
    ///
    /// # Errors
    ///
    /// The number is 0; sigaction(2) failed.
    pub fn new(name: &'static str, option: &str, count: u64) -> Result<Self, Failure> {
        at_least_one(option, count)?;
        let stop = StopFlag::install().context("install signal handlers")?;
        Ok(Self { name, count, stop })
    }

    /// Returns the flag that a signal sets.
    pub fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Returns an error after a signal: to be called between the parts of a long measurement.
    pub fn check(&self) -> Result<()> {
        match self.stop.is_set() {
            true => bail!("interrupted"),
            false => Ok(()),
        }
    }

    /// Measures all rows one after another, repeatedly. `measure` gets the number of the repetition, from 1, and a row; `take` gets
    /// the index of the row and the result.
    ///
    /// # Errors
    ///
    /// That of `measure`, unless a signal came meanwhile.
    pub fn run<R, T>(
        &self,
        rows: &[R],
        mut measure: impl FnMut(u64, &R) -> Result<T>,
        mut take: impl FnMut(usize, T),
    ) -> Result<Progress> {
        let Self { name, count, .. } = self;
        let mut measured = 0;
        for number in 1..=*count {
            for (row, case) in rows.iter().enumerate() {
                let result = self.check().and_then(|()| measure(number, case));
                if self.stop.is_set() {
                    // The signal may have disturbed this row, and it also ends the processes of the other end.
                    return Ok(Progress {
                        measured,
                        is_interrupted: true,
                    });
                }
                take(row, result?);
                measured += 1;
            }
            note(format_args!("{name} {number} of {count} done"));
        }
        Ok(Progress {
            measured,
            is_interrupted: false,
        })
    }
}

impl Progress {
    /// Returns the error of an interrupted run.
    ///
    /// # Errors
    ///
    /// Something was left to measure.
    pub fn verdict(self) -> Result<(), Failure> {
        match self.is_interrupted {
            true => Err(Failure::interrupted()),
            false => Ok(()),
        }
    }
}

/// Returns the usage error of an option for a number of repetitions.
///
/// # Errors
///
/// `count` is 0.
pub fn at_least_one(option: &str, count: u64) -> Result<(), Failure> {
    match count {
        0 => Err(Failure::usage(format_args!(
            "{option} 0: must be at least 1, better 5"
        ))),
        _ => Ok(()),
    }
}

/// Writes how many repetitions a report has, and how many there should have been if these are more.
#[derive(Clone, Copy, Debug)]
pub struct OutOf {
    /// The longest row's.
    pub done: usize,
    pub wanted: usize,
}

impl fmt::Display for OutOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, wanted } = self;
        match done < wanted {
            true => write!(f, "{done} of {wanted}"),
            false => write!(f, "{wanted}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &[u64] = &[10, 20];

    #[test]
    fn rows_are_measured_one_after_another_and_repeatedly() {
        let repetitions = Repetitions::new("repetition", "--reps", 2).unwrap();
        let mut taken = Vec::new();
        let measure = |number, row: &u64| Ok(number + row);
        let progress = repetitions.run(ROWS, measure, |row, sum| taken.push((row, sum)));
        assert_eq!(taken, [(0, 11), (1, 21), (0, 12), (1, 22)]);
        let progress = progress.unwrap();
        assert_eq!((progress.measured, progress.is_interrupted), (4, false));
        assert!(progress.verdict().is_ok());
    }

    #[test]
    fn a_signal_ends_them_and_what_it_may_have_disturbed_does_not_count() {
        for disturbed in [Ok(0), Err("the sender is dead")] {
            let repetitions = Repetitions::new("repetition", "--reps", 3).unwrap();
            let mut taken = Vec::new();
            let measure = |number, row: &u64| {
                if (number, *row) == (2, 20) {
                    repetitions.stop().set();
                    return disturbed.map_err(anyhow::Error::msg);
                }
                Ok(number + row)
            };
            let progress = repetitions.run(ROWS, measure, |row, sum| taken.push((row, sum)));
            assert_eq!(taken, [(0, 11), (1, 21), (0, 12)]);
            let failure = progress.unwrap().verdict().unwrap_err();
            assert_eq!(failure.to_string(), "interrupted");
        }
    }

    #[test]
    fn an_error_ends_them() {
        let repetitions = Repetitions::new("repetition", "--reps", 3).unwrap();
        let failed = repetitions.run(ROWS, |_, _| bail!("no memory"), |_, ()| {});
        assert_eq!(failed.unwrap_err().to_string(), "no memory");
        let none = Repetitions::new("repetition", "--reps", 0).unwrap_err();
        assert!(none.to_string().contains("--reps 0"), "{none}");
    }

    #[test]
    fn a_report_says_how_many_were_done() {
        let text = |done, wanted| OutOf { done, wanted }.to_string();
        assert_eq!([text(7, 7), text(3, 7)], ["7", "3 of 7"]);
    }
}
