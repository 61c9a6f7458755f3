//! Measurement at the receiver.

use std::time::{Duration, Instant};

use devmem_linux::cpu;

/// Maximum time without data; after it, the sender is considered dead.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Measurement of one run at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterReading {
    /// Payload bytes.
    pub bytes: u64,
    /// Time from the first payload byte to the end of the stream.
    pub elapsed: Duration,
    /// CPU time of this process during that time.
    pub cpu: Duration,
}

/// Counts payload bytes, and the time since the first.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: u64,
    start: Option<(Instant, Duration)>,
}

impl Meter {
    /// Counts payload bytes, before they are processed.
    pub fn add(&mut self, bytes: usize) {
        if bytes > 0 {
            self.start
                .get_or_insert_with(|| (Instant::now(), cpu::process_cpu_time()));
            self.bytes += bytes as u64;
        }
    }

    /// Returns the measurement up to now.
    pub fn finish(&self) -> MeterReading {
        let (elapsed, cpu) = match self.start {
            Some((since, cpu)) => (since.elapsed(), cpu::process_cpu_time().saturating_sub(cpu)),
            None => (Duration::ZERO, Duration::ZERO),
        };
        MeterReading {
            bytes: self.bytes,
            elapsed,
            cpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_the_first_payload_byte() {
        let mut meter = Meter::default();
        meter.add(0);
        assert_eq!(
            meter.finish(),
            MeterReading {
                bytes: 0,
                elapsed: Duration::ZERO,
                cpu: Duration::ZERO
            }
        );
        meter.add(5);
        meter.add(7);
        let received = meter.finish();
        assert_eq!(received.bytes, 12);
        assert!(received.elapsed > Duration::ZERO);
    }
}
