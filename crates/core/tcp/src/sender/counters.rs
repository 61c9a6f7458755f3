//! Sums that only [`Info`] tells of, and AccECN's reports are compared with.

use wire::Instant;

use crate::chrono::Chrono;
use crate::info::Info;
use crate::rack::DUP_THRESHOLD;

/// Sums over the life of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) bytes_sent: u64,
    pub(super) bytes_retrans: u64,
    pub(super) total_retrans: u32,
    pub(super) dsack_dups: u32,
    pub(super) reord_seen: u32,
    pub(super) ecn_reductions: u32,
    /// Packets delivered, and those of them by ACKs that echo a mark.
    pub(super) delivered: u32,
    pub(super) delivered_ce: u32,
    /// Packets; 0 stands for the default.
    pub(super) reordering: u32,
    pub(super) recoveries: u32,
    pub(super) tail_probes: u16,
    pub(super) total_rto: u16,
    pub(super) undone: u16,
    pub(super) chrono: Chrono,
    /// When payload left last.
    pub(super) last_data_sent: Instant,
}

impl Counters {
    /// Fills in the sums.
    pub(super) fn info(&self, info: &mut Info) {
        info.bytes_sent = self.bytes_sent;
        info.bytes_retrans = self.bytes_retrans;
        info.total_retrans = u64::from(self.total_retrans);
        info.dsack_dups = u64::from(self.dsack_dups);
        info.reord_seen = u64::from(self.reord_seen);
        info.ecn_reductions = u64::from(self.ecn_reductions);
        info.delivered = self.delivered;
        info.delivered_ce = self.delivered_ce;
        info.reordering = self.reordering.max(DUP_THRESHOLD);
        info.recoveries = u64::from(self.recoveries);
        info.tail_probes = u64::from(self.tail_probes);
        info.total_rto = u64::from(self.total_rto);
        info.undone = u64::from(self.undone);
        info.chrono = self.chrono.clone();
        info.last_data_sent = self.last_data_sent;
    }
}
