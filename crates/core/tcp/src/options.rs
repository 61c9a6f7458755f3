//! Negotiation of options in the two SYNs (RFC 7323, RFC 2018, RFC 9293 3.7.1), and timestamps.

use wire::{Instant, MAX_WINDOW_SCALE, TcpOptions, Timestamps};

use crate::config::{
    ACCECN_LEN, DEFAULT_MSS, EcnConfig, EcnMode, MIN_MSS, TIMESTAMPS_LEN, TS_RECENT_MAX_AGE,
};
use crate::context::Context;
use crate::window::window_scale_for;

/// Negotiated options of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Payload bytes that a packet to the peer may carry: the smaller of its MSS and ours, less the
    /// options that every segment carries.
    pub snd_mss: u16,
    /// Both sides offered window scaling; without it both shifts are 0.
    pub window_scaling: bool,
    /// Shift of the windows that the peer sends.
    pub snd_wscale: u8,
    /// Shift of the windows that we send.
    pub rcv_wscale: u8,
    /// Both sides offered SACK.
    pub sack: bool,
    /// Both sides offered timestamps.
    pub timestamps: bool,
    /// Kind of ECN. It is negotiated by flags of the SYNs, not by options.
    pub ecn: EcnMode,
    /// Segments have AccECN's option.
    pub accecn_option: bool,
}

impl Negotiated {
    /// Returns what the options `theirs` of the peer's SYN and ours, sent under `cx`, agree on.
    ///
    /// Window scaling, SACK and timestamps are used only if both SYNs have them; ECN is negotiated elsewhere, by flags.
    /// The MSS is at least [`MIN_MSS`], and a window shift above 14 counts as 14 (RFC 7323 2.3).
    #[must_use]
    pub fn new(cx: &Context<'_>, theirs: &TcpOptions) -> Negotiated {
        let (shared, settings) = (cx.shared(), cx.settings);
        let timestamps = shared.timestamps && theirs.timestamps.is_some();
        let packet_mss = theirs
            .mss
            .unwrap_or(DEFAULT_MSS)
            .min(cx.config.mss(settings))
            .max(MIN_MSS);
        let snd_wscale = theirs.window_scale.filter(|_| shared.window_scaling);
        Negotiated {
            snd_mss: if timestamps {
                packet_mss - TIMESTAMPS_LEN
            } else {
                packet_mss
            },
            window_scaling: snd_wscale.is_some(),
            snd_wscale: snd_wscale.map_or(0, |shift| shift.min(MAX_WINDOW_SCALE)),
            rcv_wscale: snd_wscale.map_or(0, |_| window_scale_for(settings.rcv_buf_max)),
            sack: shared.sack && theirs.sack_permitted,
            timestamps,
            ecn: EcnMode::Off,
            accecn_option: false,
        }
    }

    /// Returns the same with ECN in `mode`: AccECN's option takes bytes of every packet.
    pub(crate) fn with_ecn(self, mode: EcnMode, config: &EcnConfig) -> Negotiated {
        let accecn_option = mode == EcnMode::Accurate && config.accecn_option;
        let snd_mss = match accecn_option && !self.accecn_option {
            true => self.snd_mss - ACCECN_LEN,
            false => self.snd_mss,
        };
        Negotiated {
            ecn: mode,
            accecn_option,
            snd_mss,
            ..self
        }
    }

    /// Returns the bytes of options in every segment.
    pub(crate) fn options_len(&self) -> u16 {
        let timestamps = if self.timestamps { TIMESTAMPS_LEN } else { 0 };
        let accecn = if self.accecn_option { ACCECN_LEN } else { 0 };
        timestamps + accecn
    }
}

/// Returns the options of a SYN: all that the settings allow.
pub(crate) fn syn_options(cx: &Context<'_>, ts_value: u32) -> TcpOptions {
    let shared = cx.shared();
    TcpOptions {
        mss: Some(cx.config.mss(cx.settings)),
        window_scale: shared
            .window_scaling
            .then(|| window_scale_for(cx.settings.rcv_buf_max)),
        sack_permitted: shared.sack,
        timestamps: shared.timestamps.then_some(Timestamps {
            value: ts_value,
            echo: 0,
        }),
        ..TcpOptions::default()
    }
}

/// Returns the options of a SYN-ACK: those that the settings allow and the SYN has, too.
pub(crate) fn syn_ack_options(
    cx: &Context<'_>,
    negotiated: &Negotiated,
    ts_recent: Option<TsRecent>,
    ts_value: u32,
) -> TcpOptions {
    TcpOptions {
        mss: Some(cx.config.mss(cx.settings)),
        window_scale: negotiated.window_scaling.then_some(negotiated.rcv_wscale),
        sack_permitted: negotiated.sack,
        ..ack_options(ts_recent.map(TsRecent::value), ts_value)
    }
}

/// Returns the options of every segment with an ACK: timestamps, if they were negotiated, so that there is an `echo`.
pub(crate) fn ack_options(echo: Option<u32>, ts_value: u32) -> TcpOptions {
    TcpOptions {
        timestamps: echo.map(|echo| Timestamps {
            value: ts_value,
            echo,
        }),
        ..TcpOptions::default()
    }
}

/// Clock of outgoing timestamps: milliseconds (RFC 7323 5.4 allows 1 ms to 1 s), plus an offset for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampClock {
    offset: u32,
}

impl TimestampClock {
    /// Returns the clock whose value is `offset` at [`Instant::ZERO`].
    #[must_use]
    pub const fn new(offset: u32) -> TimestampClock {
        TimestampClock { offset }
    }

