//! How far something has come, for a person who waits: a bar on a terminal, a line elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::note;

/// Updates a second: enough to look alive, too few to cost anything.
const UPDATES_PER_SECOND: u8 = 10;
/// Bytes of a transfer between two looks at the clock.
const STEP_BYTES: u64 = 16 << 20;

/// Something that takes a while: what a person sees of it.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A stream, with its rate; its report follows, so that nothing is printed where there is no terminal.
    Transfer(Option<u64>),
    /// A name and a number of bytes.
    Bytes(&'static str, u64),
    /// A name and a number of steps.
    Count(&'static str, u64),
    /// A name alone.
    Spinner(&'static str),
}

impl Shape {
    const fn template(self) -> &'static str {
        match self {
            Self::Transfer(None) => "{binary_bytes:>11}  {msg}",
            Self::Transfer(Some(_)) | Self::Bytes(..) => {
                "{bar:32} {binary_bytes:>11} of {binary_total_bytes}  {msg}"
            }
            Self::Count(..) => "{bar:32} {pos:>4} of {len}  {msg}",
            Self::Spinner(_) => "{spinner} {msg}",
        }
    }

    const fn total(self) -> Option<u64> {
        match self {
            Self::Transfer(total) => total,
            Self::Bytes(_, total) | Self::Count(_, total) => Some(total),
            Self::Spinner(_) => None,
        }
    }

    const fn name(self) -> Option<&'static str> {
        match self {
            Self::Transfer(_) => None,
            Self::Bytes(name, _) | Self::Count(name, _) | Self::Spinner(name) => Some(name),
        }
    }

    /// Returns what is printed once where there is no terminal.
    fn line(self) -> Option<String> {
        match self {
            Self::Bytes(name, total) => Some(format!("{name}: {} MB", total.div_ceil(1_000_000))),
            other => other.name().map(str::to_owned),
        }
    }

    fn bar(self) -> ProgressBar {
        let target = ProgressDrawTarget::stderr_with_hz(UPDATES_PER_SECOND);
        let style =
            ProgressStyle::with_template(self.template()).expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(self.total(), target).with_style(style);
        if let Some(name) = self.name() {
            bar.set_message(name);
            // Its steps may take long; a transfer draws when it has come further.
            bar.enable_steady_tick(Duration::from_secs(1) / u32::from(UPDATES_PER_SECOND));
        }
        bar
    }
}

/// Shows how far something has come.
#[derive(Debug)]
pub struct Progress {
    /// On a terminal only.
    bar: Option<ProgressBar>,
    /// Bytes of a transfer that are shown.
    shown: u64,
}

impl Progress {
    /// A transfer up to `total` bytes, or a counter if that is not known. Nothing is printed where there is no terminal.
    pub fn transfer(total: Option<u64>) -> Self {
        Self::new(Shape::Transfer(total))
    }

    /// Something with a number of bytes.
    pub fn bytes(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Bytes(name, total))
    }

    /// Something with a number of steps.
    pub fn count(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Count(name, total))
    }

    /// Something of unknown length.
    pub fn spinner(name: &'static str) -> Self {
        Self::new(Shape::Spinner(name))
    }

    fn new(shape: Shape) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| shape.bar());
        if let (None, Some(line)) = (&bar, shape.line()) {
            note(line);
        }
        Self { bar, shown: 0 }
    }

    /// Notes how far it has come, in bytes or steps.
    pub fn at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Notes that `bytes` of a transfer have arrived in all, `elapsed` after the first.
    pub fn transferred(&mut self, bytes: u64, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        if bytes.saturating_sub(self.shown) < STEP_BYTES {
            return;
        }
        self.shown = bytes;
        bar.set_message(format!("{:.1} Gbit/s", gbit_per_s(bytes, elapsed)));
        bar.set_position(bytes);
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns a rate in 10^9 bits a second; 0 for no time at all.
pub fn gbit_per_s(bytes: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return 0.0;
    }
    bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 5] = [
        Shape::Transfer(None),
        Shape::Transfer(Some(1)),
        Shape::Bytes("fetching", 2_000_001),
        Shape::Count("unpacking", 3),
        Shape::Spinner("reading"),
    ];

    #[test]
    fn a_rate_counts_bits_and_powers_of_ten() {
        assert_eq!(gbit_per_s(1_250_000_000, Duration::from_secs(1)), 10.0);
        assert_eq!(gbit_per_s(5, Duration::ZERO), 0.0);
    }

    #[test]
    fn where_there_is_no_terminal_a_line_names_what_takes_a_while() {
        let lines = SHAPES.map(Shape::line);
        let lines = lines.each_ref().map(Option::as_deref);
        let named = [Some("fetching: 3 MB"), Some("unpacking"), Some("reading")];
        assert_eq!(lines[..2], [None, None]);
        assert_eq!(lines[2..], named);
    }

    #[test]
    fn every_bar_can_be_drawn() {
        for shape in SHAPES {
            shape.bar().finish_and_clear();
        }
    }
}
