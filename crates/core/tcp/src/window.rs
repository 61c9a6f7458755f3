//! The receive window: how far ahead of RCV.NXT the peer may send.

use wire::MAX_WINDOW_SCALE;

use crate::config::MAX_UNSCALED_WINDOW;
use crate::seqnum::SeqNum;

/// Returns the window scale with which a window of `space` bytes fits its field
/// (linux net/ipv4/tcp_output.c `tcp_select_initial_window`).
#[must_use]
pub fn window_scale_for(space: u32) -> u8 {
    let scale = space.checked_ilog2().unwrap_or(0).saturating_sub(15);
    (scale as u8).min(MAX_WINDOW_SCALE)
}

/// The window that is advertised.
///
/// `right_edge` is a promise: it never moves back, and bytes before it are accepted. The edge that the peer computes may be
/// up to one unit of the window scale lower, because the field is rounded down (RFC 7323 2.4). If it were rounded up, each
/// ACK would promise more memory, without end.
#[derive(Debug, Clone)]
pub(crate) struct RecvWindow {
    right_edge: SeqNum,
    /// End of the space that the caller granted. Arriving bytes use it up; only a new grant moves it.
    grant: SeqNum,
    largest_space: u32,
    mss: u16,
    scale: u8,
    /// No memory is left for the promise: the field is 0.
    is_withdrawn: bool,
}

impl RecvWindow {
    /// Returns the window after a handshake whose SYN advertised `right_edge`.
    pub(crate) fn new(
        rcv_nxt: SeqNum,
        right_edge: SeqNum,
        space: u32,
        mss: u16,
        scale: u8,
    ) -> RecvWindow {
        let grant = rcv_nxt + cap(space);
        RecvWindow {
            right_edge,
            grant,
            largest_space: space,
            mss,
            scale,
            is_withdrawn: false,
        }
    }

    /// Advertises a window of 0 until [`RecvWindow::restore`]; the edge stays, and bytes before it are still accepted.
    pub(crate) fn withdraw(&mut self) {
        self.is_withdrawn = true;
    }

    /// Ends [`RecvWindow::withdraw`]; returns whether the window was withdrawn.
    pub(crate) fn restore(&mut self) -> bool {
        core::mem::take(&mut self.is_withdrawn)
    }

    /// Returns the right edge, the first sequence number behind the promise.
    pub(crate) fn right_edge(&self) -> SeqNum {
        self.right_edge
    }

    /// Moves the right edge to `end` if that is beyond it and the window is not closed: a segment is taken whole. Returns
    /// whether it moved.
    pub(crate) fn extend_to(&mut self, end: SeqNum, rcv_nxt: SeqNum) -> bool {
        let moves = self.promised(rcv_nxt) > 0 && end.after(self.right_edge);
        if moves {
            self.right_edge = end;
        }
        moves
    }

    /// Returns how much of the promise is left from `rcv_nxt` on.
    pub(crate) fn promised(&self, rcv_nxt: SeqNum) -> u32 {
        self.right_edge.bytes_since(rcv_nxt) as u32
    }

    /// Returns how much of the grant is left from `rcv_nxt` on.
    pub(crate) fn space(&self, rcv_nxt: SeqNum) -> u32 {
        self.grant.bytes_since(rcv_nxt) as u32
    }

    /// Grants `bytes` beyond `rcv_nxt`. If that is less than the promise, the edge stays.
    pub(crate) fn set_space(&mut self, rcv_nxt: SeqNum, bytes: u32) {
        self.grant = rcv_nxt + cap(bytes);
        self.largest_space = self.largest_space.max(bytes);
    }

    /// Moves the right edge as far as the space allows and returns the window field of a segment
    /// with ACK = `rcv_nxt`.
    pub(crate) fn advertise(&mut self, rcv_nxt: SeqNum) -> u16 {
        // Silly window avoidance: the edge moves only by gains of a segment or more (RFC 9293
        // 3.8.6.2.2).
        if !self.is_withdrawn && self.gain(rcv_nxt) >= self.worthwhile(1) {
            self.right_edge = self.candidate(rcv_nxt);
        }
        self.field(rcv_nxt)
    }

    /// Returns the window field that repeats the promise without moving the edge.
    pub(crate) fn field(&self, rcv_nxt: SeqNum) -> u16 {
        if self.is_withdrawn {
            return 0;
        }
        (self.promised(rcv_nxt) >> self.scale).min(MAX_UNSCALED_WINDOW) as u16
    }

    /// Returns whether the window grew so much that an update should be sent at once.
    ///
    /// It must grow by two segments, and double, as in linux `__tcp_cleanup_rbuf`: otherwise a fast reader would cause
    /// an update with each read.
    pub(crate) fn is_update_due(&self, rcv_nxt: SeqNum) -> bool {
        let promised = self.promised(rcv_nxt);
        let gain = self.gain(rcv_nxt);
        gain >= self.worthwhile(2) && gain >= promised
    }

