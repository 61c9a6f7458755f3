//! What a terminal shows during a transfer: a bar, or the live view of `--watch`.

use std::time::Duration;

use crate::output::Failure;
use crate::progress::Progress;
use crate::signals::StopFlag;
use crate::transmit::Transmit;
use devmem_tcp::Netdev;

use crate::receive::View;
use crate::watch::Watch;

/// Display of one transfer.
#[derive(Debug)]
pub struct Display {
    progress: Progress,
    watch: Option<Watch>,
}

impl Display {
    /// Starts the display of a transfer of `total` bytes, or of an unknown number: the live view of `nic` if `title` is its
    /// title, otherwise a bar. The live view sets `stop` when its user ends it.
    ///
    /// # Errors
    ///
    /// The terminal cannot show the live view.
    pub fn start(
        title: Option<String>,
        total: Option<u64>,
        nic: &Netdev,
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        let watch = title.map(|title| Watch::start(title, total, nic.clone(), stop));
        let watch = watch.transpose()?;
        let progress = match &watch {
            Some(_) => Progress::hidden(),
            None => Progress::transfer(total),
        };
        Ok(Self { progress, watch })
    }

    /// Shows a transfer into device memory.
    pub fn receiving(&mut self, view: &View<'_>) {
        let counts = view.counts;
        self.progress.transferred(counts.bytes, counts.elapsed);
        if let Some(watch) = &mut self.watch {
            watch.receiving(view);
        }
    }

    /// Shows connection `index`, which sends from device memory; `bytes` and `elapsed` are those of all connections.
    pub fn sending(&mut self, index: usize, bytes: u64, elapsed: Duration, sent: &Transmit<'_>) {
        self.progress.transferred(bytes, elapsed);
        if let Some(watch) = &mut self.watch {
            watch.sending(index, bytes, sent);
        }
    }

    /// Prints a line above the bar.
    pub fn line(&self, line: impl std::fmt::Display) {
        self.progress.line(line);
    }

    /// Removes the bar, or restores the terminal.
    pub fn finish(self) {
        self.progress.finish();
    }
}
