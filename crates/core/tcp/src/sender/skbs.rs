//! How a writer of Linux fills super-segments (linux net/ipv4/tcp.c `tcp_sendmsg_locked`), with
//! [`Tuning::fills_super_segments`](crate::tuning::Tuning::fills_super_segments) only.
//!
//! Linux fills super-segments one after another and checks its limits only before it begins a new one. A full super-segment
//! is sent as far as the windows allow, and what is left of it is filled again.

/// Bookkeeping that Linux charges the send buffer for each super-segment (`tcp_stream_alloc_skb`: the `truesize` of an
/// skb with MAX_TCP_HEADER bytes of headroom and no payload).
const SKB_OVERHEAD: u64 = 896;

/// Bytes that get PSH, some of them within writes (linux `forced_push`).
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Offset behind the last of them.
    last: u64,
    /// Offsets behind those within writes, in order.
    within: Vec<u64>,
}

impl Pushes {
    /// Notes a write without MSG_MORE that ends at `end`.
    pub(super) fn on_write(&mut self, end: u64) {
        self.last = self.last.max(end);
    }

    /// Takes what a write does to the super-segment at the end of the queue, whose bytes end at `end` without those of the
    /// write; returns whether it has PSH. `max_wnd` is the largest window that the peer ever offered.
    pub(super) fn on_change(&mut self, change: TailChange, end: u64, max_wnd: u32) -> bool {
        match change {
            // PSH moves on with its end.
            TailChange::Grew { admitted } => {
                if let Some(last) = self.within.last_mut() {
                    *last = end + admitted;
                }
                true
            }
            TailChange::Filled { admitted } => {
                let unpushed = end.saturating_sub(self.last) + admitted;
                let pushes = unpushed > u64::from(max_wnd / 2);
                if pushes {
                    let at = end + admitted;
                    self.last = self.last.max(at);
                    self.within.push(at);
                }
                pushes
            }
        }
    }

    /// Forgets what was said of bytes behind `end`, which were not queued in the end.
    pub(super) fn forget_behind(&mut self, end: u64) {
        self.within.retain(|at| *at <= end);
        self.last = self.last.min(end);
    }

    /// Forgets the bytes before `offset`: they are acknowledged.
    pub(super) fn release(&mut self, offset: u64) {
        self.within.retain(|at| *at > offset);
    }

    /// Returns whether the byte before `end` gets PSH within a write.
    pub(super) fn has(&self, end: u64) -> bool {
        self.within.contains(&end)
    }
}

/// What a write does to the super-segment at the end of the queue. `admitted`: how many bytes of the write are queued then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TailChange {
    /// It has PSH, and gets longer: a part of it has left.
    Grew { admitted: u64 },
    /// It is full, and the write goes on.
    Filled { admitted: u64 },
}

/// Size limits of a write that is about to be queued.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    /// Longest payload of a super-segment that the writer fills, in bytes, not 0.
    pub(super) size_goal: u64,
    /// Longest payload that is sent at once, in bytes.
    pub(super) at_once: u64,
    /// New bytes that the windows allow to be sent, in whole segments.
    pub(super) sendable: u64,
    /// Bytes that are queued and not sent.
    pub(super) unsent: u64,
    /// Bytes of the send buffer in use.
    pub(super) used: u64,
    /// Size of the send buffer.
    pub(super) buffer: u64,
    /// A new super-segment begins only while fewer bytes than this are unsent (TCP_NOTSENT_LOWAT).
    pub(super) notsent_lowat: u64,
}

