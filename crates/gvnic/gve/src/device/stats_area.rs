//! The statistics area, which `ethtool -S` of the guest shows.

use std::time::Duration;

use gve_defs::adminq::{Stat, StatsReport, stat_name};
use wire::Instant;
use zerocopy::IntoBytes;

use crate::env::{GuestAddr, GuestMemory};
use crate::stats::RxQueueStats;

/// Maximum period of the statistics, even if the driver configures a longer one, so that `ethtool -S` shows values at
/// most one second old.
const STATS_PERIOD: Duration = Duration::from_secs(1);
/// Minimum period, even if the driver configures a shorter one.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Guest memory for statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatsArea {
    addr: GuestAddr,
    /// Bytes, header included; `addr + len` is in the address space.
    len: u64,
    period: Option<Duration>,
    due: Option<Instant>,
}

impl StatsArea {
    /// Returns an area that is written every `interval`, or only on request if that is zero; `None` if it reaches past the address space or has no room
    /// for a report.
    pub(crate) fn new(addr: GuestAddr, len: u64, interval: Duration, now: Instant) -> Option<Self> {
        addr.checked_add(len)?;
        let period = match interval.is_zero() {
            true => None,
            false => Some(interval.clamp(MIN_PERIOD, STATS_PERIOD)),
        };
        let area = Self {
            addr,
            len,
            period,
            due: period.map(|period| now + period),
        };
        (len >= size_of::<StatsReport>() as u64).then_some(area)
    }

    /// Returns when the statistics are due.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules the next report.
    pub(crate) fn next(&mut self, now: Instant) {
        self.due = self.period.map(|period| now + period);
    }

    /// Writes four statistics for each existing queue, up to the end of the area. The driver's own statistics come first;
    /// it locates those of the device from the end (gve_ethtool.c `gve_get_ethtool_stats`).
    ///
    /// Without room or memory nothing is written: the interface has no way to report an error.
    pub(crate) fn write<'a>(
        &self,
        queues: impl Iterator<Item = (bool, &'a RxQueueStats)>,
        memory: &dyn GuestMemory,
    ) {
        let mut bytes = Vec::new();
        for (id, (_, stats)) in (0u32..).zip(queues).filter(|(_, (live, _))| *live) {
            let values: [_; stat_name::PER_RX_QUEUE] = [
                (stat_name::RX_QUEUE_DROP_CNT, stats.drops),
                (stat_name::RX_NO_BUFFERS_POSTED, stats.no_buffers),
                (stat_name::RX_DROPS_PACKET_OVER_MRU, stats.over_mru),
                (stat_name::RX_DROPS_INVALID_CHECKSUM, stats.bad_checksum),
            ];
            for (name, value) in values {
                let stat = Stat {
                    stat_name: name.into(),
                    queue_id: id.into(),
                    value: value.into(),
                };
                bytes.extend_from_slice(stat.as_bytes());
            }
        }
        let room = self.len - size_of::<StatsReport>() as u64;
        if let Some(before) = room.checked_sub(bytes.len() as u64) {
            let offset = size_of::<StatsReport>() as u64 + before;
            // Cannot wrap: `new` has checked that the area is in the address space.
            let _unmapped = memory.write(GuestAddr(self.addr.0 + offset), &bytes);
        }
    }
}
