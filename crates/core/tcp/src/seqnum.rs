//! Sequence numbers modulo 2^32, which can be compared only if they are close to each other.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number (RFC 9293 3.4).
///
/// It implements no ordering trait: numbers modulo 2^32 have no total order, and a maximum by `Ord` would be wrong when
/// numbers wrap. [`SeqNum::before`] and similar methods are right if the two numbers are less than 2^31 apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns whether `self` comes before `other`.
    #[must_use]
    pub const fn before(self, other: SeqNum) -> bool {
        self.distance_to(other) > 0
    }

    /// Returns whether `self` comes before `other` or equals it.
    #[must_use]
    pub const fn before_eq(self, other: SeqNum) -> bool {
        self.distance_to(other) >= 0
    }

    /// Returns whether `self` comes after `other`.
    #[must_use]
    pub const fn after(self, other: SeqNum) -> bool {
        other.before(self)
    }

    /// Returns whether `self` comes after `other` or equals it.
    #[must_use]
    pub const fn after_eq(self, other: SeqNum) -> bool {
        other.before_eq(self)
    }

    /// Returns the later of two nearby numbers.
    #[must_use]
    pub const fn latest(self, other: SeqNum) -> SeqNum {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of two nearby numbers.
    #[must_use]
    pub const fn earliest(self, other: SeqNum) -> SeqNum {
        if other.before(self) { other } else { self }
    }

    /// Returns how many bytes `self` lies past `start`, or 0 if it lies before it.
    #[must_use]
    pub const fn bytes_since(self, start: SeqNum) -> usize {
        let distance = start.distance_to(self);
        if distance > 0 { distance as usize } else { 0 }
    }

    /// Returns the signed distance from `self` to `other`; negative for numbers that are exactly 2^31 apart.
    const fn distance_to(self, other: SeqNum) -> i32 {
        other.0.wrapping_sub(self.0).cast_signed()
    }
}

impl Add<usize> for SeqNum {
    type Output = SeqNum;

    /// Adds a length modulo 2^32. Lengths in TCP are below 2^31.
    fn add(self, bytes: usize) -> SeqNum {
        SeqNum(self.0.wrapping_add(bytes as u32))
    }
}

impl AddAssign<usize> for SeqNum {
    fn add_assign(&mut self, bytes: usize) {
        *self = *self + bytes;
    }
}

impl Sub<usize> for SeqNum {
    type Output = SeqNum;

    fn sub(self, bytes: usize) -> SeqNum {
        SeqNum(self.0.wrapping_sub(bytes as u32))
    }
}

impl Sub<SeqNum> for SeqNum {
    type Output = i32;

    /// Returns the signed distance from `start` to `self`.
    fn sub(self, start: SeqNum) -> i32 {
        start.distance_to(self)
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeqNum({})", self.0)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let last = SeqNum(u32::MAX);
        assert!(last.before(last + 1));
        assert!((last + 1).after(last));
        assert!(last.before_eq(last) && last.after_eq(last));
        assert!(!last.before(last) && !last.after(last));
        assert_eq!((last + 10) - last, 10);
        assert_eq!(last - (last + 10), -10);
    }

    #[test]
    fn latest_and_earliest_follow_the_circle() {
        let (a, b) = (SeqNum(u32::MAX - 1), SeqNum(3));
        assert_eq!(a.latest(b), b);
        assert_eq!(b.latest(a), b);
        assert_eq!(a.earliest(b), a);
        assert_eq!(b.earliest(a), a);
    }

    #[test]
    fn bytes_since_never_goes_negative() {
        assert_eq!(SeqNum(5).bytes_since(SeqNum(u32::MAX)), 6);
        assert_eq!(SeqNum(u32::MAX).bytes_since(SeqNum(5)), 0);
        assert_eq!(SeqNum(7) - 8usize, SeqNum(u32::MAX));
    }
}