impl Admission {
    /// Returns how many of `wanted` bytes are queued. `has_push` is told what happens to super-segments, and returns whether
    /// that super-segment has PSH.
    pub(super) fn admit(self, wanted: u64, mut has_push: impl FnMut(TailChange) -> bool) -> u64 {
        let goal = self.size_goal.max(1);
        let mut sendable = self.sendable.saturating_sub(self.unsent);
        let mut unsent = self.unsent.saturating_sub(self.sendable);
        // Free bytes of the super-segment at the end of the queue. Small pieces use more of the buffer than their payload:
        // they do not exceed it by more than a super-segment, either.
        let mut space = match self.used < self.buffer.saturating_add(goal) {
            true => (goal - unsent % goal) % goal,
            false => 0,
        };
        let (mut used, mut admitted, mut pushed) = (self.used, 0, false);
        while admitted < wanted {
            if space == 0 {
                if used >= self.buffer || unsent >= self.notsent_lowat {
                    break;
                }
                space = goal;
                used += SKB_OVERHEAD;
                pushed = false;
            }
            let taken = space.min(wanted - admitted);
            admitted += taken;
            used += taken;
            unsent += taken;
            if pushed {
                pushed = has_push(TailChange::Grew { admitted });
            }
            if taken == space && admitted < wanted {
                pushed |= has_push(TailChange::Filled { admitted });
            }
            // Only the super-segment that was filled leaves, and only if nothing unsent lies before it.
            let leaves = match unsent <= goal {
                true => self.at_once.min(sendable).min(unsent),
                false => 0,
            };
            sendable -= leaves;
            unsent -= leaves;
            space = match unsent {
                0 => 0,
                _ => leaves,
            };
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Admission = Admission {
        size_goal: 16_000,
        at_once: 5000,
        sendable: 10_000,
        unsent: 0,
        used: 0,
        buffer: 1 << 20,
        notsent_lowat: u64::MAX,
    };

    #[test]
    fn notsent_lowat_bounds_one_large_write() {
        let limited = Admission {
            notsent_lowat: 4000,
            ..EMPTY
        };
        // 10,000 bytes leave at once, and one super-segment waits unsent.
        assert_eq!(limited.admit(59_000, |_| false), 26_000);
        assert_eq!(EMPTY.admit(59_000, |_| false), 59_000);
        let waiting = Admission {
            sendable: 0,
            unsent: 16_000,
            ..limited
        };
        assert_eq!(waiting.admit(1, |_| false), 0);
    }

    #[test]
    fn the_super_segment_that_exceeds_the_send_buffer_is_filled() {
        let small = Admission {
            size_goal: 988,
            at_once: 988,
            sendable: 2 * 988,
            buffer: 4608,
            ..EMPTY
        };
        assert_eq!(small.admit(10_000, |_| false), 3 * 988);
        let medium = Admission {
            size_goal: 25_000,
            buffer: 42_000,
            ..EMPTY
        };
        assert_eq!(medium.admit(61_000, |_| false), 60_000);
        let full = Admission {
            sendable: 0,
            unsent: 50_000,
            used: 60_000,
            ..medium
        };
        assert_eq!(full.admit(1000, |_| false), 0);
    }

    #[test]
    fn single_bytes_exceed_the_send_buffer_by_less_than_a_super_segment() {
        let filling = Admission {
            sendable: 0,
            unsent: 500,
            buffer: 42_000,
            ..EMPTY
        };
        assert_eq!(
            Admission {
                used: 57_999,
                ..filling
            }
            .admit(1, |_| false),
            1
        );
        assert_eq!(
            Admission {
                used: 58_000,
                ..filling
            }
            .admit(1, |_| false),
            0
        );
    }

    #[test]
    fn the_rest_of_a_partly_sent_super_segment_is_filled_beyond_the_send_buffer() {
        let halved = Admission {
            size_goal: 65_208,
            at_once: 39_520,
            sendable: 79_040,
            buffer: 60_000,
            ..EMPTY
        };
        assert_eq!(halved.admit(79_040, |_| false), 79_040);
        let whole = Admission {
            at_once: 65_208,
            sendable: 158_080,
            ..halved
        };
        assert_eq!(whole.admit(65_209, |_| false), 65_208);
    }

    #[test]
    fn psh_stays_at_the_end_of_a_super_segment_that_gets_longer() {
        let limited = Admission {
            at_once: 1000,
            sendable: 2000,
            ..EMPTY
        };
        let mut changes = Vec::new();
        let admitted = limited.admit(40_000, |change| {
            changes.push(change);
            matches!(
                change,
                TailChange::Grew { .. } | TailChange::Filled { admitted: 17_000.. }
            )
        });
        assert_eq!(admitted, 40_000);
        let filled = |admitted| TailChange::Filled { admitted };
        let grew = TailChange::Grew { admitted: 18_000 };
        let expected = [
            filled(16_000),
            filled(17_000),
            grew,
            filled(18_000),
            filled(34_000),
        ];
        assert_eq!(changes, expected);
    }
}
