//! Limits the number of device memory pieces per packet.
//!
//! A NIC gathers a packet from a bounded number of pieces: a gVNIC from 10, including headers (linux
//! drivers/net/ethernet/google/gve/gve_desc_dqo.h `GVE_TX_MAX_DATA_DESCS`). The kernel puts up to 17 into a packet, and
//! linearises a packet with too many for the NIC. It cannot copy device memory, so it drops such a packet and all its
//! retransmissions, and the connection never continues. Therefore a record is ended (MSG_EOR) before a packet could have too
//! many pieces.

use std::ops::Range;

/// Only pieces smaller than this are counted ("thin"). A packet of at most 9,000 bytes has at most 5 others.
const THIN_BYTES: usize = 2048;

/// Most thin pieces that may be in one packet; with 5 others and the headers these are 10 pieces.
const THIN_MAX: usize = 4;

/// More bytes than a packet on the wire holds: bytes before and after a range of this length are never in one packet.
const APART_BYTES: usize = 16 << 10;

/// The part of the ranges that one call may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Number of ranges.
    pub(super) ranges: usize,
    /// Whether the record ends after them.
    pub(super) ends: bool,
    /// Thin pieces that may be in one packet with the following bytes.
    open: usize,
}

/// The number of thin pieces that may be in one packet with the next bytes.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    open: usize,
}

impl Pieces {
    /// Returns how many of `ranges` one call may send: at least one, if there is one.
    pub(super) fn share(&self, ranges: &[Range<usize>], page: usize) -> Share {
        let mut open = self.open;
        for (index, range) in ranges.iter().enumerate() {
            let (thin, apart) = thin_pieces(range, page);
            if open + thin > THIN_MAX && index > 0 {
                return Share {
                    ranges: index,
                    ends: true,
                    open: 0,
                };
            }
            open = if apart { thin } else { open + thin };
        }
        // Ending the record when it is full leaves room for the first range of the next call.
        let ends = open >= THIN_MAX;
        Share {
            ranges: ranges.len(),
            ends,
            open: if ends { 0 } else { open },
        }
    }

    /// Records that a share was sent, `whole` or only in part; a partly sent share does not end the record.
    pub(super) fn sent(&mut self, share: Share, whole: bool) {
        self.open = match whole {
            true => share.open,
            false => THIN_MAX,
        };
    }
}

/// Returns the number of thin pieces at the two ends of a range, and whether it separates the bytes before and after it.
fn thin_pieces(range: &Range<usize>, page: usize) -> (usize, bool) {
    let len = range.len();
    let head = (page - range.start % page).min(len);
    let tail = (len - head) % page;
    let pieces = [head, tail];
    let thin = pieces
        .iter()
        .filter(|piece| (1..THIN_BYTES).contains(*piece));
    (thin.count(), len >= APART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn share(pieces: &Pieces, ranges: &[Range<usize>]) -> (usize, bool) {
        let share = pieces.share(ranges, PAGE);
        (share.ranges, share.ends)
    }

    #[test]
    fn ends_of_a_range_are_thin_pieces() {
        assert_eq!(thin_pieces(&(0..3), PAGE), (1, false));
        assert_eq!(thin_pieces(&(4095..4097), PAGE), (2, false));
        assert_eq!(thin_pieces(&(0..4096), PAGE), (0, false));
        assert_eq!(thin_pieces(&(4000..98_304), PAGE), (1, true));
        assert_eq!(thin_pieces(&(10..10), PAGE), (0, false));
    }

    #[test]
    fn large_ranges_go_in_one_call_and_one_record() {
        let ranges: Vec<_> = (0..100).map(|i| i * 65_536..(i + 1) * 65_536).collect();
        assert_eq!(share(&Pieces::default(), &ranges), (100, false));
        let odd: Vec<_> = (0..100).map(|i| i * 65_536 + 5..(i + 1) * 65_536).collect();
        assert_eq!(share(&Pieces::default(), &odd), (100, false));
    }

    #[test]
    fn a_record_ends_before_a_packet_has_too_many_pieces() {
        let ranges: Vec<_> = (0..12).map(|i| i * 100..i * 100 + 3).collect();
        let mut pieces = Pieces::default();
        let mut rest = &ranges[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let share = pieces.share(rest, PAGE);
            pieces.sent(share, true);
            records.push((share.ranges, share.ends));
            rest = &rest[share.ranges..];
        }
        assert_eq!(records, [(4, true), (4, true), (4, true)]);
        // The open pieces count for the next send.
        let open = pieces.share(&ranges[..3], PAGE);
        assert_eq!((open.ranges, open.ends), (3, false));
        pieces.sent(open, true);
        assert_eq!(share(&pieces, &ranges[..3]), (1, true));
    }

    #[test]
    fn sends_of_one_small_range_each_end_a_record_now_and_then() {
        let mut pieces = Pieces::default();
        let small = [std::ops::Range { start: 0, end: 3 }];
        let ends: Vec<bool> = (0..11)
            .map(|_| {
                let share = pieces.share(&small, PAGE);
                pieces.sent(share, true);
                share.ends
            })
            .collect();
        let ended: Vec<_> = (0..11).filter(|i| ends[*i]).collect();
        assert_eq!(ended, [3, 7]);
    }

    #[test]
    fn a_call_that_was_cut_short_leaves_room_for_one_range() {
        let mut pieces = Pieces::default();
        let ranges: Vec<_> = (0..3).map(|i| i * 100..i * 100 + 3).collect();
        let cut = pieces.share(&ranges, PAGE);
        pieces.sent(cut, false);
        assert_eq!(share(&pieces, &ranges), (1, true));
    }
}
