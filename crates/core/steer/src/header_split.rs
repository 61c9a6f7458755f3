//! Header split: headers to host memory, payload elsewhere.
//!
//! [`decide`] returns the split point of a packet.

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
pub enum UnsplitReason {
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
    Whole(UnsplitReason),
}

/// Returns where to split a packet.
#[inline]
pub fn decide(headers: &RxHeaders, config: &HdsConfig) -> Split {
    let HdsConfig { split, thresh } = *config;
    if split == HeaderSplit::Disabled {
        return Split::Whole(UnsplitReason::Disabled);
    }
    match headers.transport {
        Transport::Tcp(_) => {}
        Transport::Fragment => return Split::Whole(UnsplitReason::Fragment),
        _ => return Split::Whole(UnsplitReason::NotTcp),
    }
    if thresh != 0 && headers.header_len + headers.payload_len <= usize::from(thresh) {
        return Split::Whole(UnsplitReason::BelowThreshold);
    }
    Split::At(headers.header_len)
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
            (udp.headers(), UnsplitReason::NotTcp),
            (arp(), UnsplitReason::NotTcp),
            (Packet::tcp4().fragment(), UnsplitReason::Fragment),
        ];
        for (headers, why) in cases {
            assert_eq!(decide(&headers, &ON), Split::Whole(why));
            let off = HdsConfig::default();
            assert_eq!(
                decide(&headers, &off),
                Split::Whole(UnsplitReason::Disabled)
            );
        }
        let off = HdsConfig::default();
        let tcp = Packet::tcp4().headers();
        assert_eq!(decide(&tcp, &off), Split::Whole(UnsplitReason::Disabled));
    }

    #[test]
    fn only_frames_above_the_threshold_are_cut() {
        let tcp = Packet::tcp4().headers();
        for (thresh, split) in [
            (153, Split::At(54)),
            (154, Split::Whole(UnsplitReason::BelowThreshold)),
            (u16::MAX, Split::Whole(UnsplitReason::BelowThreshold)),
        ] {
            assert_eq!(
                decide(&tcp, &HdsConfig { thresh, ..ON }),
                split,
                "threshold {thresh}"
            );
        }
    }
}
