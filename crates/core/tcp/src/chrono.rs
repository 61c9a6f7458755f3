//! How long a connection was busy, and what limited it (linux `tcp_chrono_set`).

use core::time::Duration;

use wire::Instant;

/// What limits a busy connection; if several do, the last of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// The network: ACKs, the congestion window.
    Network,
    /// The send buffer: everything in it is sent, and its writer waits for room.
    SendBuffer,
    /// The peer's window.
    PeerWindow,
}

/// How long a connection was busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusyTimes {
    /// In all: something was queued to be sent or to be acknowledged.
    pub busy: Duration,
    /// The part of it during which the peer's window limited sending.
    pub peer_window: Duration,
    /// The part of it during which the send buffer was too small.
    pub send_buffer: Duration,
}

/// Sums of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chrono {
    running: Option<Busy>,
    /// The last write was not queued completely: its writer waits for room (linux SOCK_NOSPACE).
    pub(crate) writer_waits: bool,
    since: Instant,
    /// In microseconds.
    network: u64,
    send_buffer: u64,
    peer_window: u64,
}

impl Chrono {
    /// Notes what limits the connection from `now` on; `None`: it is idle.
    pub(crate) fn switch(&mut self, to: Option<Busy>, now: Instant) {
        if self.running == to {
            return;
        }
        if let Some(busy) = self.running {
            let time = now.saturating_since(self.since).as_micros();
            *self.sum(busy) += u64::try_from(time).unwrap_or(u64::MAX >> 2);
        }
        self.running = to;
        self.since = now;
    }

    fn sum(&mut self, busy: Busy) -> &mut u64 {
        match busy {
            Busy::Network => &mut self.network,
            Busy::SendBuffer => &mut self.send_buffer,
            Busy::PeerWindow => &mut self.peer_window,
        }
    }

    /// Returns the sums at `now`.
    #[must_use]
    pub fn times(&self, now: Instant) -> BusyTimes {
        let mut all = self.clone();
        all.switch(None, now);
        BusyTimes {
            busy: Duration::from_micros(all.network + all.send_buffer + all.peer_window),
            peer_window: Duration::from_micros(all.peer_window),
            send_buffer: Duration::from_micros(all.send_buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_timer_counts_and_every_part_is_busy_time() {
        let ms = Instant::from_millis;
        let mut chrono = Chrono::default();
        chrono.switch(Some(Busy::Network), ms(10));
        chrono.switch(Some(Busy::Network), ms(20));
        chrono.switch(Some(Busy::PeerWindow), ms(40));
        chrono.switch(None, ms(45));
        chrono.switch(Some(Busy::SendBuffer), ms(100));
        let millis = |n| Duration::from_millis(n);
        let times = BusyTimes {
            busy: millis(42),
            peer_window: millis(5),
            send_buffer: millis(7),
        };
        assert_eq!(chrono.times(ms(107)), times);
    }
}
