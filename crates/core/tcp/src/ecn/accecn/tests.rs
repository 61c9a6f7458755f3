//! Reports of marks, and their interpretation.

use wire::{AccEcn, Ecn};

use super::*;
use crate::segment::Segment;
use crate::seqnum::SeqNum;

mod told {
    use super::*;

    #[test]
    fn packets_and_bytes_are_counted_by_codepoint() {
        let mut feedback = Feedback::new(Ecn::NotEct);
        assert_eq!(feedback.ace(false), 5);
        assert!(
            feedback.on_segment(Ecn::Ce, 3, 3000),
            "the codepoint changed"
        );
        assert!(!feedback.on_segment(Ecn::Ce, 1, 0));
        assert_eq!(feedback.ace(true), (5 + 4) & 7);
        feedback.on_segment(Ecn::Ect1, 1, 10);
        feedback.on_segment(Ecn::Ect0, 1, 20);
        let mut segment = Segment::<()>::default();
        feedback.add_option(&mut segment, None);
        let option = AccEcn {
            ect1: Some(11),
            ce: Some(3000),
            ect0: Some(21),
        };
        assert_eq!(segment.options.accecn, Some(option));
    }

    #[test]
    fn more_marks_than_the_ace_field_can_tell_want_an_ack() {
        let mut feedback = Feedback::new(Ecn::Ce);
        for _ in 0..5 {
            assert!(!feedback.on_segment(Ecn::Ce, 1, 100));
        }
        assert!(feedback.on_segment(Ecn::Ce, 1, 100));
        feedback.ace(true);
        assert!(!feedback.on_segment(Ecn::Ce, 1, 100));
    }

    #[test]
    fn an_option_sent_with_a_dsack_is_given_up_if_the_segment_is_repeated() {
        let mut feedback = Feedback::new(Ecn::NotEct);
        let mut told = |dsack| {
            let mut segment = Segment::<()>::default();
            feedback.on_duplicate(SeqNum(7));
            feedback.add_option(&mut segment, dsack);
            segment.options.accecn.is_some()
        };
        assert!(told(Some(SeqNum(7))));
        assert!(!told(Some(SeqNum(7))));
        assert!(!told(None));
    }
}

mod understood {
    use super::*;

    const fn progress(packets: u32) -> DeliveryReport {
        DeliveryReport {
            packets,
            bytes: packets as u64 * 1000,
            mss: 1000,
            sent: 100_000,
            exact: true,
        }
    }

    fn option(ect1: u32, ce: u32, ect0: u32) -> AccEcn {
        AccEcn {
            ect1: Some(ect1 + 1),
            ce: Some(ce),
            ect0: Some(ect0 + 1),
        }
    }

    #[test]
    fn the_ace_field_counts_on_and_wraps() {
        let mut reports = Reports::default();
        let marked = [5, 6, 7, 0, 4, 4].map(|ace| reports.on_ack(ace, None, &progress(4)));
        assert_eq!(marked, [0, 1, 1, 1, 4, 0]);
        assert_eq!(reports.ce_packets(), 7);
    }

    #[test]
    fn a_large_ack_may_hide_a_wrap_and_the_bytes_tell() {
        // Without the option, a large ACK among large ACKs means no wrap, a large ACK among small ones does.
        assert_eq!(Reports::default().on_ack(6, None, &progress(10)), 1);
        let mut reports = Reports::default();
        reports.on_ack(5, None, &progress(1));
        assert_eq!(reports.on_ack(5, None, &progress(9)), 8);
        // With it the bytes decide.
        for (ce_bytes, marked) in [(0, 0), (16_000, 16), (9000, 8)] {
            let mut reports = Reports::default();
            reports.on_ack(5, Some(&option(0, 0, 1000)), &progress(1));
            let told = option(0, ce_bytes, 1000 + 16_000 - ce_bytes);
            let got = reports.on_ack(5, Some(&told), &progress(16));
            assert_eq!(got, marked, "{ce_bytes} bytes");
        }
    }

    #[test]
    fn an_option_that_the_path_clears_is_not_used() {
        let mut reports = Reports::default();
        let cleared = AccEcn {
            ect1: Some(0),
            ce: Some(0),
            ect0: Some(0),
        };
        reports.on_ack(5, Some(&cleared), &progress(1));
        reports.on_ack(5, Some(&option(0, 5000, 0)), &progress(1));
        assert_eq!(reports.bytes().ce, 0);
    }

    #[test]
    fn counters_of_24_bits_wrap_and_may_come_out_of_order() {
        let mut reports = Reports::default();
        let at = |ce: u32| option(0, ce & 0x00ff_ffff, 0);
        // A difference of less than half of the range is positive.
        for ce in [0x0040_0000, 0x0080_0000, 0x00c0_0000, 0x0100_0000] {
            reports.on_ack(5, Some(&at(ce)), &progress(1));
        }
        assert_eq!(reports.bytes().ce, 0x0100_0000);
        reports.on_ack(5, Some(&at(0x00ff_ff00)), &progress(1));
        assert_eq!(reports.bytes().ce, 0x00ff_ff00);
    }
}
