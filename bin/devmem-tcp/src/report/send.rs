//! The report of `send`.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::MemoryAndLink;
use super::rows::{cpu_text, per_gb, rate_row, row};
use tool::rate::Rate;
use tool::size::Size;
use tool::transmit::SendStats;

/// The report of `send`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Serialize)]
pub struct SendReport {
    /// The sending stack: `user` or `kernel`.
    pub backend: &'static str,
    /// The link: `tap:NAME`.
    pub link: String,
    /// The peer's address.
    pub to: SocketAddr,
    /// A signal has ended the run before all bytes were acknowledged.
    pub interrupted: bool,
    /// Payload bytes, all acknowledged.
    pub bytes: u64,
    /// Time from the first byte until the last was acknowledged, in seconds.
    pub seconds: f64,
    /// Payload bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// Statistics of sending from device memory.
    #[serde(flatten)]
    pub sending: Sending,
    /// Maximum number of bytes of one send.
    pub chunk_bytes: u64,
    /// The bound memory and the link.
    #[serde(flatten)]
    pub memory_and_link: MemoryAndLink,
}

/// Statistics of sending from device memory, which are also part of the demo's report.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sending {
    /// Zero-copy sends.
    pub sends: u64,
    /// Zero-copy sends reported as complete.
    pub completions: u64,
    /// Of those, sends that were reported as copied.
    pub copied_completions: u64,
    /// CPU time of sending, without that of generating or reading the bytes, in seconds per 10^9 bytes.
    pub send_cpu_s_per_gb: Option<f64>,
    /// CPU time of generating or reading the bytes and of writing them to device memory, in seconds per 10^9 bytes.
    pub fill_cpu_s_per_gb: Option<f64>,
    /// Packets that TCP sent again.
    pub retransmitted_packets: u64,
    /// Bytes of payload that TCP sent again.
    pub retransmitted_bytes: u64,
    /// Timeouts of the retransmission timer.
    pub timeouts: u64,
    /// Smoothed round-trip time at the end, in microseconds.
    pub rtt_us: f64,
    /// Shortest round-trip time, in microseconds.
    pub min_rtt_us: f64,
}

impl Sending {
    /// Converts the statistics of a sender.
    pub fn of(sent: &SendStats) -> Self {
        Self {
            sends: sent.sends,
            completions: sent.completions,
            copied_completions: sent.copied,
            send_cpu_s_per_gb: per_gb(sent.sending, sent.bytes),
            fill_cpu_s_per_gb: per_gb(sent.filling, sent.bytes),
            retransmitted_packets: sent.path.retransmitted_packets,
            retransmitted_bytes: sent.path.retransmitted_bytes,
            timeouts: sent.path.timeouts,
            rtt_us: sent.path.rtt.as_secs_f64() * 1e6,
            min_rtt_us: sent.path.min_rtt.as_secs_f64() * 1e6,
        }
    }

    /// Returns the error of an incomplete run.
    pub fn complaint(&self) -> Option<String> {
        let missing = self.sends - self.completions;
        (missing > 0).then(|| format!("{missing} of {} sends did not complete", self.sends))
    }

    /// Writes its rows of a table.
    pub(super) fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (send, fill) = (self.send_cpu_s_per_gb, self.fill_cpu_s_per_gb);
        let cpu = cpu_text(send, Some((fill, "to fill")));
        row(f, "sender CPU", format_args!("{cpu}"))?;
        let (sends, done, copied) = (self.sends, self.completions, self.copied_completions);
        row(
            f,
            "sends",
            format_args!("{sends}, {done} complete, {copied} copied"),
        )?;
        let (again, bytes, timeouts) = (
            self.retransmitted_packets,
            Size(self.retransmitted_bytes),
            self.timeouts,
        );
        row(
            f,
            "sent again",
            format_args!("{again} packets, {bytes}; {timeouts} timeouts"),
        )?;
        let (rtt, shortest) = (self.rtt_us / 1e3, self.min_rtt_us / 1e3);
        row(
            f,
            "round trip",
            format_args!("{rtt:.3} ms, at least {shortest:.3} ms"),
        )
    }
}

impl SendReport {
    /// Returns the report of what was sent to `to`, without memory and link.
    pub fn of(backend: &'static str, link: String, to: SocketAddr, sent: &SendStats) -> Self {
        Self {
            backend,
            link,
            to,
            interrupted: sent.is_interrupted,
            bytes: sent.bytes,
            seconds: sent.elapsed.as_secs_f64(),
            gbit_per_s: Rate::of(sent.bytes, sent.elapsed).gbit_per_s(),
            sending: Sending::of(sent),
            chunk_bytes: 0,
            memory_and_link: MemoryAndLink::default(),
        }
    }

    /// Returns the error of an incomplete run that nobody has interrupted.
    pub fn complaint(&self) -> Option<String> {
        match self.interrupted {
            true => None,
            false => self.sending.complaint(),
        }
    }
}

impl fmt::Display for SendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, to, link) = (Size(self.bytes), self.to, &self.link);
        row(f, "sent", format_args!("{size} to {to} over {link}"))?;
        rate_row(f, self.gbit_per_s, self.seconds)?;
        self.sending.rows(f)?;
        let MemoryAndLink {
            mem_bytes,
            page_kind: kind,
            ..
        } = &self.memory_and_link;
        let (size, chunk) = (Size(*mem_bytes), Size(self.chunk_bytes));
        row(
            f,
            "memory",
            format_args!("{size} in chunks of {chunk}, {kind}"),
        )?;
        write!(f, "{}", self.memory_and_link)
    }
}
