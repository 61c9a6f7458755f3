//! A progress bar, if somebody is watching.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Updates a second: enough to look alive, too few to cost anything.
const UPDATES_PER_SECOND: u8 = 10;
/// Bytes between two looks at the clock.
const STEP_BYTES: u64 = 16 << 20;

/// Shows how far a transfer has come, on a terminal only.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    shown: u64,
}

impl Progress {
    /// A bar up to `total` bytes, or a counter if that is not known.
    pub fn new(total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self {
                bar: None,
                shown: 0,
            };
        }
        let target = ProgressDrawTarget::stderr_with_hz(UPDATES_PER_SECOND);
        let (template, len) = match total {
            Some(_) => (
                "{bar:32} {binary_bytes:>11} of {binary_total_bytes}  {msg}",
                total,
            ),
            None => ("{binary_bytes:>11}  {msg}", None),
        };
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(len, target).with_style(style);
        Self {
            bar: Some(bar),
            shown: 0,
        }
    }

    /// Notes that `bytes` have arrived in all, `elapsed` after the first.
    pub fn at(&mut self, bytes: u64, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        if bytes - self.shown < STEP_BYTES {
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

    #[test]
    fn a_rate_counts_bits_and_powers_of_ten() {
        assert_eq!(gbit_per_s(1_250_000_000, Duration::from_secs(1)), 10.0);
        assert_eq!(gbit_per_s(5, Duration::ZERO), 0.0);
    }
}
