//! The sender's part of AccECN: counts which of its packets were marked (RFC 9768 3.2.2.5, appendix A.2; linux
//! `__tcp_accecn_process`).

use wire::{AccEcn, Ecn};

use super::counts::{ACE_START, CodepointBytes, OPTION_START};

/// The ACE field counts modulo 8.
const ACE_MASK: u32 = 7;

/// Shift: the ACE field is assumed to have wrapped only if the payload of marked packets is at least what the wrap would
/// mean, shifted right by this (linux `TCP_ACCECN_SAFETY_SHIFT`).
const SAFETY_SHIFT: u32 = 1;

/// If ACKs cover so many packets on average, a large ACK is taken for one of several that were merged, and no wrap is assumed
/// (linux `ACK_COMP_THRESH`).
const THINNED: u32 = 4;

/// Fraction bits and weight of the average (linux `PKTS_ACKED_PREC`, `PKTS_ACKED_WEIGHT`).
const AVERAGE_PRECISION: u32 = 6;
const AVERAGE_WEIGHT: u32 = 6;

/// Bytes sent after which a first option is ignored: its counters may have wrapped.
const TOO_LATE: u64 = (1 << 23) - 1;

/// Whether the peer's option was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Seen {
    #[default]
    Never,
    /// Without counters.
    Empty,
    Counters,
    /// The path clears it.
    Broken,
}

/// The peer's reports about our packets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reports {
    ce_packets: u32,
    bytes: CodepointBytes,
    /// The counter that increased last: without an option, delivered bytes are added to it.
    moving: Option<Ecn>,
    seen: Seen,
    average: u32,
}

/// What an ACK delivers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeliveryReport {
    /// Packets and bytes.
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) mss: u16,
    /// Bytes sent so far, retransmissions included.
    pub(crate) sent: u64,
    /// All delivered packets are known, by SACK or because nothing is missing.
    pub(crate) exact: bool,
}

impl Reports {
    /// Counts our SYN-ACK as marked, as the peer's first ACK reflects.
    pub(crate) fn count_syn_ack(&mut self) {
        self.ce_packets += 1;
    }

    /// Takes the option of a SYN-ACK, which only shows whether options get through.
    pub(crate) fn on_first_option(&mut self, option: Option<&AccEcn>) {
        if let Some(option) = option {
            self.note_seen(option);
        }
    }

    /// Returns whether the peer's options get through, so that ours probably do.
    pub(crate) fn option_seen(&self) -> bool {
        self.seen != Seen::Never
    }

    /// Takes an ACK that makes progress, and returns how many of our packets it reports as marked.
    pub(crate) fn on_ack(
        &mut self,
        ace: u8,
        option: Option<&AccEcn>,
        progress: &DeliveryReport,
    ) -> u32 {
        let ce_before = self.bytes.ce;
        let bytes_known = self.on_option(option, progress);
        self.note_packets(progress.packets);
        let count = u32::from(ace).wrapping_sub(ACE_START);
        let least = count.wrapping_sub(self.ce_packets) & ACE_MASK;
        let ce_bytes = bytes_known.then(|| self.bytes.ce.wrapping_sub(ce_before));
        let marked = self.with_wraps(least, ce_bytes, progress);
        self.ce_packets = self.ce_packets.wrapping_add(marked);
        marked
    }

    /// Adds wraps of the ACE field that are not visible in it.
    fn with_wraps(&self, least: u32, ce_bytes: Option<u32>, progress: &DeliveryReport) -> u32 {
        let packets = progress.packets;
        if packets <= ACE_MASK {
            return least;
        }
        let most = packets - (packets.wrapping_sub(least) & ACE_MASK);
        let Some(ce_bytes) = ce_bytes else {
            let thinned = self.average > THINNED << AVERAGE_PRECISION;
            return if thinned { least } else { most };
        };
        if ce_bytes == 0 {
            return least;
        }
        let ce_bytes = u64::from(ce_bytes);
        if progress.exact && packets >= 2 * (ACE_MASK + 1) {
            if progress.bytes <= ce_bytes {
                return most;
            }
            let estimate = (ce_bytes * u64::from(packets)).div_ceil(progress.bytes);
            let estimate = u32::try_from(estimate).unwrap_or(u32::MAX);
            return most.min(least.saturating_add(estimate & !ACE_MASK));
        }
        let mss = u64::from(progress.mss);
        if ce_bytes > u64::from(least) * mss {
            most
        } else if ce_bytes < (u64::from(most) * mss) >> SAFETY_SHIFT {
            least
        } else {
            most
        }
    }

