//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss.
//!
//! Windows are in segments here, as in the RFC, and may be fractions of one. Only +, -, * and / are used on them,
//! so that every machine computes the same windows.

use core::time::Duration;

use wire::Instant;

use super::input::Growth;

/// Steepness, in segments per cubic second (RFC 9438 4.1 C).
const C: f64 = 0.4;

/// Factor of the window after a loss (RFC 9438 4.6 beta_cubic).
const BETA: f64 = 0.7;

/// Growth per window of the Reno-friendly estimate that has CUBIC's decrease: 3 (1 - beta) / (1 + beta)
/// (RFC 9438 4.3 alpha_cubic). It stays so past the window of the last loss, as with Linux: with the 1 that the RFC recommends there, this sender has
/// 1.3 to 1.5 times the rate of one of Linux in a long queue.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Most growth per round trip, as a factor (RFC 9438 4.2).
const MAX_GROWTH: f64 = 1.5;

/// The variables of RFC 9438 4.1.2.
#[derive(Debug, Clone, Default)]
pub(super) struct Cubic {
    /// The running epoch of congestion avoidance.
    epoch: Option<Epoch>,
    /// Window before the last loss, less if it was below the one before (4.7).
    w_max: f32,
    /// Fraction of the window that does not make a whole byte yet, in segments.
    fraction: f32,
}

/// One epoch of congestion avoidance.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// Start; moved later by times in which the application did not use the window.
    start: Instant,
    /// When the application last began to send too little.
    frozen_at: Instant,
    /// Window that Reno would have now.
    w_est: f64,
    /// Seconds until the plateau at W_max.
    k: f32,
    /// It still does so.
    frozen: bool,
}

impl Cubic {
    /// Returns by how many bytes the window grows.
    pub(super) fn on_ack(&mut self, cwnd: u64, growth: &Growth) -> u64 {
        let mss = f64::from(growth.mss.max(1));
        let window = cwnd as f64 / mss + f64::from(self.fraction);
        let acked = growth.acked as f64 / mss;
        let mut epoch = self.running_epoch(window, growth.now);

        epoch.w_est += ALPHA * acked / window;
        self.epoch = Some(epoch);

        let elapsed = growth.now.saturating_since(epoch.start);
        let grown = if self.w_cubic(elapsed, epoch.k) < epoch.w_est {
            epoch.w_est.max(window)
        } else {
            let ahead = elapsed + growth.srtt.unwrap_or_default();
            let target = self
                .w_cubic(ahead, epoch.k)
                .clamp(window, window * MAX_GROWTH);
            window + (target - window) / window * acked
        };
        // An ACK for many segments must not exceed the target either.
        let grown = grown.min(window * MAX_GROWTH);
        let gained = grown - window + f64::from(self.fraction);
        let bytes = (gained * mss).max(0.0) as u64;
        self.fraction = (gained - bytes as f64 / mss).max(0.0) as f32;
        bytes
    }

    /// Returns the window after a loss (RFC 9438 4.6, fast convergence 4.7).
    pub(super) fn on_loss(&mut self, cwnd: u64, mss: u16) -> u64 {
        let window = (cwnd as f64 / f64::from(mss.max(1))) as f32;
        let lower = window < self.w_max;
        self.w_max = if lower {
            window * (1.0 + BETA as f32) / 2.0
        } else {
            window
        };
        self.epoch = None;
        self.fraction = 0.0;
        (cwnd as f64 * BETA) as u64
    }

    /// Stops the clock of the epoch while the application does not use the window (RFC 9438 5.8).
    pub(super) fn on_application_limited(&mut self, since: Instant) {
        if let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) {
            epoch.frozen = true;
            epoch.frozen_at = since;
        }
    }

    /// Returns the running epoch, its clock running, or starts one (RFC 9438 4.2, 4.10).
    fn running_epoch(&mut self, window: f64, now: Instant) -> Epoch {
        let Some(mut epoch) = self.epoch else {
            let below = f64::from(self.w_max) - window;
            if below <= 0.0 {
                self.w_max = window as f32;
            }
            let k = if below > 0.0 {
                cube_root(below / C) as f32
            } else {
                0.0
            };
            return Epoch {
                start: now,
                frozen_at: now,
                frozen: false,
                k,
                w_est: window,
            };
        };
        if core::mem::take(&mut epoch.frozen) {
            epoch.start = epoch.start + now.saturating_since(epoch.frozen_at);
        }
        epoch
    }

    /// Returns W_cubic(t) (RFC 9438 4.2 figure 1).
    fn w_cubic(&self, elapsed: Duration, k: f32) -> f64 {
        let t = elapsed.as_secs_f64() - f64::from(k);
        C * t * t * t + f64::from(self.w_max)
    }
}