    /// Returns the edge that the space allows, on a multiple of the scale's unit.
    fn candidate(&self, rcv_nxt: SeqNum) -> SeqNum {
        let window = self.space(rcv_nxt).min(MAX_UNSCALED_WINDOW << self.scale);
        rcv_nxt + (window >> self.scale << self.scale) as usize
    }

    fn gain(&self, rcv_nxt: SeqNum) -> u32 {
        self.candidate(rcv_nxt).bytes_since(self.right_edge) as u32
    }

    /// Returns the smallest gain that moves the edge: half of the space, or some segments.
    fn worthwhile(&self, segments: u32) -> u32 {
        (self.largest_space / 2)
            .min(segments * u32::from(self.mss))
            .max(1)
    }
}

/// Returns the part of `space` that any window can promise.
fn cap(space: u32) -> usize {
    space.min(MAX_UNSCALED_WINDOW << MAX_WINDOW_SCALE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NXT: SeqNum = SeqNum(1000);

    fn window(promised: usize, space: u32, scale: u8) -> RecvWindow {
        RecvWindow::new(NXT, NXT + promised, space, 1000, scale)
    }

    #[test]
    fn scale_is_that_of_linux() {
        for (space, scale) in [
            (0, 0),
            (65_535, 0),
            (65_536, 1),
            (6 << 20, 7),
            (1 << 30, 14),
            (u32::MAX, 14),
        ] {
            assert_eq!(window_scale_for(space), scale, "{space}");
        }
    }

    #[test]
    fn the_largest_scaled_window_fits_the_field() {
        let mut w = window(0, u32::MAX, 14);
        assert_eq!(w.advertise(NXT), u16::MAX);
        assert_eq!(w.promised(NXT), 65_535 << 14);
    }

    #[test]
    fn the_edge_never_moves_back() {
        let mut w = window(0, 10_000, 0);
        assert_eq!(w.advertise(NXT), 10_000);
        w.set_space(NXT, 0);
        assert_eq!(w.advertise(NXT + 4000), 6000);
        assert_eq!(w.advertise(NXT + 10_000), 0);
        assert_eq!(w.right_edge(), NXT + 10_000);
    }

    #[test]
    fn a_closing_window_reaches_zero_whatever_the_segment_sizes() {
        // Rounding up would keep one unit open for ever.
        let mut w = window(0, 1 << 20, 7);
        assert_eq!(w.advertise(NXT), 8192);
        let edge = w.right_edge();
        w.set_space(NXT, 0);
        let mut nxt = NXT;
        while nxt.before(edge) {
            nxt += 61.min(edge.bytes_since(nxt));
            let field = w.advertise(nxt);
            assert_eq!(w.right_edge(), edge);
            assert_eq!(usize::from(field) << 7, edge.bytes_since(nxt) / 128 * 128);
        }
        assert_eq!(w.advertise(nxt), 0);
    }

    #[test]
    fn small_gains_wait_for_a_segment() {
        let mut w = window(0, 8000, 0);
        assert_eq!(w.advertise(NXT), 8000);
        w.set_space(NXT + 999, 8000);
        assert_eq!(w.advertise(NXT + 999), 7001);
        w.set_space(NXT + 1000, 8000);
        assert_eq!(w.advertise(NXT + 1000), 8000);
    }

    #[test]
    fn arriving_data_uses_up_the_grant() {
        let mut w = window(0, 8000, 0);
        assert_eq!(w.advertise(NXT), 8000);
        assert_eq!(w.advertise(NXT + 5000), 3000);
        assert_eq!(w.space(NXT + 5000), 3000);
    }

    #[test]
    fn half_of_a_small_buffer_is_worth_a_window() {
        let mut w = window(0, 600, 0);
        w.set_space(NXT, 299);
        assert_eq!(w.advertise(NXT), 0);
        w.set_space(NXT, 300);
        assert_eq!(w.advertise(NXT), 300);
    }

    #[test]
    fn an_update_is_due_when_the_window_doubles_by_two_segments() {
        let mut w = window(0, 8000, 0);
        assert_eq!(w.advertise(NXT), 8000);
        for (rcv_nxt, space, due) in [
            (NXT + 3999, 8000, false),
            (NXT + 4000, 8000, true),
            (NXT + 8000, 0, false),
            (NXT + 8000, 1999, false),
            (NXT + 8000, 2000, true),
        ] {
            w.set_space(rcv_nxt, space);
            assert_eq!(w.is_update_due(rcv_nxt), due, "{rcv_nxt} {space}");
        }
    }
}
