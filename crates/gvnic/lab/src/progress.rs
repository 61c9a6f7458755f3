//! What the lab is at, for a person who waits: a bar on a terminal, a line elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use tool::output::note;

const UPDATES_PER_SECOND: u8 = 10;

/// Something that takes a while.
#[derive(Debug)]
pub struct Activity(Option<ProgressBar>);

impl Activity {
    /// Something of unknown length.
    pub fn spinner(what: &'static str) -> Self {
        Self::new(what, None, "{spinner} {msg}")
    }

    /// Something with a number of bytes.
    pub fn bytes(what: &'static str, total: u64) -> Self {
        Self::new(
            what,
            Some(total),
            "{bar:32} {binary_bytes:>11} of {binary_total_bytes}  {msg}",
        )
    }

    /// Something with a number of steps.
    pub fn count(what: &'static str, total: u64) -> Self {
        Self::new(what, Some(total), "{bar:32} {pos:>4} of {len}  {msg}")
    }

    fn new(what: &'static str, total: Option<u64>, template: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            match total {
                Some(total) if template.contains("bytes") => {
                    note(format_args!("{what}: {} MB", total.div_ceil(1_000_000)))
                }
                _ => note(what),
            }
            return Self(None);
        }
        let target = ProgressDrawTarget::stderr_with_hz(UPDATES_PER_SECOND);
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(total, target).with_style(style);
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_secs(1) / u32::from(UPDATES_PER_SECOND));
        Self(Some(bar))
    }

    /// Notes how far it has come.
    pub fn at(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }

    /// As [`Activity::at`], if it is known.
    pub fn look(&self, position: Option<u64>) {
        if let Some(position) = position {
            self.at(position);
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
