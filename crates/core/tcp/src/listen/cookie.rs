//! SYN cookies: the state of a half-open connection in its ISN (RFC 4987 3.6).
//!
//! When the backlog is full, the ISN of our SYN-ACK is a keyed hash that includes the peer's MSS. The ACK that answers it
//! proves that the peer received the SYN-ACK. The other options are in the low bits of our timestamp, which the peer
//! echoes. The layout is that of linux net/ipv4/syncookies.c.

use wire::{Instant, TcpOptions};

use crate::isn::{Endpoints, Purpose, SecretKey};
use crate::segment::Segment;
use crate::seqnum::SeqNum;

/// Number of intervals for which a cookie is valid (linux `MAX_SYNCOOKIE_AGE`).
const MAX_AGE: u32 = 2;

/// Length of an interval: the counter in cookies increases each minute.
const INTERVAL_MS: u64 = 60_000;

/// Bits of a cookie below the counter.
const COUNT_SHIFT: u32 = 24;

/// The MSS values that a cookie can hold, ascending (linux net/ipv4/syncookies.c and net/ipv6/syncookies.c `msstab`).
const MSS_TABLE_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_TABLE_V6: [u16; 4] = [1220, 1420, 1440, 8940];

fn mss_table(endpoints: &Endpoints) -> [u16; 4] {
    match endpoints.local.is_ipv4() {
        true => MSS_TABLE_V4,
        false => MSS_TABLE_V6,
    }
}

/// Bits of a timestamp that carry options: window scale, SACK, ECN (linux `TSBITS`).
const TS_BITS: u32 = 0x3f;
const TS_SCALE: u32 = 0x0f;
const TS_NO_SCALE: u32 = 0x0f;
const TS_SACK: u32 = 0x10;
const TS_ECN: u32 = 0x20;

/// Makes and checks cookies.
#[derive(Debug)]
pub(crate) struct CookieJar {
    key: SecretKey,
}

impl CookieJar {
    pub(crate) fn new(key: [u8; 16]) -> CookieJar {
        CookieJar {
            key: SecretKey::new(key),
        }
    }

    /// Returns the ISN that answers a SYN numbered `irs` from a peer with `mss`.
    pub(crate) fn bake(
        &self,
        endpoints: &Endpoints,
        irs: SeqNum,
        mss: u16,
        now: Instant,
    ) -> SeqNum {
        let index = mss_table(endpoints)
            .iter()
            .rposition(|&known| known <= mss)
            .unwrap_or(0) as u32;
        let count = count_at(now);
        let low = self.low_hash(endpoints, irs, count).wrapping_add(index) & low_mask();
        SeqNum(
            self.base(endpoints, irs)
                .wrapping_add(count << COUNT_SHIFT)
                .wrapping_add(low),
        )
    }

    /// Returns the peer's MSS, if `cookie` was made for `irs` within the last two
    /// minutes.
    pub(crate) fn check(
        &self,
        endpoints: &Endpoints,
        irs: SeqNum,
        cookie: SeqNum,
        now: Instant,
    ) -> Option<u16> {
        let rest = cookie.0.wrapping_sub(self.base(endpoints, irs));
        let age = count_at(now).wrapping_sub(rest >> COUNT_SHIFT) & (u32::MAX >> COUNT_SHIFT);
        if age >= MAX_AGE {
            return None;
        }
        let count = count_at(now).wrapping_sub(age);
        let index = rest.wrapping_sub(self.low_hash(endpoints, irs, count)) & low_mask();
        mss_table(endpoints).get(index as usize).copied()
    }

    fn base(&self, endpoints: &Endpoints, irs: SeqNum) -> u32 {
        (self.key.hash(endpoints, Purpose::CookieBase) as u32).wrapping_add(irs.0)
    }

    /// Hashes the peer's ISN too: a cookie is invalid for another ISN.
    fn low_hash(&self, endpoints: &Endpoints, irs: SeqNum, count: u32) -> u32 {
        self.key.hash(endpoints, Purpose::Cookie { irs, count }) as u32
    }
}

fn count_at(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000 / INTERVAL_MS) as u32
}

const fn low_mask() -> u32 {
    (1 << COUNT_SHIFT) - 1
}