    /// Returns the TSval for `now`.
    #[must_use]
    pub const fn value(self, now: Instant) -> u32 {
        ((now.as_nanos() / 1_000_000) as u32).wrapping_add(self.offset)
    }
}

/// TS.Recent: the peer's timestamp that is echoed, and used to reject old segments whose sequence numbers have wrapped
/// (PAWS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TsRecent {
    value: u32,
    at: Instant,
}

impl TsRecent {
    pub(crate) const fn new(value: u32, now: Instant) -> TsRecent {
        TsRecent { value, at: now }
    }

    /// Returns the TSecr of the timestamps option.
    pub(crate) const fn value(self) -> u32 {
        self.value
    }

    /// Returns whether a segment with `tsval` is older than TS.Recent (RFC 7323 5.3 R1).
    ///
    /// A TS.Recent older than 24 days rejects nothing: the peer's clock may have wrapped
    /// since (5.5).
    pub(crate) fn rejects(self, tsval: u32, now: Instant) -> bool {
        is_older(tsval, self.value) && now.saturating_since(self.at) <= TS_RECENT_MAX_AGE
    }

    /// Stores the timestamp of a segment that contains Last.ACK.sent (RFC 7323 4.3 (2) and 5.3
    /// R3); the caller has checked the sequence number and [`TsRecent::rejects`].
    pub(crate) fn update(&mut self, tsval: u32, now: Instant) {
        *self = TsRecent {
            value: tsval,
            at: now,
        };
    }

    /// Returns whether `tsval` is newer than TS.Recent: such a SYN may follow a connection
    /// in TIME-WAIT (RFC 6191).
    pub(crate) const fn is_newer(self, tsval: u32) -> bool {
        is_older(self.value, tsval)
    }
}

/// Compares timestamps modulo 2^32 (RFC 7323 5.2).
const fn is_older(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::test_config::TestConfig;

    fn offer() -> TcpOptions {
        TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 9, echo: 0 }),
            ..TcpOptions::default()
        }
    }

    #[test]
    fn options_offered_by_both_sides_are_used() {
        let config = TestConfig::default().with(|c| {
            c.settings.rcv_buf_max = 6 << 20;
        });
        let expected = Negotiated {
            snd_mss: 1448,
            window_scaling: true,
            snd_wscale: 7,
            rcv_wscale: 7,
            sack: true,
            timestamps: true,
            ecn: EcnMode::Off,
            accecn_option: false,
        };
        assert_eq!(
            Negotiated::new(&config.at(Instant::ZERO), &offer()),
            expected
        );
    }

    #[test]
    fn a_bare_syn_gets_nothing_but_the_default_mss() {
        let expected = Negotiated {
            snd_mss: 536,
            window_scaling: false,
            snd_wscale: 0,
            rcv_wscale: 0,
            sack: false,
            timestamps: false,
            ecn: EcnMode::Off,
            accecn_option: false,
        };
        assert_eq!(
            Negotiated::new(
                &TestConfig::default().at(Instant::ZERO),
                &TcpOptions::default()
            ),
            expected
        );
        let reply = syn_ack_options(&TestConfig::default().at(Instant::ZERO), &expected, None, 5);
        assert_eq!(
            reply,
            TcpOptions {
                mss: Some(1460),
                ..TcpOptions::default()
            }
        );
    }

    #[test]
    fn options_that_this_side_does_not_offer_are_not_used() {
        let config = TestConfig::default().with(|c| {
            c.shared_mut().window_scaling = false;
            c.shared_mut().timestamps = false;
            c.shared_mut().sack = false;
        });
        let negotiated = Negotiated::new(&config.at(Instant::ZERO), &offer());
        assert_eq!((negotiated.snd_wscale, negotiated.rcv_wscale), (0, 0));
        assert!(!negotiated.sack && !negotiated.timestamps);
        assert_eq!(negotiated.snd_mss, 1460);
    }

    #[test]
    fn absurd_offers_are_mended() {
        let theirs = TcpOptions {
            mss: Some(0),
            window_scale: Some(200),
            ..offer()
        };
        let negotiated = Negotiated::new(&TestConfig::default().at(Instant::ZERO), &theirs);
        assert_eq!(negotiated.snd_mss, MIN_MSS - TIMESTAMPS_LEN);
        assert_eq!(negotiated.snd_wscale, 14);
    }

    #[test]
    fn paws_compares_on_the_circle_and_forgets_after_24_days() {
        let day = Duration::from_secs(24 * 60 * 60);
        let recent = TsRecent::new(5, Instant::ZERO);
        assert!(recent.rejects(u32::MAX, Instant::ZERO));
        assert!(!recent.rejects(5, Instant::ZERO) && !recent.rejects(6, Instant::ZERO));
        assert!(recent.rejects(4, Instant::ZERO + 24 * day));
        assert!(!recent.rejects(4, Instant::ZERO + 25 * day));
        assert!(recent.is_newer(6) && !recent.is_newer(5) && !recent.is_newer(4));
    }

    #[test]
    fn the_clock_ticks_in_milliseconds_from_its_offset() {
        let clock = TimestampClock::new(u32::MAX);
        assert_eq!(clock.value(Instant::ZERO), u32::MAX);
        assert_eq!(clock.value(Instant::from_nanos(1_999_999)), 0);
        assert_eq!(clock.value(Instant::from_millis(10)), 9);
    }
}
