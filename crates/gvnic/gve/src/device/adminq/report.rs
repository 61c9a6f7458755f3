//! The command for the statistics of the guest's `ethtool -S`.

use std::time::Duration;

use gve_defs::adminq::{AdminqStatus, ReportStats};

use crate::device::Gve;
use crate::device::stats_area::StatsArea;
use crate::env::{Env, GuestAddr};

impl Gve {
    pub(super) fn attach_stats(
        &mut self,
        command: &ReportStats,
        env: &Env<'_>,
    ) -> Result<(), AdminqStatus> {
        let len = command.stats_report_len.get();
        self.stats_area = match len {
            0 => None,
            _ => {
                let addr = GuestAddr(command.stats_report_addr.get());
                let interval = Duration::from_millis(command.interval.get());
                let area = StatsArea::new(addr, len, interval, env.now);
                Some(area.ok_or(AdminqStatus::INVALID_ARGUMENT)?)
            }
        };
        Ok(())
    }
}
