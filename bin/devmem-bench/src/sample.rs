//! The result of one run of a benchmark, and whether other load disturbed it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::accounting::Accounting;
use crate::meter::MeterReading;
use crate::sender::SenderReport;

/// Maximum number of tries of a run that other load disturbs.
const TRIES: usize = 3;
/// Maximum load by other processes, in processors, of an undisturbed run.
const OTHERS_MAX: f64 = 0.15;

/// Result of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Payload bytes received.
    pub bytes: u64,
    /// Time from the first of them to the end of the stream.
    pub seconds: f64,
    /// Payload bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// CPU time of the sender, in seconds per 10^9 bytes.
    pub sender_cpu_s_per_gb: f64,
    /// CPU time of the receiver, in seconds per 10^9 bytes.
    pub receiver_cpu_s_per_gb: f64,
    /// CPU time of both and of the kernel's softirq threads, in seconds per 10^9 bytes.
    pub total_cpu_s_per_gb: f64,
    /// Load by other processes meanwhile, in processors.
    pub other_cpus_busy: f64,
}

impl Sample {
    /// Combines the measurements of both ends and of the machine.
    ///
    /// # Errors
    ///
    /// Bytes were lost, or none was received.
    pub fn new(received: MeterReading, sent: SenderReport, machine: Accounting) -> Result<Self> {
        let MeterReading {
            bytes,
            elapsed,
            cpu,
        } = received;
        if bytes != sent.bytes {
            bail!("{} bytes were sent and {bytes} received", sent.bytes);
        }
        let gigabytes = bytes as f64 / 1e9;
        if gigabytes == 0.0 || elapsed.is_zero() {
            bail!("nothing was received");
        }
        let sender = Duration::from_nanos(sent.cpu_ns);
        let total = cpu + sender + machine.softirq_threads;
        let others = machine.busy.saturating_sub(total);
        let seconds = elapsed.as_secs_f64();
        Ok(Self {
            bytes,
            seconds,
            gbit_per_s: gigabytes * 8.0 / seconds,
            sender_cpu_s_per_gb: sender.as_secs_f64() / gigabytes,
            receiver_cpu_s_per_gb: cpu.as_secs_f64() / gigabytes,
            total_cpu_s_per_gb: total.as_secs_f64() / gigabytes,
            other_cpus_busy: others.as_secs_f64() / seconds,
        })
    }

    /// Returns whether other processes disturbed the run.
    pub fn is_disturbed(&self) -> bool {
        self.other_cpus_busy > OTHERS_MAX
    }
}

/// Repeats a run until one was not disturbed, at most [`TRIES`] times. Returns the least disturbed run.
///
/// # Errors
///
/// The error of a run.
pub fn quietest(mut run: impl FnMut() -> Result<Sample>) -> Result<Sample> {
    let mut best: Option<Sample> = None;
    for _ in 0..TRIES {
        let sample = run()?;
        if best.is_none_or(|best| sample.other_cpus_busy < best.other_cpus_busy) {
            best = Some(sample);
        }
        if !sample.is_disturbed() {
            break;
        }
    }
    best.context("at least one try was made")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: u64) -> MeterReading {
        MeterReading {
            bytes,
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_sample_has_the_total_cpu_time() {
        let sent = SenderReport {
            bytes: 10_000_000_000,
            cpu_ns: 1_500_000_000,
        };
        let machine = Accounting {
            softirq_threads: Duration::from_millis(500),
            busy: Duration::from_millis(3100),
        };
        let sample = Sample::new(received(10_000_000_000), sent, machine).unwrap();
        assert_eq!(
            (sample.gbit_per_s, sample.receiver_cpu_s_per_gb),
            (40.0, 0.1)
        );
        assert_eq!(
            (sample.total_cpu_s_per_gb, sample.is_disturbed()),
            (0.3, false)
        );
        let machine = Accounting {
            busy: Duration::from_millis(3400),
            ..machine
        };
        assert!(
            Sample::new(received(10_000_000_000), sent, machine)
                .unwrap()
                .is_disturbed()
        );
    }

    #[test]
    fn a_run_that_lost_bytes_is_an_error() {
        let sent = SenderReport {
            bytes: 1000,
            cpu_ns: 1,
        };
        let error = Sample::new(received(999), sent, Accounting::default()).unwrap_err();
        assert_eq!(error.to_string(), "1000 bytes were sent and 999 received");
        let nothing = SenderReport {
            bytes: 0,
            cpu_ns: 1,
        };
        assert!(Sample::new(received(0), nothing, Accounting::default()).is_err());
    }

    #[test]
    fn a_disturbed_run_is_repeated_and_the_quietest_is_kept() {
        let sent = SenderReport {
            bytes: 10_000_000_000,
            cpu_ns: 0,
        };
        let mut busy = [5000, 3000, 4000].into_iter();
        let mut run = || {
            let machine = Accounting {
                busy: Duration::from_millis(busy.next().expect("three tries at most")),
                ..Accounting::default()
            };
            Sample::new(received(10_000_000_000), sent, machine)
        };
        assert_eq!(quietest(&mut run).unwrap().other_cpus_busy, 1.0);
    }
}
