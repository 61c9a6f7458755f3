//! Impairments of a link, as numbers and as text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A probability in parts per million, which can be printed exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    const SCALE: u32 = 1_000_000;

    /// Returns the probability `ppm` / 1,000,000, `None` above one.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm <= Self::SCALE {
            Some(Self(ppm))
        } else {
            None
        }
    }

    /// Returns the probability nearest to `fraction`, `None` unless it lies in 0..=1.
    pub fn from_fraction(fraction: f64) -> Option<Self> {
        let ppm = (fraction * f64::from(Self::SCALE)).round();
        // A cast of a float in range is exact here: ppm is a whole number of at most a million.
        (0.0..=f64::from(Self::SCALE))
            .contains(&ppm)
            .then_some(Self(ppm as u32))
    }

    /// Returns the parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The shortest text of the nearest float is the decimal number itself: it has at most 7 digits.
        write!(f, "{}%", f64::from(self.0) * 100.0 / f64::from(Self::SCALE))
    }
}

/// Impairments of the frames in one direction of a link.
///
/// The text form is a comma-separated list; every part is optional:
/// `loss=1%,ce=1%,reorder=1%,gap=3,dup=1%,corrupt=1%,delay=20ms,jitter=2ms,ordered,rate=1gbit,limit=1000,
/// ce_threshold=1ms,mtu=1200,seed=7`;
/// `none` is a link without impairments. [`Display`](fmt::Display) writes the format that [`FromStr`] parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// Frames that are lost.
    pub loss: Probability,
    /// Frames that meet congestion: ECN-capable IP packets are marked, others dropped, as by a router (RFC 3168 5). Frames
    /// without an IP packet pass.
    pub ce: Probability,
    /// Frames that are overtaken by later ones.
    pub reorder: Probability,
    /// Number of later frames that overtake such a frame, unless [`REORDER_HOLD`] is over before; `gap=` in text.
    pub reorder_gap: u32,
    /// Frames that arrive twice.
    pub duplicate: Probability,
    /// Frames with one flipped bit after the Ethernet header.
    pub corrupt: Probability,
    /// Delay of every frame.
    pub delay: Duration,
    /// Maximum deviation from the delay, in both directions, evenly distributed.
    pub jitter: Duration,
    /// Keeps frames in order in spite of jitter.
    pub ordered: bool,
    /// Bits per second of the link; `None`: no limit.
    pub rate: Option<u64>,
    /// Maximum number of frames in flight or waiting for the rate; further ones are dropped.
    pub limit: u32,
    /// Time that a frame may wait for the rate without a mark; one that waits longer is marked if it is ECN-capable, as by a switch for
    /// DCTCP (RFC 8257 3.1, linux `ce_threshold` of fq_codel). `None`: no marks.
    pub ce_threshold: Option<Duration>,
    /// Larger IP packets are lost without an ICMP error, as behind a router with filtered ICMP; `None`: no limit.
    pub mtu: Option<u16>,
    /// Seed of the random numbers: the same seed and frames give the same result.
    pub seed: u64,
}

/// Maximum time that a reordered frame waits for the frames that overtake it.
pub const REORDER_HOLD: Duration = Duration::from_millis(10);

/// Default number of frames that overtake a reordered one: one more than the number of duplicate ACKs
/// that cause a fast retransmit (RFC 5681 3.2), so that reordering causes retransmissions.
pub const DEFAULT_REORDER_GAP: u32 = 4;

/// Default queue limit, as in netem.
pub const DEFAULT_LIMIT: u32 = 1000;

impl Impairment {
    /// A link without impairments.
    pub const NONE: Self = Self {
        loss: Probability::NEVER,
        ce: Probability::NEVER,
        reorder: Probability::NEVER,
        reorder_gap: DEFAULT_REORDER_GAP,
        duplicate: Probability::NEVER,
        corrupt: Probability::NEVER,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        ordered: false,
        rate: None,
        limit: DEFAULT_LIMIT,
        ce_threshold: None,
        mtu: None,
        seed: 1,
    };

    /// Returns true if frames pass unchanged and at once.
    pub fn is_none(&self) -> bool {
        Self {
            limit: DEFAULT_LIMIT,
            seed: 1,
            reorder_gap: DEFAULT_REORDER_GAP,
            ordered: false,
            ..*self
        } == Self::NONE
    }
}

