//! How large packets and super-segments may be.

use super::path::PathMss;
use crate::config::MIN_MSS;
use crate::link::SuperPayload;

/// Largest window below which a packet may fill it, and not only half of it (linux `tcp_bound_to_half_wnd`).
const TINY_WINDOW: u32 = 536;

/// Sizes of packets. Changed by what the path and the NIC say, and by timeouts of large packets.
#[derive(Debug)]
pub(super) struct PacketSize {
    /// Payload bytes of a full packet, as far as the path is concerned; 0 before the handshake.
    pub(super) mss: u16,
    pub(super) super_payload: SuperPayload,
    pub(super) bundling: Bundling,
    pub(super) path: PathMss,
}

/// Whether packets leave together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bundling {
    /// As super-segments, which the NIC cuts.
    SuperSegments,
    /// One by one.
    SinglePackets,
}

impl PacketSize {
    pub(super) fn new(super_payload: SuperPayload, path: PathMss) -> PacketSize {
        PacketSize {
            mss: 0,
            super_payload,
            bundling: Bundling::SuperSegments,
            path,
        }
    }

    /// Takes what the handshake allows.
    pub(super) fn open(&mut self, mss: u16) {
        self.mss = mss.max(MIN_MSS);
        self.path.set_ceiling(self.mss);
    }

    /// Returns whether the handshake is over: before it nothing leaves.
    pub(super) fn is_open(&self) -> bool {
        self.mss > 0
    }

    /// Returns the payload bytes of a full packet to a peer whose largest window was `max_wnd`.
    ///
    /// A packet never takes more than half of that window, or tiny windows would stall it (RFC 9293 3.8.6.2.1, linux
    /// `tcp_bound_to_half_wnd`).
    pub(super) fn mss(&self, max_wnd: u32) -> u16 {
        if max_wnd >= 2 * u32::from(self.mss) {
            return self.mss;
        }
        let bound = match max_wnd {
            tiny @ ..=TINY_WINDOW => tiny,
            window => window / 2,
        };
        let bound = u16::try_from(bound).unwrap_or(u16::MAX);
        self.mss.min(bound.max(MIN_MSS))
    }

    /// Adapts to a path whose packets carry `mss` bytes of payload, by its own word; returns the new size if packets that
    /// are in flight may be larger.
    pub(super) fn on_mtu(&mut self, mss: u16) -> Option<u16> {
        let mss = mss.max(MIN_MSS);
        self.path.set_ceiling(mss);
        if self.path.is_reduced() && mss >= self.mss {
            // A smaller size was found without being told.
            return None;
        }
        let before = core::mem::replace(&mut self.mss, mss);
        (mss < before).then_some(mss)
    }

    /// Handles a timeout with `outstanding` bytes in flight, after `timeouts` earlier ones in a row: returns the new size if
    /// packets get smaller.
    pub(super) fn on_timeout(
        &mut self,
        outstanding: u64,
        timeouts: u8,
        now: wire::Instant,
    ) -> Option<u16> {
        // However small the packets were at first, a repetition joins as many as fit.
        let packet = outstanding.min(self.mss.into());
        let smaller = self.path.on_timeout(packet, timeouts, now)?;
        self.mss = smaller;
        Some(smaller)
    }

    /// Tries larger packets when it is time, while nothing is wrong.
    pub(super) fn try_larger(&mut self, nxt: u64, now: wire::Instant) {
        if self.path.begin_trial(self.mss, nxt, now) {
            self.mss = self.path.ceiling();
        }
    }
}