    fn note_packets(&mut self, packets: u32) {
        if packets == 0 {
            return;
        }
        let sample = packets.min(u16::MAX.into()) << AVERAGE_PRECISION;
        let weighed = u64::from(self.average) * ((1 << AVERAGE_WEIGHT) - 1) + u64::from(sample);
        self.average = match self.average {
            0 => sample,
            // Below the larger of both.
            _ => (weighed >> AVERAGE_WEIGHT) as u32,
        };
    }

    fn note_seen(&mut self, option: &AccEcn) {
        if matches!(self.seen, Seen::Counters | Seen::Broken) {
            return;
        }
        let told = [option.ect1, option.ect0, option.ce.filter(|&ce| ce > 0)];
        self.seen = match told {
            [None, None, None] => Seen::Empty,
            // The counter begins at 1: the path has cleared it (RFC 9768 3.2.3.2.4).
            fields if fields.contains(&Some(0)) => Seen::Broken,
            _ => Seen::Counters,
        };
    }

    /// Takes the option's counters; returns whether they are reliable.
    fn on_option(&mut self, option: Option<&AccEcn>, progress: &DeliveryReport) -> bool {
        if self.seen == Seen::Broken {
            return false;
        }
        let Some(option) = option else {
            return self.estimate(progress);
        };
        self.note_seen(option);
        if self.seen == Seen::Broken {
            return false;
        }
        let moving = self.moving;
        let mut reliable = moving.is_some();
        let (mut ambiguous, mut changed) = (false, false);
        let told = [
            (Ecn::Ect0, option.ect0, &mut self.bytes.ect0, OPTION_START),
            (Ecn::Ce, option.ce, &mut self.bytes.ce, 0),
            (Ecn::Ect1, option.ect1, &mut self.bytes.ect1, OPTION_START),
        ];
        for (ecn, field, counter, start) in told {
            let Some(field) = field else { continue };
            let moved = extended(field.wrapping_sub(start).wrapping_sub(*counter));
            *counter = counter.wrapping_add_signed(moved);
            if moved < 0 {
                ambiguous = true;
            }
            if moved != 0 && Some(ecn) != moving {
                ambiguous |= changed;
                if !changed {
                    self.moving = Some(ecn);
                    changed = true;
                }
            }
        }
        if ambiguous {
            self.moving = None;
            reliable = false;
        }
        reliable
    }

    /// Estimates without an option: delivered bytes had the same codepoint as those before.
    fn estimate(&mut self, progress: &DeliveryReport) -> bool {
        if self.seen == Seen::Never {
            if progress.sent >= TOO_LATE {
                self.seen = Seen::Broken;
            }
            return false;
        }
        let counter = match self.moving {
            Some(Ecn::Ect0) => &mut self.bytes.ect0,
            Some(Ecn::Ect1) => &mut self.bytes.ect1,
            Some(Ecn::Ce) => &mut self.bytes.ce,
            Some(Ecn::NotEct) | None => return false,
        };
        // Counters of 32 bits wrap.
        *counter = counter.wrapping_add(progress.bytes as u32);
        true
    }

    pub(crate) fn ce_packets(&self) -> u32 {
        self.ce_packets
    }

    pub(crate) fn bytes(&self) -> CodepointBytes {
        self.bytes
    }
}

/// Returns a difference of 24-bit counters with its sign.
fn extended(difference: u32) -> i32 {
    (difference << 8).cast_signed() >> 8
}