/// Returns the latest TSval up to `ts_value` whose low bits hold `offered`'s window scale and SACK, and whether ECN is
/// granted.
pub(crate) fn ts_with_options(ts_value: u32, offered: &TcpOptions, ecn: bool) -> u32 {
    let scale = offered.window_scale.map_or(TS_NO_SCALE, |shift| {
        u32::from(shift.min(wire::MAX_WINDOW_SCALE))
    });
    let sack = if offered.sack_permitted { TS_SACK } else { 0 };
    let ecn = if ecn { TS_ECN } else { 0 };
    let told = (ts_value & !TS_BITS) | scale | sack | ecn;
    // Never a later value: the timestamps of the connection follow and must not decrease.
    if told & TS_BITS > ts_value & TS_BITS {
        told.wrapping_sub(TS_BITS + 1)
    } else {
        told
    }
}

/// Returns the options of the peer's SYN, when its handshake ends with `ack`: from the echoed timestamp, and `mss`.
pub(crate) fn offered_options<P>(ack: &Segment<P>, mss: u16) -> TcpOptions {
    let timestamps = ack.options.timestamps;
    let told = timestamps.map(|ts| ts.echo);
    let scale = told
        .map(|echo| echo & TS_SCALE)
        .filter(|&scale| scale != TS_NO_SCALE);
    TcpOptions {
        mss: Some(mss),
        window_scale: scale.map(|scale| scale as u8),
        sack_permitted: told.is_some_and(|echo| echo & TS_SACK != 0),
        timestamps,
        ..TcpOptions::default()
    }
}

/// Returns whether the SYN-ACK that `ack` answers granted ECN, from the echoed timestamp.
pub(crate) fn granted_ecn<P>(ack: &Segment<P>) -> bool {
    let timestamps = ack.options.timestamps;
    timestamps.is_some_and(|ts| ts.echo & TS_ECN != 0)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::test_config::endpoints;

    const IRS: SeqNum = SeqNum(0xffff_fff0);

    #[test]
    fn a_cookie_gives_the_mss_back_for_one_to_two_minutes() {
        let jar = CookieJar::new([1; 16]);
        let baked_at = Instant::from_millis(59_999);
        for (mss, told) in [
            (1, 536),
            (536, 536),
            (1459, 1440),
            (1460, 1460),
            (65_535, 1460),
        ] {
            let cookie = jar.bake(&endpoints(1), IRS, mss, baked_at);
            assert_eq!(jar.check(&endpoints(1), IRS, cookie, baked_at), Some(told));
            let later = baked_at + Duration::from_secs(60);
            assert_eq!(jar.check(&endpoints(1), IRS, cookie, later), Some(told));
            assert_eq!(
                jar.check(&endpoints(1), IRS, cookie, later + Duration::from_millis(1)),
                None
            );
        }
    }

    #[test]
    fn a_cookie_is_good_for_one_peer_one_isn_and_one_key() {
        let jar = CookieJar::new([1; 16]);
        let cookie = jar.bake(&endpoints(1), IRS, 1460, Instant::ZERO);
        assert_eq!(jar.check(&endpoints(2), IRS, cookie, Instant::ZERO), None);
        assert_eq!(
            jar.check(&endpoints(1), IRS + 1, cookie, Instant::ZERO),
            None
        );
        assert_eq!(
            jar.check(&endpoints(1), IRS, cookie + 8, Instant::ZERO),
            None
        );
        assert_eq!(
            CookieJar::new([2; 16]).check(&endpoints(1), IRS, cookie, Instant::ZERO),
            None
        );
    }

    #[test]
    fn options_travel_in_the_timestamp_and_never_into_the_future() {
        for now in [0_u32, 63, 64, 1000, u32::MAX] {
            for (scale, sack, ecn) in [
                (None, false, false),
                (Some(0), true, true),
                (Some(14), true, false),
                (Some(7), false, true),
            ] {
                let offered = TcpOptions {
                    window_scale: scale,
                    sack_permitted: sack,
                    ..TcpOptions::default()
                };
                let told = ts_with_options(now, &offered, ecn);
                assert!(now.wrapping_sub(told) <= 2 * TS_BITS);
                let timestamps = Some(wire::Timestamps {
                    value: 9,
                    echo: told,
                });
                let ack = Segment::<()> {
                    options: TcpOptions {
                        timestamps,
                        ..TcpOptions::default()
                    },
                    ..Segment::default()
                };
                assert_eq!(granted_ecn(&ack), ecn);
                let read = offered_options(&ack, 1460);
                assert_eq!(
                    (read.window_scale, read.sack_permitted, read.mss),
                    (scale, sack, Some(1460))
                );
            }
        }
    }
}
