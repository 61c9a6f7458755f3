//! What a run of `send` came to.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;

use super::{per_gb, row};
use tool::progress::gbit_per_s;
use tool::size::Size;
use tool::transmit::SendStats;

/// The result of `send`. The field names are the JSON's and stay as they are.
#[derive(Clone, Debug, Serialize)]
pub struct SendReport {
    /// What sent: `user`, our stack.
    pub backend: &'static str,
    /// What it sent over: `tap:NAME`.
    pub link: String,
    /// Where it sent to.
    pub to: SocketAddr,
    /// Payload bytes, all acknowledged.
    pub bytes: u64,
    /// From the first byte until the last was acknowledged.
    pub seconds: f64,
    /// Payload bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// How it was sent.
    #[serde(flatten)]
    pub sending: Sending,
    /// Most bytes of one send.
    pub chunk_bytes: u64,
    /// Bytes of bound memory.
    pub mem_bytes: u64,
    /// Pages of the bound memory: huge, transparent-huge or base.
    pub page_kind: String,
    /// Largest IP packet.
    pub mtu: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// What was wrong with the link on purpose.
    pub impair: String,
    /// Packets dropped by our NIC and stack, by reason; those that happened.
    pub drops: BTreeMap<String, u64>,
}

/// How bytes were sent from device memory: also a part of the demo's result.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sending {
    /// Zero-copy sends.
    pub sends: u64,
    /// Zero-copy sends reported as complete.
    pub completions: u64,
    /// Of those, reported as copied on the way.
    pub copied_completions: u64,
    /// Processor seconds that sending took, per 10^9 bytes; without those of making or reading the bytes.
    pub send_cpu_s_per_gb: f64,
    /// Processor seconds of making or reading the bytes and of writing them to device memory, per 10^9 bytes.
    pub fill_cpu_s_per_gb: f64,
}

impl Sending {
    /// Takes what `sent` says.
    pub fn of(sent: &SendStats) -> Self {
        Self {
            sends: sent.sends,
            completions: sent.completions,
            copied_completions: sent.copied,
            send_cpu_s_per_gb: per_gb(sent.sending, sent.bytes),
            fill_cpu_s_per_gb: per_gb(sent.filling, sent.bytes),
        }
    }

    /// Says what is wrong, if anything is.
    pub fn complaint(&self) -> Option<String> {
        let missing = self.sends - self.completions;
        (missing > 0).then(|| format!("{missing} of {} sends did not complete", self.sends))
    }

    /// Adds its rows to a table.
    pub(super) fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (send, fill) = (self.send_cpu_s_per_gb, self.fill_cpu_s_per_gb);
        row(
            f,
            "sender CPU",
            format_args!("{send:.3} s/GB, and {fill:.3} s/GB to fill"),
        )?;
        let (sends, done, copied) = (self.sends, self.completions, self.copied_completions);
        row(
            f,
            "sends",
            format_args!("{sends}, {done} complete, {copied} copied on the way"),
        )
    }
}

impl SendReport {
    /// Takes what `sent` says.
    pub fn set_sent(&mut self, sent: &SendStats) {
        self.bytes = sent.bytes;
        self.seconds = sent.elapsed.as_secs_f64();
        self.gbit_per_s = gbit_per_s(sent.bytes, sent.elapsed);
        self.sending = Sending::of(sent);
    }
}

impl fmt::Display for SendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, to, link) = (Size(self.bytes), self.to, &self.link);
        row(f, "sent", format_args!("{size} to {to} over {link}"))?;
        let (rate, seconds) = (self.gbit_per_s, self.seconds);
        row(
            f,
            "rate",
            format_args!("{rate:.1} Gbit/s for {seconds:.2} s"),
        )?;
        self.sending.rows(f)?;
        let (size, chunk, kind) = (
            Size(self.mem_bytes),
            Size(self.chunk_bytes),
            &self.page_kind,
        );
        row(
            f,
            "memory",
            format_args!("{size} in chunks of {chunk}, {kind}"),
        )?;
        super::drop_rows(f, &self.drops)
    }
}
