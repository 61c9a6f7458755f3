//! Progress of a long operation, for people: a bar on a terminal, a line otherwise.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::output::{note, tell};
use crate::size::Size;

/// Time between two updates: short enough for smooth progress, at no noticeable cost.
const INTERVAL: Duration = Duration::from_millis(100);
/// Characters of a full bar.
const BAR_CHARS: usize = 32;
/// Returns to the start of the line and clears it (ECMA-48 EL).
const CLEAR: &str = "\r\x1b[K";

/// Kind of a long operation.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A stream, with its rate. Prints nothing without a terminal, because a report follows.
    Transfer(Option<u64>),
    /// A number of bytes, with a name.
    Bytes(&'static str, u64),
    /// A number of steps, with a name.
    Count(&'static str, u64),
    /// An operation of unknown length, by name.
    Unknown(&'static str),
}

impl Shape {
    /// Returns the line to print without a terminal.
    fn line(self) -> Option<String> {
        match self {
            Self::Transfer(_) => None,
            Self::Bytes(name, total) => Some(format!("{name}: {} MB", total.div_ceil(1_000_000))),
            Self::Count(name, _) | Self::Unknown(name) => Some(name.to_owned()),
        }
    }

    /// Returns the text on a terminal. `rate` is that of a transfer, in 10^9 bits per second.
    fn text(self, position: u64, rate: f64) -> String {
        let size = |bytes| Size(bytes).to_string();
        match self {
            Self::Transfer(None) => format!("{:>11}  {rate:.1} Gbit/s", size(position)),
            Self::Transfer(Some(total)) => format!(
                "{} {:>11} of {}  {rate:.1} Gbit/s",
                bar(position, total),
                size(position),
                size(total)
            ),
            Self::Bytes(name, total) => format!(
                "{} {:>11} of {}  {name}",
                bar(position, total),
                size(position),
                size(total)
            ),
            Self::Count(name, total) => {
                format!("{} {position:>4} of {total}  {name}", bar(position, total))
            }
            Self::Unknown(name) => format!("{name} ..."),
        }
    }
}

/// Returns a bar of [`BAR_CHARS`] characters.
fn bar(position: u64, total: u64) -> String {
    let share = position.min(total) as f64 / total.max(1) as f64;
    let full = (share * BAR_CHARS as f64) as usize;
    format!("[{:-<BAR_CHARS$}]", "#".repeat(full))
}

/// Display of progress.
#[derive(Debug)]
pub struct Progress {
    shape: Shape,
    is_terminal: bool,
    /// Time of the last update.
    drawn: Cell<Option<Instant>>,
}

impl Progress {
    /// Starts the display of a transfer of `total` bytes, or of a byte counter. Prints nothing without a terminal.
    pub fn transfer(total: Option<u64>) -> Self {
        Self::new(Shape::Transfer(total))
    }

    /// Starts the display of an operation on a number of bytes.
    pub fn bytes(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Bytes(name, total))
    }

    /// Starts the display of an operation with a number of steps.
    pub fn count(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Count(name, total))
    }

    /// Starts the display of an operation of unknown length.
    pub fn unknown(name: &'static str) -> Self {
        Self::new(Shape::Unknown(name))
    }

    fn new(shape: Shape) -> Self {
        let progress = Self {
            shape,
            is_terminal: std::io::stderr().is_terminal(),
            drawn: Cell::new(None),
        };
        match shape.line() {
            Some(line) if !progress.is_terminal => note(line),
            Some(_) => progress.draw(0, 0.0),
            None => {}
        }
        progress
    }

    /// Sets the progress, in bytes or steps.
    pub fn at(&self, position: u64) {
        self.draw(position, 0.0);
    }

    /// Sets the total bytes of a transfer, `elapsed` after its first byte.
    pub fn transferred(&mut self, bytes: u64, elapsed: Duration) {
        self.draw(bytes, gbit_per_s(bytes, elapsed));
    }

    fn draw(&self, position: u64, rate: f64) {
        let is_recent = |last: Instant| last.elapsed() < INTERVAL;
        if !self.is_terminal || self.drawn.get().is_some_and(is_recent) {
            return;
        }
        self.drawn.set(Some(Instant::now()));
        tell(format_args!("{CLEAR}{}", self.shape.text(position, rate)));
    }

    /// Removes the bar.
    pub fn finish(self) {
        if self.drawn.get().is_some() {
            tell(CLEAR);
        }
    }
}

/// Returns a rate in 10^9 bits per second; 0 if no time has elapsed.
pub fn gbit_per_s(bytes: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return 0.0;
    }
    bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_bits_and_powers_of_ten() {
        assert_eq!(gbit_per_s(1_250_000_000, Duration::from_secs(1)), 10.0);
        assert_eq!(gbit_per_s(5, Duration::ZERO), 0.0);
    }

    #[test]
    fn without_a_terminal_a_line_names_the_operation() {
        let named = |shape: Shape| shape.line();
        assert_eq!(named(Shape::Transfer(Some(1))), None);
        let bytes = named(Shape::Bytes("fetching", 2_000_001));
        assert_eq!(bytes.as_deref(), Some("fetching: 3 MB"));
        let count = named(Shape::Count("unpacking", 3));
        assert_eq!(count.as_deref(), Some("unpacking"));
    }

    #[test]
    fn on_a_terminal_a_bar_shows_the_share() {
        let half = Shape::Transfer(Some(2 << 30)).text(1 << 30, 12.34);
        let expected = format!(
            "[{}{}]       1 GiB of 2 GiB  12.3 Gbit/s",
            "#".repeat(16),
            "-".repeat(16)
        );
        assert_eq!(half, expected);
        assert_eq!(bar(7, 0).len(), BAR_CHARS + 2, "a total of 0 is drawn, too");
        assert_eq!(bar(9, 3), bar(3, 3), "a bar is never longer than full");
        assert_eq!(
            Shape::Count("unpacking", 3).text(1, 0.0),
            format!("{}    1 of 3  unpacking", bar(1, 3))
        );
    }
}
