//! How many bytes of one write are queued.

use netmem::Payload;

use super::Sender;
use super::skbs::Admission;
use crate::config::Config;
use crate::settings::Settings;

impl<P: Payload> Sender<P> {
    /// Returns how many of `wanted` bytes a write queues.
    pub fn admit(&mut self, wanted: usize, settings: &Settings, shared: &Config) -> usize {
        let lowat = shared.notsent_limit(settings).map(u64::from);
        let admitted = match shared.tuning.fills_super_segments {
            true => self.admit_to_skbs(wanted, lowat, settings, shared),
            false => {
                let room = wanted.min(self.queue.room(settings.snd_buf_max));
                let below = lowat.map_or(u64::MAX, |lowat| self.below_lowat(lowat));
                room.min(usize::try_from(below).unwrap_or(usize::MAX))
            }
        };
        self.counters.chrono.writer_waits = admitted < wanted;
        admitted
    }

    /// Returns how many bytes may be queued before `lowat` bytes wait: those that the windows let out now do not, and the
    /// super-segment that reaches the limit is filled.
    fn below_lowat(&self, lowat: u64) -> u64 {
        let (unsent, sendable) = (self.unsent(), self.sendable());
        let waiting = unsent.saturating_sub(sendable);
        let full = lowat.max(waiting).next_multiple_of(self.size_goal());
        sendable.saturating_sub(unsent) + full - waiting
    }

    /// As [`Sender::admit`], as Linux does it.
    fn admit_to_skbs(
        &mut self,
        wanted: usize,
        lowat: Option<u64>,
        settings: &Settings,
        shared: &Config,
    ) -> usize {
        let admission = Admission {
            size_goal: self.size_goal(),
            at_once: self.packets_at_once(shared) * u64::from(self.mss()),
            sendable: self.sendable(),
            unsent: self.unsent(),
            used: self.queue.charged() as u64,
            buffer: settings.snd_buf_max as u64,
            notsent_lowat: lowat.unwrap_or(u64::MAX),
        };
        let (max_wnd, end) = (self.space.max_wnd(), self.queue.end());
        let Some(pushes) = self.queue.pushes_mut() else {
            return admission.admit(wanted as u64, |_| false) as usize;
        };
        pushes.forget_behind(end);
        // No more than `wanted`, which is a `usize`.
        admission.admit(wanted as u64, |change| {
            pushes.on_change(change, end, max_wnd)
        }) as usize
    }

    /// Returns how many new bytes the windows let out, in whole packets: only those leave while more is to follow.
    fn sendable(&self) -> u64 {
        let mss = u64::from(self.mss());
        let congestion = self
            .rate
            .congestion
            .cwnd()
            .saturating_sub(self.flight.pipe());
        self.space.usable().min(congestion) / mss * mss
    }

    /// Returns the longest payload of a super-segment that a writer fills: at most half of the largest window of the peer
    /// (linux `tcp_xmit_size_goal`).
    fn size_goal(&self) -> u64 {
        let mss = u64::from(self.mss());
        let half_window = u64::from(self.space.max_wnd() / 2);
        let longest = u64::from(self.packets.super_payload.longest).min(half_window);
        (longest / mss).max(1) * mss
    }
}
