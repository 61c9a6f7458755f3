//! The report of `store`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::MemoryAndLink;
use super::rows::{checksum_on, cpu_text, per_gb, rate_row, row, summary_row};
use tool::rate::Rate;
use tool::size::Size;
use transfer::store::Stored;

/// The report of `store`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreReport {
    /// The sending stack: `user` or `kernel`.
    pub backend: &'static str,
    /// The link: `tap:NAME`, or the interface of the kernel.
    pub link: String,
    /// The file.
    pub file: String,
    /// The export.
    pub url: String,
    /// A signal has ended the store, or the verification, before its end.
    pub interrupted: bool,
    /// Bytes that the server has acknowledged.
    pub bytes: u64,
    /// Bytes among them that were not sent, because they are zeros.
    pub unsent_bytes: u64,
    /// Time from the first connection to the last reply, in seconds.
    pub seconds: f64,
    /// Stored bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// CPU time of sending, in seconds per 10^9 bytes.
    pub store_cpu_s_per_gb: Option<f64>,
    /// CPU time of reading the file and writing its bytes to device memory, in seconds per 10^9 bytes.
    pub fill_cpu_s_per_gb: Option<f64>,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Pieces that were acknowledged.
    pub pieces: u64,
    /// Pieces that were written again.
    pub repeated: u64,
    /// Whether the server has brought all bytes to its storage.
    pub durable: bool,
    /// Zero-copy sends.
    pub sends: u64,
    /// Of those, sends that were reported as copied.
    pub copied_completions: u64,
    /// CRC-32C of the file in hexadecimal, with `--verify`.
    pub crc32c: Option<String>,
    /// Whether the bytes that were loaded back have the same checksum; `null` without `--verify`.
    pub crc32c_matches: Option<bool>,
    /// What computed the checksum of the bytes that were loaded back: a device, which computes over its memory, such as `cuda:0`, or `cpu`; `null` without `--verify`.
    pub checksum_on: Option<String>,
    /// The device memory for chunks, and the link.
    #[serde(flatten)]
    pub memory_and_link: MemoryAndLink,
}

impl StoreReport {
    /// Sets the outcome of a store that used this CPU time, `filling` of it to read the file.
    pub fn set_stored(&mut self, stored: &Stored, used: Duration, filling: Duration) {
        self.bytes = stored.bytes;
        self.unsent_bytes = stored.unsent_bytes;
        self.seconds = stored.elapsed.as_secs_f64();
        self.gbit_per_s = Rate::of(stored.bytes, stored.elapsed).gbit_per_s();
        self.store_cpu_s_per_gb = per_gb(used.saturating_sub(filling), stored.bytes);
        self.fill_cpu_s_per_gb = per_gb(filling, stored.bytes);
        self.connections = stored.connections;
        self.broken = stored.broken;
        self.pieces = stored.pieces;
        self.repeated = stored.repeated;
        self.sends = stored.sends;
        self.copied_completions = stored.copied_sends;
    }

    /// Sets the checksums of the file and of the bytes that were loaded back, which `device` has computed, or else the CPU.
    pub fn set_verified(&mut self, file: u32, stored: u32, device: Option<String>) {
        self.crc32c = Some(format!("{file:08x}"));
        self.crc32c_matches = Some(file == stored);
        self.checksum_on = Some(checksum_on(device));
    }

    /// Returns the error of a run with a wrong result; `None` if the result is correct.
    pub fn complaint(&self) -> Option<&'static str> {
        let is_wrong = self.crc32c_matches == Some(false);
        is_wrong.then_some("the export has other bytes than the file")
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        summary_row(f, "stored", self.bytes, &self.link, self.connections)?;
        if self.unsent_bytes > 0 {
            let zeros = Size(self.unsent_bytes);
            row(
                f,
                "zeros",
                format_args!("{zeros} of them, which were not sent"),
            )?;
        }
        rate_row(f, self.gbit_per_s, self.seconds)?;
        let (send, fill) = (self.store_cpu_s_per_gb, self.fill_cpu_s_per_gb);
        let cpu = cpu_text(send, Some((fill, "to read the file")));
        row(f, "sender CPU", format_args!("{cpu}"))?;
        let (pieces, repeated, broken) = (self.pieces, self.repeated, self.broken);
        row(
            f,
            "pieces",
            format_args!("{pieces}, {repeated} repeated, {broken} broken connections"),
        )?;
        let (sends, copied) = (self.sends, self.copied_completions);
        row(f, "sends", format_args!("{sends}, {copied} copied"))?;
        let durable = match self.durable {
            true => "on the server's storage",
            false => "acknowledged; the server cannot flush them to its storage",
        };
        row(f, "bytes", format_args!("{durable}"))?;
        if let Some(sum) = &self.crc32c {
            let judged = match self.crc32c_matches {
                Some(true) => "of the file and of the export",
                Some(false) | None => "of the file, and NOT of the export",
            };
            let on = self.checksum_on.as_deref().unwrap_or_default();
            row(
                f,
                "CRC-32C",
                format_args!("{sum}, {judged}; computed on {on}"),
            )?;
        }
        write!(f, "{}", self.memory_and_link)
    }
}
