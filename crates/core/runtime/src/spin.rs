//! Decides what a thread does that waits and has found nothing: spin, as long as spinning finds work, and occasionally
//! afterwards, as a test (as linux virt/kvm/kvm_main.c `halt_poll_ns` does); nap; or sleep until the link has a packet.
//!
//! A sleep and wake-up costs tens of microseconds in a virtual machine, and the gaps between packets of a fast peer are much
//! shorter, so spinning is useful. If the peer shares our processor, it runs when the spinning thread yields; then a sleep would
//! be as good, and would leave more time to other processes.
//!
//! With more runnable threads than processors, a yield can cost milliseconds, although the answer has arrived meanwhile. A thread that sleeps is
//! run as soon as its packet comes, because it has used less than its share. So after such a yield waiters sleep at once, until the time
//! that it has cost is a small part of all.
//!
//! A wire between two processes is looked at without a system call, and the answer of a peer that spins comes within microseconds. There
//! a thread looks again and again before its first yield, which would take as long as the message.
//!
//! A receiver that is faster than its sender spins between all packets, which costs as much as receiving them. While a stream
//! arrives, and the program sends nothing that the peer may answer, it naps instead: a short time by the clock, in which packets
//! gather, as a NIC does that delays its interrupts. Many short connections are no stream: their peers wait for each step.

use std::time::Duration;

use wire::Instant;

/// How long an idle waiter spins before it sleeps.
const LIMIT: Duration = Duration::from_micros(50);

/// Number of consecutive spins without work after which waiters sleep at once.
const SPINS_BEFORE_PAUSE: u32 = 4;

/// After that, one of this many sleeps is preceded by a spin, to test whether it finds work.
const PROBE_EVERY: u32 = 16;

/// Packets since the last turn from which on a stream arrives: 16 MiB over a link with super-packets. The last
/// packets of a stream are found one nap later.
const STREAM_PACKETS: u64 = 256;

/// Length of a nap, to which the kernel adds the timer slack of the thread, usually 50 us (prctl(2), PR_SET_TIMERSLACK). 7 packets
/// of 64 KiB gather at 60 Gbit/s.
const NAP: Duration = Duration::from_micros(5);

/// If the first look after a yield comes later, another thread has used this processor, maybe the peer: it would do nothing
/// during a nap that it does not do after a yield.
const QUICK_YIELD: Duration = Duration::from_micros(5);

/// How long a waiter looks at a link that costs no system call before it yields. The answer to a short message comes earlier, unless
/// the peer shares this processor and waits for the yield.
const POLL_BEFORE_YIELD: Duration = Duration::from_micros(4);

/// A yield that took at least this long has given the processor to a thread that computes, and so uses it until the kernel takes it
/// away, at a tick of 1 to 10 ms. A peer that shares our processor, or a process that forwards its frames, takes less for a message.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// For so many times as long as such a yield took waiters do not spin: yields that are in vain cost less than 2 % of the time.
const CROWDED_FACTOR: u32 = 64;

/// Recent results of spinning.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Until then other threads are expected to want the processor.
    crowded_until: Instant,
    /// Sleeps since a spin last found work.
    sleeps: u32,
    /// Turns when `stream_began` was noted.
    turns: u64,
    /// Packets that were received before the stream.
    stream_began: u64,
}

/// What a thread does that has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// It looks again at once.
    Look,
    /// It looks again after other threads.
    Yield,
    /// It looks again after this time.
    Nap(Duration),
    /// It waits for the link.
    Sleep,
}

/// How often waiting threads that found nothing have done each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Looked again at once.
    pub looks: u64,
    /// Looked again after other threads: they spin.
    pub yields: u64,
    /// Looked again after a time by the clock: a nap, or a rest.
    pub naps: u64,
    /// Slept until the link had a packet.
    pub sleeps: u64,
}

impl Pauses {
    pub(crate) fn note(&mut self, pause: Pause) {
        let count = match pause {
            Pause::Look => &mut self.looks,
            Pause::Yield => &mut self.yields,
            Pause::Nap(_) => &mut self.naps,
            Pause::Sleep => &mut self.sleeps,
        };
        *count += 1;
    }
}

/// What has happened on a NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Packets that were received.
    pub(crate) received: u64,
    /// How often program or peer have done what the other one follows up ([`Stack::turns`](stack::Stack::turns)).
    pub(crate) turns: u64,
    /// The link passes memory of the sender on, which is little, so that it stays in the cache: the sender would wait for the
    /// end of a nap. On the wire between two processes the rate was a fifth lower. And to look at it costs no system call.
    pub(crate) borrows: bool,
}

impl Spin {
    /// Returns what to do at `now`, after `idle` without work.
    pub(crate) fn pause(&mut self, now: Instant, idle: Duration, traffic: Traffic) -> Pause {
        if self.turns != traffic.turns {
            self.turns = traffic.turns;
            self.stream_began = traffic.received;
        }
        let naps = !traffic.borrows && traffic.received - self.stream_began >= STREAM_PACKETS;
        match idle {
            idle if idle >= self.limit() => Pause::Sleep,
            idle if traffic.borrows && idle < POLL_BEFORE_YIELD => Pause::Look,
            _ if now < self.crowded_until => Pause::Sleep,
            Duration::ZERO => Pause::Yield,
            idle if naps && idle < QUICK_YIELD => Pause::Nap(NAP),
            _ => Pause::Yield,
        }
    }