impl Default for Impairment {
    fn default() -> Self {
        Self::NONE
    }
}

/// Error in the text of an [`Impairment`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpairmentError {
    /// The key is unknown.
    #[error(
        "unknown impairment '{0}': expected loss, ce, reorder, gap, dup, corrupt, delay, jitter, ordered, rate, limit, ce_threshold, mtu or seed"
    )]
    UnknownKey(String),
    /// The key needs a value.
    #[error("'{0}' needs a value, as in '{0}=...'")]
    MissingValue(String),
    /// The key appears twice.
    #[error("'{0}' is given twice")]
    Repeated(String),
    /// The value is not of the kind that the key takes.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key it was given for.
        key: String,
        /// What was given.
        value: String,
        /// What the key takes, with examples.
        expected: &'static str,
    },
}

impl FromStr for Impairment {
    type Err = ImpairmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut impairment = Self::NONE;
        if text.trim() == "none" {
            return Ok(impairment);
        }
        let mut seen: Vec<&str> = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let part = Part::of(part);
            if seen.contains(&part.key) {
                return Err(ImpairmentError::Repeated(part.key.to_owned()));
            }
            seen.push(part.key);
            impairment.set(part)?;
        }
        Ok(impairment)
    }
}

impl Impairment {
    fn set(&mut self, part: Part<'_>) -> Result<(), ImpairmentError> {
        match part.key {
            "loss" => self.loss = part.probability()?,
            "ce" => self.ce = part.probability()?,
            "reorder" => self.reorder = part.probability()?,
            "gap" => self.reorder_gap = part.number()?,
            "dup" => self.duplicate = part.probability()?,
            "corrupt" => self.corrupt = part.probability()?,
            "delay" => self.delay = part.time()?,
            "jitter" => self.jitter = part.time()?,
            "ordered" if part.value.is_none() => self.ordered = true,
            "rate" => self.rate = Some(part.rate()?),
            "limit" => self.limit = part.number()?,
            "ce_threshold" => self.ce_threshold = Some(part.time()?),
            "mtu" => self.mtu = Some(part.number()?),
            "seed" => self.seed = part.number()?,
            key => return Err(ImpairmentError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            loss,
            ce,
            reorder,
            reorder_gap,
            duplicate,
            corrupt,
            delay,
            jitter,
            ordered,
            rate,
            limit,
            ce_threshold,
            mtu,
            seed,
        } = *self;
        let time = |time: Duration| {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            with_unit(nanos, &TIME_UNITS)
        };
        let mut parts = Vec::new();
        for (key, probability) in [
            ("loss", loss),
            ("ce", ce),
            ("reorder", reorder),
            ("dup", duplicate),
            ("corrupt", corrupt),
        ] {
            parts.push((probability != Probability::NEVER).then(|| format!("{key}={probability}")));
        }
        parts.extend([
            (reorder_gap != DEFAULT_REORDER_GAP).then(|| format!("gap={reorder_gap}")),
            (delay != Duration::ZERO).then(|| format!("delay={}", time(delay))),
            (jitter != Duration::ZERO).then(|| format!("jitter={}", time(jitter))),
            ordered.then(|| "ordered".to_owned()),
            rate.map(|rate| format!("rate={}", with_unit(rate, &RATE_UNITS))),
            (limit != DEFAULT_LIMIT).then(|| format!("limit={limit}")),
            ce_threshold.map(|most| format!("ce_threshold={}", time(most))),
            mtu.map(|mtu| format!("mtu={mtu}")),
            (seed != Self::NONE.seed).then(|| format!("seed={seed}")),
        ]);
        let said: Vec<String> = parts.into_iter().flatten().collect();
        match said.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&said.join(",")),
        }
    }
}

/// Units of a time, in nanoseconds.
const TIME_UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of a rate, in bits per second.
const RATE_UNITS: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

/// One part of the text: a key, alone or with a value.
#[derive(Clone, Copy)]
struct Part<'a> {
    key: &'a str,
    value: Option<&'a str>,
}

