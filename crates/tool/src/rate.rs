//! Rates for people, in the unit that fits.

use std::fmt;
use std::time::Duration;

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A unit of rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateUnit {
    name: &'static str,
    bits: f64,
}

const UNITS: [RateUnit; 4] = [
    RateUnit {
        name: "Gbit/s",
        bits: 1e9,
    },
    RateUnit {
        name: "Mbit/s",
        bits: 1e6,
    },
    RateUnit {
        name: "kbit/s",
        bits: 1e3,
    },
    RateUnit {
        name: "bit/s",
        bits: 1.0,
    },
];

impl Rate {
    /// Returns the rate of `bytes` in a time; 0 if no time has elapsed.
    pub fn of(bytes: u64, elapsed: Duration) -> Self {
        match elapsed.is_zero() {
            true => Self(0.0),
            false => Self(bytes as f64 * 8.0 / elapsed.as_secs_f64()),
        }
    }

    /// Returns the rate in 10^9 bits per second.
    pub fn gbit_per_s(self) -> f64 {
        self.0 / 1e9
    }

    /// Returns the unit that fits: the largest of which this is one or more.
    pub fn unit(self) -> RateUnit {
        // What is rounded to 1.0 has the larger unit.
        let fits = |unit: &&RateUnit| self.0 >= 0.95 * unit.bits;
        *UNITS.iter().find(fits).unwrap_or(&UNITS[3])
    }

    /// Returns this in a unit, as all numbers of a column have.
    pub fn in_unit(self, unit: RateUnit) -> String {
        let digits = usize::from(unit.bits > 1.0);
        format!("{:.digits$} {}", self.0 / unit.bits, unit.name)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.in_unit(self.unit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_bits_and_powers_of_ten_in_the_unit_that_fits() {
        for (bits, text) in [
            (35.06e9, "35.1 Gbit/s"),
            (0.96e9, "1.0 Gbit/s"),
            (49.94e6, "49.9 Mbit/s"),
            (2.4e6, "2.4 Mbit/s"),
            (300e3, "300.0 kbit/s"),
            (12.0, "12 bit/s"),
            (0.0, "0 bit/s"),
        ] {
            assert_eq!(Rate(bits).to_string(), text);
        }
        assert_eq!(
            Rate::of(1_250_000_000, Duration::from_secs(1)).gbit_per_s(),
            10.0
        );
        assert_eq!(Rate::of(5, Duration::ZERO), Rate(0.0));
    }

    #[test]
    fn the_rates_of_a_column_have_one_unit() {
        let unit = Rate(2e9).unit();
        assert_eq!(Rate(40e6).in_unit(unit), "0.0 Gbit/s");
    }
}
