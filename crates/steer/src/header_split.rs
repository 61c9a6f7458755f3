//! Header split: headers to host memory, payload elsewhere.
//!
//! [`decide`] says where a packet is cut. A NIC that must post buffers before it can parse predicts
//! the cut; [`settle`] says what a wrong prediction left in the wrong place.

use wire::{RxHeaders, Transport};

/// ethtool's `tcp-data-split`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataSplit {
    /// Headers and payload stay together.
    #[default]
    Disabled,
    /// Payload of TCP packets is parted from the headers.
    Enabled,
}

/// How a NIC splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HdsConfig {
    /// Whether at all.
    pub split: DataSplit,
    /// ethtool's `hds-thresh`: only frames of more bytes than this are split.
    pub thresh: u16,
}

/// Why a packet is not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhyWhole {
    /// Split is off.
    Disabled,
    /// It is not TCP.
    NotTcp,
    /// It is a fragment, so its TCP header may be in another packet.
    Fragment,
    /// The frame is not longer than the threshold.
    BelowThreshold,
}

/// Where a packet is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Split {
    /// After so many bytes of headers.
    At(usize),
    /// Nowhere: all of it goes to host memory.
    Whole(WhyWhole),
}

/// Decides where a packet is cut.
#[inline]
pub fn decide(headers: &RxHeaders, config: &HdsConfig) -> Split {
    let HdsConfig { split, thresh } = *config;
    if split == DataSplit::Disabled {
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

/// How a predicted cut compares with the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settle {
    /// Everything lies where it should.
    Exact,
    /// The last so many header bytes lie before the payload, in its memory: the frag starts later.
    HeaderLonger(usize),
    /// The first so many bytes after the headers lie behind them, in the header buffer: they are
    /// moved before the rest.
    HeaderShorter(usize),
}

/// Compares the cut at `predicted` with the headers' `actual` length, for a frame of `frame_len`
/// bytes that may end before the predicted cut.
#[inline]
pub fn settle(predicted: usize, actual: usize, frame_len: usize) -> Settle {
    let (cut, actual) = (predicted.min(frame_len), actual.min(frame_len));
    match actual.cmp(&cut) {
        std::cmp::Ordering::Equal => Settle::Exact,
        std::cmp::Ordering::Greater => Settle::HeaderLonger(actual - cut),
        std::cmp::Ordering::Less => Settle::HeaderShorter(cut - actual),
    }
}