    /// Returns how long to spin before the next sleep.
    fn limit(&self) -> Duration {
        if self.sleeps < SPINS_BEFORE_PAUSE || self.sleeps.is_multiple_of(PROBE_EVERY) {
            LIMIT
        } else {
            Duration::ZERO
        }
    }

    /// Records a yield.
    pub(crate) fn on_yield(&mut self, began: Instant, ended: Instant) {
        let took = ended.saturating_since(began);
        if took >= LONG_YIELD {
            self.crowded_until = ended + CROWDED_FACTOR * took;
        }
    }

    /// Records that spinning found work.
    pub(crate) fn on_work(&mut self) {
        self.sleeps = 0;
    }

    /// Records a sleep, after a spin without work or without a spin.
    pub(crate) fn on_sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Returns what a thread does that has found nothing for `idle` microseconds, while nobody else wants the processor.
    fn pause(spin: &mut Spin, idle: u64, traffic: Traffic) -> Pause {
        spin.pause(Instant::from_millis(1), us(idle), traffic)
    }

    const CALM: Traffic = Traffic {
        received: 0,
        turns: 0,
        borrows: false,
    };

    #[test]
    fn a_receiver_of_a_stream_yields_then_naps_then_sleeps() {
        let mut spin = Spin::default();
        let traffic = Traffic {
            received: STREAM_PACKETS,
            ..CALM
        };
        assert_eq!(pause(&mut spin, 0, traffic), Pause::Yield);
        assert_eq!(pause(&mut spin, 1, traffic), Pause::Nap(NAP));
        let borrows = true;
        for (idle, expected) in [(1, Pause::Look), (4, Pause::Yield), (60, Pause::Sleep)] {
            let borrowing = Traffic { borrows, ..traffic };
            assert_eq!(pause(&mut spin, idle, borrowing), expected, "{idle} us");
        }
        assert_eq!(pause(&mut spin, 60, traffic), Pause::Sleep);
        // The first yield took long: another thread has used the processor.
        assert_eq!(pause(&mut spin, 5, traffic), Pause::Yield);
    }

    #[test]
    fn a_program_that_asks_and_waits_for_answers_does_not_nap() {
        let mut spin = Spin::default();
        let mut traffic = CALM;
        for _ in 0..100 {
            traffic.turns += 1;
            assert_eq!(pause(&mut spin, 0, traffic), Pause::Yield);
            traffic.received += STREAM_PACKETS - 1;
            assert_eq!(pause(&mut spin, 1, traffic), Pause::Yield);
        }
        traffic.received += 1;
        assert_eq!(pause(&mut spin, 1, traffic), Pause::Nap(NAP));
    }

    /// Returns how many of `sleeps` sleeps are preceded by a spin.
    fn spins_before(spin: &mut Spin, sleeps: u32) -> usize {
        let spun = (0..sleeps).map(|_| {
            let spun = !spin.limit().is_zero();
            spin.on_sleep();
            spun
        });
        spun.filter(|&spun| spun).count()
    }

    #[test]
    fn spinning_that_finds_nothing_becomes_rare_and_never_ends() {
        let mut spin = Spin::default();
        assert_eq!(
            spins_before(&mut spin, SPINS_BEFORE_PAUSE),
            SPINS_BEFORE_PAUSE as usize
        );
        assert_eq!(spins_before(&mut spin, PROBE_EVERY), 1);
        assert_eq!(spins_before(&mut spin, 10 * PROBE_EVERY), 10);
    }

    #[test]
    fn one_spin_that_finds_work_brings_it_back() {
        let mut spin = Spin::default();
        spins_before(&mut spin, 100);
        spin.on_work();
        assert_eq!(spin.limit(), LIMIT);
        assert_eq!(
            spins_before(&mut spin, SPINS_BEFORE_PAUSE),
            SPINS_BEFORE_PAUSE as usize
        );
    }

    #[test]
    fn a_yield_that_took_a_whole_turn_of_another_thread_ends_yields_for_a_time() {
        let mut spin = Spin::default();
        let ms = Instant::from_millis;
        spin.on_yield(ms(1), ms(1) + us(499));
        assert_eq!(spin.pause(ms(2), us(1), CALM), Pause::Yield);
        spin.on_yield(ms(2), ms(6));
        let borrows = true;
        for now in [ms(6), ms(6 + 4 * 64 - 1)] {
            assert_eq!(spin.pause(now, us(0), CALM), Pause::Sleep);
            let borrowing = Traffic { borrows, ..CALM };
            assert_eq!(spin.pause(now, us(0), borrowing), Pause::Look);
            assert_eq!(spin.pause(now, us(4), borrowing), Pause::Sleep);
        }
        assert_eq!(spin.pause(ms(6 + 4 * 64), us(0), CALM), Pause::Yield);
    }
}
