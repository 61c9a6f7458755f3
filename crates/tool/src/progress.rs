//! Progress of a long operation, for people: a bar on a terminal, a line otherwise.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::output::{draw, note, say};
use crate::size::Size;
use crate::terminal;
use devmem_tcp::text::Printable;

/// Time between two updates: short enough for smooth progress, at no noticeable cost.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most characters of a full bar, and fewest that are useful.
const BAR_CHARS: usize = 32;
const MIN_BAR_CHARS: usize = 4;
/// Width of a terminal that does not report one.
const USUAL_WIDTH: usize = 80;
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

    /// Returns the text on a terminal with `width` columns. `rate` is that of a transfer, in 10^9 bits per second.
    fn text(self, position: u64, rate: f64, width: usize) -> String {
        let size = |bytes| Size(bytes).to_string();
        let (words, total) = match self {
            Self::Transfer(None) => (format!("{:>11}  {rate:.1} Gbit/s", size(position)), None),
            Self::Transfer(Some(total)) => {
                let (position, of) = (size(position), size(total));
                (
                    format!("{position:>11} of {of}  {rate:.1} Gbit/s"),
                    Some(total),
                )
            }
            Self::Bytes(name, total) => {
                let (position, of) = (size(position), size(total));
                (format!("{position:>11} of {of}  {name}"), Some(total))
            }
            Self::Count(name, total) => (format!("{position:>4} of {total}  {name}"), Some(total)),
            Self::Unknown(name) => (format!("{name} ..."), None),
        };
        // The last column stays free: a character there makes some terminals wrap.
        let width = width.saturating_sub(1);
        let room = width.saturating_sub(words.chars().count() + "[] ".len());
        match total {
            Some(total) if room >= MIN_BAR_CHARS => {
                format!("{} {words}", bar(position, total, room.min(BAR_CHARS)))
            }
            _ => words.chars().take(width).collect(),
        }
    }
}

/// Returns a bar of `chars` characters between its ends.
fn bar(position: u64, total: u64, chars: usize) -> String {
    let share = position.min(total) as f64 / total.max(1) as f64;
    let full = (share * chars as f64) as usize;
    format!("[{:-<chars$}]", "#".repeat(full))
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

    /// Returns a display that prints lines, and no bar: another display shows the progress.
    pub fn hidden() -> Self {
        Self {
            shape: Shape::Transfer(None),
            is_terminal: false,
            drawn: Cell::new(None),
        }
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
    pub fn transferred(&self, bytes: u64, elapsed: Duration) {
        self.draw(bytes, gbit_per_s(bytes, elapsed));
    }

    fn draw(&self, position: u64, rate: f64) {
        let is_recent = |last: Instant| last.elapsed() < INTERVAL;
        if !self.is_terminal || self.drawn.get().is_some_and(is_recent) {
            return;
        }
        self.drawn.set(Some(Instant::now()));
        let width = terminal::width(std::io::stderr()).unwrap_or(USUAL_WIDTH);
        let text = self.shape.text(position, rate, width);
        draw(format_args!("{CLEAR}{}", Printable(text)));
    }

    /// Prints a line above the bar.
    pub fn line(&self, line: impl std::fmt::Display) {
        if self.drawn.take().is_some() {
            draw(CLEAR);
        }
        say!("{line}");
    }

    /// Removes the bar.
    pub fn finish(self) {
        if self.drawn.get().is_some() {
            draw(CLEAR);
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
        let half = Shape::Transfer(Some(2 << 30)).text(1 << 30, 12.34, 80);
        let expected = format!(
            "[{}{}]       1 GiB of 2 GiB  12.3 Gbit/s",
            "#".repeat(16),
            "-".repeat(16)
        );
        assert_eq!(half, expected);
        assert_eq!(bar(7, 0, 32), bar(0, 1, 32), "a total of 0 is drawn, too");
        assert_eq!(
            bar(9, 3, 32),
            bar(3, 3, 32),
            "a bar is never longer than full"
        );
        assert_eq!(
            Shape::Count("unpacking", 3).text(1, 0.0, 80),
            format!("{}    1 of 3  unpacking", bar(1, 3, 32))
        );
    }

    #[test]
    fn a_narrow_terminal_has_a_shorter_bar_or_none() {
        let shape = Shape::Transfer(Some(5 << 30));
        let half = |width| shape.text(5 << 29, 12.34, width);
        assert_eq!(half(40), "   2560 MiB of 5 GiB  12.3 Gbit/s");
        assert_eq!(half(48), "[#####------]    2560 MiB of 5 GiB  12.3 Gbit/s");
        for width in 20..100 {
            assert!(half(width).len() < width, "{width}: {}", half(width));
        }
    }
}