impl<'a> Part<'a> {
    fn of(text: &'a str) -> Self {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (text, None),
        };
        Self { key, value }
    }

    fn probability(self) -> Result<Probability, ImpairmentError> {
        self.parse("a probability such as 1% or 0.01, at most 100%", |value| {
            let number = |text: &str| text.trim().parse::<f64>().ok();
            let fraction = match value.strip_suffix('%') {
                Some(percent) => number(percent)? / 100.0,
                None => number(value)?,
            };
            Probability::from_fraction(fraction)
        })
    }

    fn number<T: FromStr>(self) -> Result<T, ImpairmentError> {
        self.parse("a whole number", |value| value.parse().ok())
    }

    fn time(self) -> Result<Duration, ImpairmentError> {
        self.parse("a time such as 20ms, 500us or 1s", |value| {
            scaled(value, &TIME_UNITS).map(Duration::from_nanos)
        })
    }

    fn rate(self) -> Result<u64, ImpairmentError> {
        let expected = "bits per second above 0 such as 1gbit, 100mbit or 64kbit";
        self.parse(expected, |value| {
            scaled(value, &RATE_UNITS).filter(|bits| *bits > 0)
        })
    }

    fn parse<T>(
        self,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ImpairmentError> {
        let key = self.key.to_owned();
        match self.value {
            Some(value) => parse(value).ok_or_else(|| ImpairmentError::Value {
                key,
                value: value.to_owned(),
                expected,
            }),
            None => Err(ImpairmentError::MissingValue(key)),
        }
    }
}

/// Parses a decimal number followed by one of `units`; returns a whole number of the smallest unit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let &(_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let scaled = number.parse::<f64>().ok()? * factor as f64;
    // Above 2^53 a float cannot represent all whole numbers. The limit is 104 days, or 9 petabit per second.
    (scaled <= 9e15).then(|| scaled.round() as u64)
}

/// Returns `value` in the largest unit that holds a whole number of it.
fn with_unit(value: u64, units: &[(&str, u64)]) -> String {
    let is_whole = |factor: u64| value >= factor && value.is_multiple_of(factor);
    match units.iter().find(|(_, factor)| is_whole(*factor)) {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_the_written_text_returns_the_same_impairment() {
        let all = "loss=1%,ce=2%,reorder=0.5%,dup=0.0001%,corrupt=100%,gap=2,delay=20ms,jitter=1500us,ordered,\
                   rate=2500mbit,limit=7,ce_threshold=570us,mtu=1200,seed=9";
        for text in [
            "none",
            all,
            "loss=5%",
            "rate=1gbit",
            "delay=3s,jitter=7ns",
            "ordered",
        ] {
            let impairment: Impairment = text.parse().expect(text);
            assert_eq!(impairment.to_string(), text);
            assert_eq!(impairment.to_string().parse(), Ok(impairment));
        }
    }

    #[test]
    fn fractions_percents_and_spaces_are_understood() {
        let impairment: Impairment = " loss=0.01 , rate=2.5gbit, delay=0.5ms,".parse().unwrap();
        assert_eq!(impairment.loss, Probability::from_ppm(10_000).unwrap());
        assert_eq!(impairment.rate, Some(2_500_000_000));
        assert_eq!(impairment.delay, Duration::from_micros(500));
        assert_eq!("".parse(), Ok(Impairment::NONE));
        assert!(Impairment::NONE.is_none() && !impairment.is_none());
        assert!("seed=4,limit=3".parse::<Impairment>().unwrap().is_none());
    }

    #[test]
    fn errors_name_the_expected_value() {
        for (text, expected) in [
            (
                "lost=1%",
                "unknown impairment 'lost': expected loss, ce, reorder",
            ),
            ("ordered=1", "unknown impairment 'ordered'"),
            ("loss", "'loss' needs a value, as in 'loss=...'"),
            ("loss=1%,loss=2%", "'loss' is given twice"),
            (
                "loss=101%",
                "loss=101%: expected a probability such as 1% or 0.01, at most 100%",
            ),
            ("dup=-1%", "dup=-1%: expected a probability"),
            ("corrupt=nan", "corrupt=nan: expected a probability"),
            ("delay=20", "delay=20: expected a time such as 20ms"),
            ("jitter=ms", "jitter=ms: expected a time"),
            ("delay=99999999999999s", "expected a time"),
            ("rate=0gbit", "rate=0gbit: expected bits per second above 0"),
            ("rate=fast", "rate=fast: expected bits"),
            ("limit=-1", "limit=-1: expected a whole number"),
            ("seed=x", "seed=x: expected a whole number"),
        ] {
            let error = text.parse::<Impairment>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
