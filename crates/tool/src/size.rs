//! Byte counts with unit suffixes.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `4096`, `64K`, `5G`; as in head(1), K is 1024 and kB is 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Error of parsing a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is not a number with an optional suffix.
    #[error(
        "expected a number with an optional suffix K, M, G, T (times 1024) or kB, MB, GB, TB (times 1000)"
    )]
    Malformed,
    /// The size does not fit 64 bits.
    #[error("more than 2^64 bytes")]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        let unit = unit(suffix).ok_or(SizeError::Malformed)?;
        number
            .checked_mul(unit)
            .map(Self)
            .ok_or(SizeError::TooLarge)
    }
}

fn unit(suffix: &str) -> Option<u64> {
    let (power, rest) = match suffix.chars().next() {
        None => return Some(1),
        Some('B') => return (suffix == "B").then_some(1),
        Some('k' | 'K') => (1, &suffix[1..]),
        Some('M') => (2, &suffix[1..]),
        Some('G') => (3, &suffix[1..]),
        Some('T') => (4, &suffix[1..]),
        Some(_) => return None,
    };
    match rest {
        "" | "i" | "iB" => Some(1024u64.pow(power)),
        "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// A unit of byte counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeUnit {
    name: &'static str,
    bytes: u64,
}

const UNITS: [SizeUnit; 5] = [
    unit_of("TiB", 40),
    unit_of("GiB", 30),
    unit_of("MiB", 20),
    unit_of("KiB", 10),
    unit_of("B", 0),
];

const fn unit_of(name: &'static str, shift: u32) -> SizeUnit {
    SizeUnit {
        name,
        bytes: 1 << shift,
    }
}

impl Size {
    /// Returns the largest unit of which this is one or more.
    pub fn unit(self) -> SizeUnit {
        let fits = |unit: &&SizeUnit| self.0 >= unit.bytes;
        *UNITS.iter().find(fits).unwrap_or(&UNITS[4])
    }

    /// Returns this in a unit, as all numbers of a column have: a whole number, or two digits after the point.
    pub fn in_unit(self, unit: SizeUnit) -> String {
        let SizeUnit { name, bytes } = unit;
        match self.0 % bytes {
            0 => format!("{} {name}", self.0 / bytes),
            // Two digits are enough for people; the rounding of f64 does not matter.
            _ => format!("{:.2} {name}", self.0 as f64 / bytes as f64),
        }
    }
}

impl fmt::Display for Size {
    /// Writes it in the unit that fits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_unit(self.unit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_head_reads_them() {
        let cases = [
            ("0", 0),
            ("1500", 1500),
            ("64K", 65536),
            ("64k", 65536),
            ("2MiB", 2 << 20),
            ("5G", 5 << 30),
            ("1kB", 1000),
            ("5GB", 5_000_000_000),
            ("1T", 1 << 40),
            ("7B", 7),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_refused_with_the_reason() {
        for text in ["", "G", "-1", "1.5G", "5 G", "5X", "5Kx", "5KBi"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed), "{text}");
        }
        for text in ["18446744073709551616", "17179869184G"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn the_sizes_of_a_column_have_one_unit() {
        let unit = Size(125 << 20).unit();
        assert_eq!(Size(3 << 30).in_unit(unit), "3072 MiB");
        assert_eq!(Size(1 << 10).in_unit(unit), "0.00 MiB");
        assert_eq!(Size(0).in_unit(unit), "0 MiB");
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (5 << 30, "5 GiB"),
            (65536, "64 KiB"),
            (1500, "1.46 KiB"),
            (101_836 << 10, "99.45 MiB"),
            (1_200_080 << 10, "1.14 GiB"),
            (12, "12 B"),
            (0, "0 B"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
