//! Progress of a long operation, for people: a bar on a terminal, and in a log a line now and then.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::output::{draw, note, say};
use crate::rate::Rate;
use crate::size::Size;
use crate::terminal;
use devmem_tcp::text::Printable;

/// Time between two updates: short enough for smooth progress, at no noticeable cost.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two lines in a log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
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
    /// A stream, with its rate. Prints nothing at its beginning in a log, because a report follows.
    Transfer(Option<u64>),
    /// A number of bytes, with a name.
    Bytes(&'static str, u64),
    /// A number of steps, with a name.
    Count(&'static str, u64),
    /// An operation of unknown length, by name.
    Unknown(&'static str),
}

impl Shape {
    /// Returns the first line of a log.
    fn line(self) -> Option<String> {
        match self {
            Self::Transfer(_) => None,
            Self::Bytes(name, total) => Some(format!("{name}: {} MB", total.div_ceil(1_000_000))),
            Self::Count(name, _) | Self::Unknown(name) => Some(name.to_owned()),
        }
    }

    /// Returns a further line of a log.
    fn log_line(self, position: u64, rate: Rate) -> String {
        let (size, share) = (Size(position), |total: u64| 100 * position / total.max(1));
        match self {
            Self::Transfer(None) => format!("{size} so far, {rate}"),
            Self::Transfer(Some(total)) => {
                format!("{size} of {} ({} %), {rate}", Size(total), share(total))
            }
            Self::Bytes(name, total) => {
                format!("{name}: {size} of {} ({} %)", Size(total), share(total))
            }
            Self::Count(name, total) => format!("{name}: {position} of {total}"),
            Self::Unknown(name) => format!("{name} ..."),
        }
    }

    /// Returns the text on a terminal with `width` columns. `rate` is that of a transfer.
    fn text(self, position: u64, rate: Rate, width: usize) -> String {
        let size = |bytes| Size(bytes).to_string();
        let (words, total) = match self {
            Self::Transfer(None) => (format!("{:>11}  {rate}", size(position)), None),
            Self::Transfer(Some(total)) => {
                let (position, of) = (size(position), size(total));
                (format!("{position:>11} of {of}  {rate}"), Some(total))
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

/// Where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// As a bar on a terminal.
    Terminal,
    /// As lines, at most one in this time.
    Log(Duration),
    /// Nowhere: another display shows it.
    Hidden,
}

impl Place {
    fn of_stderr() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::Terminal,
            false => Self::Log(LOG_INTERVAL),
        }
    }
}

/// Display of progress.
#[derive(Debug)]
pub struct Progress {
    shape: Shape,
    place: Place,
    /// Time of the last update of the bar.
    drawn: Cell<Option<Instant>>,
    /// Time and position of the last line of a log; at first those of the beginning.
    logged: Cell<(Instant, u64)>,
}

impl Progress {
    /// Starts the display of a transfer of `total` bytes, or of a byte counter.
    pub fn transfer(total: Option<u64>) -> Self {
        Self::new(Shape::Transfer(total), Place::of_stderr())
    }

    /// Returns a display that prints lines, and no progress: another display shows it.
    pub fn hidden() -> Self {
        Self::new(Shape::Transfer(None), Place::Hidden)
    }

    /// Starts the display of an operation on a number of bytes.
    pub fn bytes(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Bytes(name, total), Place::of_stderr())
    }

    /// Starts the display of an operation with a number of steps.
    pub fn count(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Count(name, total), Place::of_stderr())
    }

    /// Starts the display of an operation of unknown length.
    pub fn unknown(name: &'static str) -> Self {
        Self::new(Shape::Unknown(name), Place::of_stderr())
    }

    fn new(shape: Shape, place: Place) -> Self {
        let progress = Self {
            shape,
            place,
            drawn: Cell::new(None),
            logged: Cell::new((Instant::now(), 0)),
        };
        match shape.line() {
            Some(line) if place != Place::Terminal => note(line),
            Some(_) => progress.draw(0, Rate::default()),
            None => {}
        }
        progress
    }

    /// Sets the progress, in bytes or steps.
    pub fn at(&self, position: u64) {
        self.show(position, Rate::default());
    }

    /// Sets the total bytes of a transfer, `elapsed` after its first byte.
    pub fn transferred(&self, bytes: u64, elapsed: Duration) {
        self.show(bytes, Rate::of(bytes, elapsed));
    }

    fn show(&self, position: u64, rate: Rate) {
        match self.place {
            Place::Terminal => self.draw(position, rate),
            Place::Log(interval) => {
                if let Some(line) = self.next_line(interval, position, rate) {
                    note(line);
                }
            }
            Place::Hidden => {}
        }
    }

    /// Returns the next line of a log, if it is due and something has happened since the last one.
    fn next_line(&self, interval: Duration, position: u64, rate: Rate) -> Option<String> {
        let (last, before) = self.logged.get();
        if position == before || last.elapsed() < interval {
            return None;
        }
        self.logged.set((Instant::now(), position));
        Some(self.shape.log_line(position, rate))
    }

    fn draw(&self, position: u64, rate: Rate) {
        let is_recent = |last: Instant| last.elapsed() < INTERVAL;
        if self.drawn.get().is_some_and(is_recent) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_a_line_now_and_then_while_there_is_progress() {
        let lines = |total: Option<u64>, every: Duration| {
            let progress = Progress::new(Shape::Transfer(total), Place::Log(every));
            let line = |mib: u64| {
                let rate = Rate::of(mib << 20, Duration::from_secs(1));
                progress.next_line(every, mib << 20, rate)
            };
            [0, 512, 512, 1024]
                .into_iter()
                .filter_map(line)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            lines(Some(2 << 30), Duration::ZERO),
            [
                "512 MiB of 2 GiB (25 %), 4.3 Gbit/s",
                "1 GiB of 2 GiB (50 %), 8.6 Gbit/s"
            ]
        );
        assert_eq!(lines(None, Duration::ZERO)[0], "512 MiB so far, 4.3 Gbit/s");
        assert!(lines(None, LOG_INTERVAL).is_empty(), "it is over before");
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
        let half = Shape::Transfer(Some(2 << 30)).text(1 << 30, Rate(12.34e9), 80);
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
            Shape::Count("unpacking", 3).text(1, Rate(0.0), 80),
            format!("{}    1 of 3  unpacking", bar(1, 3, 32))
        );
    }

    #[test]
    fn a_narrow_terminal_has_a_shorter_bar_or_none() {
        let shape = Shape::Transfer(Some(5 << 30));
        let half = |width| shape.text(5 << 29, Rate(12.34e9), width);
        assert_eq!(half(40), "   2.50 GiB of 5 GiB  12.3 Gbit/s");
        assert_eq!(half(48), "[#####------]    2.50 GiB of 5 GiB  12.3 Gbit/s");
        for width in 20..100 {
            assert!(half(width).len() < width, "{width}: {}", half(width));
        }
    }
}
