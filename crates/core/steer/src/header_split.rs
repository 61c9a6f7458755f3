//! Header split: headers to host memory, payload elsewhere.
//!
//! [`decide`] returns the split point of a packet. A NIC that must post buffers before it can parse
//! predicts the split point; [`settle`] tells which bytes a wrong prediction put in the wrong place.

use wire::{RxHeaders, Transport};

/// ethtool's `tcp-data-split`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderSplit {
    /// Headers and payload stay together.
    #[default]
    Disabled,
    /// Payload of TCP packets is split from the headers.
    Enabled,
}

/// Header split settings of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HdsConfig {
    /// Whether header split is on.
    pub split: HeaderSplit,
    /// ethtool's `hds-thresh`: only frames of more bytes than this are split.
    pub thresh: u16,
}

/// Reason not to split a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhyWhole {
    /// Header split is off.
    Disabled,
    /// The packet is not TCP.
    NotTcp,
    /// The packet is an IP fragment, so its TCP header may be in another packet.
    Fragment,
    /// The frame is not longer than the threshold.
    BelowThreshold,
}

/// Where a packet is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Split {
    /// After this many bytes of headers.
    At(usize),
    /// Not at all: the whole packet goes to host memory.
    Whole(WhyWhole),
}

/// Returns where to split a packet.
#[inline]
pub fn decide(headers: &RxHeaders, config: &HdsConfig) -> Split {
    let HdsConfig { split, thresh } = *config;
    if split == HeaderSplit::Disabled {
        return Split::Whole(WhyWhole::Disabled);
    }
    match headers.transport {
        Transport::Tcp(_) => {}
        Transport::Fragment => return Split::Whole(WhyWhole::Fragment),
        _ => return Split::Whole(WhyWhole::NotTcp),
    }
    if thresh != 0 && headers.header_len + headers.payload_len <= usize::from(thresh) {
        return Split::Whole(WhyWhole::BelowThreshold);
    }
    Split::At(headers.header_len)
}

/// Comparison of a predicted split point with the actual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settle {
    /// All bytes are in the right place.
    Exact,
    /// This many header bytes were written to payload memory, before the payload: the frag starts later.
    HeaderLonger(usize),
    /// This many payload bytes were written to the header buffer, after the headers: they must be moved
    /// in front of the rest of the payload.
    HeaderShorter(usize),
}

/// Compares the `predicted` header length with the `actual` one, for a frame of `frame_len` bytes,
/// which may end before the predicted split point.
#[inline]
pub fn settle(predicted: usize, actual: usize, frame_len: usize) -> Settle {
    let (cut, actual) = (predicted.min(frame_len), actual.min(frame_len));
    match actual.cmp(&cut) {
        std::cmp::Ordering::Equal => Settle::Exact,
        std::cmp::Ordering::Greater => Settle::HeaderLonger(actual - cut),
        std::cmp::Ordering::Less => Settle::HeaderShorter(cut - actual),
    }
}

#[cfg(test)]
mod tests {
    use wire::protocol;

    use super::*;
    use crate::testing::{Packet, arp};

    const ON: HdsConfig = HdsConfig {
        split: HeaderSplit::Enabled,
        thresh: 0,
    };

    #[test]
    fn tcp_is_cut_after_its_headers() {
        assert_eq!(
            decide(&Packet::tcp4().headers(), &ON),
            Split::At(14 + 20 + 20)
        );
        assert_eq!(
            decide(&Packet::tcp6().headers(), &ON),
            Split::At(14 + 40 + 20)
        );
        let ack = Packet {
            payload_len: 0,
            ..Packet::tcp4()
        };
        assert_eq!(
            decide(&ack.headers(), &ON),
            Split::At(54),
            "an ACK has nothing but headers"
        );
    }

    #[test]
    fn packets_that_cannot_be_split_stay_whole_and_have_a_reason() {
        let udp = Packet {
            protocol: protocol::UDP,
            ..Packet::tcp4()
        };
        let cases = [
            (udp.headers(), WhyWhole::NotTcp),
            (arp(), WhyWhole::NotTcp),
            (Packet::tcp4().fragment(), WhyWhole::Fragment),
        ];
        for (headers, why) in cases {
            assert_eq!(decide(&headers, &ON), Split::Whole(why));
            let off = HdsConfig::default();
            assert_eq!(decide(&headers, &off), Split::Whole(WhyWhole::Disabled));
        }
        let off = HdsConfig::default();
        let tcp = Packet::tcp4().headers();
        assert_eq!(decide(&tcp, &off), Split::Whole(WhyWhole::Disabled));
    }

    #[test]
    fn only_frames_above_the_threshold_are_cut() {
        let tcp = Packet::tcp4().headers();
        for (thresh, split) in [
            (153, Split::At(54)),
            (154, Split::Whole(WhyWhole::BelowThreshold)),
            (u16::MAX, Split::Whole(WhyWhole::BelowThreshold)),
        ] {
            assert_eq!(
                decide(&tcp, &HdsConfig { thresh, ..ON }),
                split,
                "threshold {thresh}"
            );
        }
    }

    #[test]
    fn a_wrong_prediction_is_reported_with_its_difference() {
        assert_eq!(settle(66, 66, 1514), Settle::Exact);
        assert_eq!(settle(66, 78, 1514), Settle::HeaderLonger(12));
        assert_eq!(settle(66, 54, 1514), Settle::HeaderShorter(12));
    }

    #[test]
    fn a_frame_that_ends_before_the_predicted_split_has_only_its_bytes() {
        assert_eq!(settle(66, 54, 54), Settle::Exact, "an ACK without options");
        assert_eq!(settle(66, 54, 55), Settle::HeaderShorter(1));
        assert_eq!(settle(66, 54, 60), Settle::HeaderShorter(6));
        assert_eq!(settle(66, 66, 66), Settle::Exact);
        assert_eq!(settle(0, 0, 0), Settle::Exact);
    }
}
