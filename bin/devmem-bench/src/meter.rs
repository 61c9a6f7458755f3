//! The receiver's side of a measurement.

use std::time::{Duration, Instant};

use devmem_linux::cpu;

/// A silence longer than this means that the sender is gone.
pub const SILENCE: Duration = Duration::from_secs(10);

/// What a receiver saw of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterReading {
    /// Payload bytes.
    pub bytes: u64,
    /// From the first payload byte to the end of the stream.
    pub elapsed: Duration,
    /// Processor time of this process meanwhile.
    pub cpu: Duration,
}

/// Counts payload, and time from its first byte on.
#[derive(Debug, Default)]
pub struct Meter {
    bytes: u64,
    start: Option<(Instant, Duration)>,
}

impl Meter {
    /// Counts payload that is about to be handled.
    pub fn add(&mut self, bytes: usize) {
        if bytes > 0 {
            self.start
                .get_or_insert_with(|| (Instant::now(), cpu::process_cpu_time()));
            self.bytes += bytes as u64;
        }
    }

    /// Returns what was seen up to now.
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