/// Returns the cube root of a positive number by Newton's method, to the last few bits.
fn cube_root(x: f64) -> f64 {
    // A third of the exponent is a first guess within a factor of two.
    let mut root = f64::from_bits(x.to_bits() / 3 + (1023 - 1023 / 3) * (1 << 52));
    for _ in 0..6 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 1000;

    fn growth(acked: u64, now: Instant) -> Growth {
        Growth {
            acked,
            mss: MSS,
            srtt: Some(Duration::from_millis(100)),
            now,
        }
    }

    /// Runs congestion avoidance with an ACK for each segment, evenly over each round trip of 100 ms, and returns
    /// the window in segments at the end of each round trip.
    fn run(cubic: &mut Cubic, cwnd: &mut u64, round_trips: u64, start: Instant) -> Vec<f64> {
        (0..round_trips)
            .map(|round| {
                let acks = *cwnd / u64::from(MSS);
                for ack in 0..acks {
                    let at = start + Duration::from_micros(round * 100_000 + ack * 100_000 / acks);
                    *cwnd += cubic.on_ack(*cwnd, &growth(u64::from(MSS), at));
                }
                *cwnd as f64 / f64::from(MSS)
            })
            .collect()
    }

    #[test]
    fn cube_roots_are_exact_to_twelve_digits() {
        for x in [1e-9, 0.001, 0.5, 1.0, 2.0, 27.0, 1000.0, 123_456.789, 1e12] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-12, "{x}: {root}");
        }
    }

    #[test]
    fn a_loss_leaves_seven_tenths() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_loss(1_000_000, MSS), 700_000);
        assert_eq!(cubic.w_max, 1000.0);
    }

    #[test]
    fn a_second_loss_below_the_first_makes_room_for_new_flows() {
        let mut cubic = Cubic::default();
        cubic.on_loss(1_000_000, MSS);
        cubic.on_loss(800_000, MSS);
        assert!((cubic.w_max - 800.0 * 0.85).abs() < 1e-3);
    }

    #[test]
    fn the_window_follows_the_cubic_function_of_rfc_9438() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.on_loss(10_000_000, MSS);
        let k = ((10_000.0 - 7_000.0) / 0.4f64).cbrt();
        let start = Instant::from_millis(1000);
        // Past the plateau, into the convex region.
        let windows = run(&mut cubic, &mut cwnd, 300, start);
        for (round, window) in windows.iter().enumerate().skip(10) {
            let t = (round + 1) as f64 * 0.1;
            let expected = 0.4 * (t - k).powi(3) + 10_000.0;
            // cwnd trails W_cubic(t + RTT) by at most a round trip.
            assert!(
                (window / expected - 1.0).abs() < 0.01,
                "round {round}: {window} against {expected}"
            );
        }
        assert!(
            windows[(k * 10.0) as usize] > 9_990.0,
            "plateau at W_max after K seconds"
        );
        assert!(windows[299] > 10_000.0, "convex region grows past W_max");
    }

    #[test]
    fn small_windows_grow_at_least_like_reno() {
        // 20 segments, 100 ms: the cubic function alone would need K = 2.5 s for six segments.
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.on_loss(20_000, MSS);
        let windows = run(&mut cubic, &mut cwnd, 40, Instant::from_millis(1));
        for (round, window) in windows.iter().enumerate() {
            let reno = 14.0 + ALPHA * (round + 1) as f64;
            let floor = reno.min(20.0) - 1.0;
            assert!(*window >= floor, "round {round}: {window} below {floor}");
        }
        // Past the old window, too, it gains half a segment per round trip, as Linux does.
        let gained = windows[39] - windows[29];
        assert!((4.3..=6.3).contains(&gained), "{gained}");
    }

    #[test]
    fn the_window_grows_at_most_by_half_per_round_trip() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.on_loss(100_000, MSS);
        cubic.on_ack(cwnd, &growth(1000, Instant::from_millis(1)));
        // An hour later the cubic function is far away.
        let late = Instant::from_millis(3_600_000);
        let before = cwnd;
        cwnd += cubic.on_ack(cwnd, &growth(cwnd, late));
        assert!(cwnd <= before + before / 2 + 1, "{before} -> {cwnd}");
        assert!(cwnd > before + before / 3);
    }

    #[test]
    fn an_ack_for_many_windows_grows_it_by_half_at_most() {
        let mut cubic = Cubic::default();
        let cwnd = cubic.on_loss(20_000, MSS);
        let grown = cubic.on_ack(cwnd, &growth(1000 * cwnd, Instant::from_millis(1)));
        assert!(grown <= cwnd / 2, "{grown}");
    }

    #[test]
    fn time_without_data_does_not_count() {
        let mut busy = Cubic::default();
        let mut cwnd = busy.on_loss(1_000_000, MSS);
        run(&mut busy, &mut cwnd, 10, Instant::from_millis(0));
        let mut paused = busy.clone();
        let at = Instant::from_millis(1000);
        paused.on_application_limited(at);
        paused.on_application_limited(at + Duration::from_secs(5));
        let resumed = paused.on_ack(cwnd, &growth(1000, at + Duration::from_secs(60)));
        assert_eq!(resumed, busy.on_ack(cwnd, &growth(1000, at)));
    }

    #[test]
    fn fractions_of_a_byte_add_up() {
        let mut cubic = Cubic::default();
        let start = cubic.on_loss(10_000_000, MSS);
        let (mut fine, mut at) = (start, Instant::from_millis(1));
        let mut coarse = (start, cubic.clone());
        for _ in 0..10_000 {
            fine += cubic.on_ack(fine, &growth(100, at));
            at = at + Duration::from_micros(10);
        }
        for step in 0..100 {
            let at = Instant::from_millis(1) + Duration::from_millis(step + 1);
            coarse.0 += coarse.1.on_ack(coarse.0, &growth(10_000, at));
        }
        let (fine, coarse) = ((fine - start) as f64, (coarse.0 - start) as f64);
        assert!(
            (fine / coarse - 1.0).abs() < 0.05,
            "{fine} against {coarse}"
        );
    }
}
