//! The report of `load`.

use std::fmt;

use serde::Serialize;

use super::{per_gb, row};
use tool::progress::gbit_per_s;
use tool::size::Size;
use tool::undelivered::Undelivered;
use transfer::load::{Loaded, Tensor};

/// The report of `load`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// The receiving stack: `user`.
    pub backend: &'static str,
    /// The link: `tap:NAME`.
    pub link: String,
    /// The file, without user and password, after redirects.
    pub url: String,
    /// Where the bytes went: `memory`, or the name of the file.
    pub to: String,
    /// The tensors of a checkpoint and their places; `null` for other files.
    pub tensors: Option<Vec<TensorRow>>,
    /// Loaded bytes.
    pub bytes: u64,
    /// Time from the first request for them to the last byte, in seconds.
    pub seconds: f64,
    /// Loaded bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// CPU time of receiving and of moving the bytes to their place, in seconds per 10^9 bytes.
    pub load_cpu_s_per_gb: f64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Pieces that were loaded.
    pub pieces: u64,
    /// Pieces that were requested again.
    pub repeated: u64,
    /// Whether the server serves ranges; if not, there is one connection.
    pub serves_ranges: bool,
    /// Received bytes in device memory, heads of responses included.
    pub device_bytes: u64,
    /// Received bytes in host memory.
    pub linear_bytes: u64,
    /// Frags of device memory lent.
    pub device_frags: u64,
    /// Frags of device memory returned.
    pub tokens_returned: u64,
    /// Number of net_iovs of the bound memory.
    pub net_iovs_total: u64,
    /// Number of net_iovs that were free after unbinding.
    pub net_iovs_home: u64,
    /// Bytes of bound memory.
    pub mem_bytes: u64,
    /// Pages of the bound memory: huge, transparent-huge or base.
    pub page_kind: String,
    /// CRC-32C of the loaded bytes in hexadecimal, if it was requested.
    pub crc32c: Option<String>,
    /// Whether the server sent the same checksum; `null` if it sent none, or none was computed.
    pub crc32c_matches: Option<bool>,
    /// Largest IP packet.
    pub mtu: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// Impairments of the link.
    pub impair: String,
    /// Packets that our NIC and stack did not deliver, by reason.
    #[serde(flatten)]
    pub undelivered: Undelivered,
}

/// A tensor, and its place in device memory.
#[derive(Clone, Debug, Serialize)]
pub struct TensorRow {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// First byte in the memory.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl From<&Tensor> for TensorRow {
    fn from(tensor: &Tensor) -> Self {
        Self {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            offset: tensor.place.start as u64,
            bytes: tensor.place.len() as u64,
        }
    }
}

impl LoadReport {
    /// Sets the outcome of a load that used `cpu` time.
    pub fn set_loaded(&mut self, loaded: &Loaded, cpu: std::time::Duration) {
        self.bytes = loaded.bytes;
        self.seconds = loaded.elapsed.as_secs_f64();
        self.gbit_per_s = gbit_per_s(loaded.bytes, loaded.elapsed);
        self.load_cpu_s_per_gb = per_gb(cpu, loaded.bytes);
        self.connections = loaded.connections;
        self.broken = loaded.broken;
        self.pieces = loaded.pieces;
        self.repeated = loaded.repeated;
        self.device_bytes = loaded.stats.device_bytes;
        self.linear_bytes = loaded.stats.linear_bytes;
        self.device_frags = loaded.stats.device_frags;
        self.tokens_returned = loaded.stats.tokens_returned;
    }

    /// Returns the error of a run with a wrong result; `None` if the result is correct.
    pub fn complaint(&self) -> Option<String> {
        if self.crc32c_matches == Some(false) {
            return Some(
                "the loaded bytes have another checksum than the server's file".to_owned(),
            );
        }
        if self.net_iovs_home != self.net_iovs_total {
            let (home, total) = (self.net_iovs_home, self.net_iovs_total);
            return Some(format!(
                "{} of {total} net_iovs were not returned",
                total - home
            ));
        }
        None
    }
}

impl LoadReport {
    fn memory_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = (self.device_bytes + self.linear_bytes).max(1);
        let share = 100.0 * self.device_bytes as f64 / received as f64;
        let host = self.linear_bytes;
        row(
            f,
            "placed",
            format_args!("{share:.4} % in device memory, {host} bytes in host memory"),
        )?;
        if let Some(sum) = &self.crc32c {
            let judged = match self.crc32c_matches {
                Some(true) => "as the server says",
                Some(false) => "NOT as the server says",
                None => "the server sent none to compare",
            };
            row(f, "CRC-32C", format_args!("{sum}, {judged}"))?;
        }
        let (home, total, kind) = (self.net_iovs_home, self.net_iovs_total, &self.page_kind);
        row(
            f,
            "net_iovs",
            format_args!("{home} of {total} returned, {kind}"),
        )
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, link) = (Size(self.bytes), &self.link);
        let connections = match self.connections {
            1 => "1 connection".to_owned(),
            n => format!("{n} connections"),
        };
        row(
            f,
            "loaded",
            format_args!("{size} over {link}, {connections}"),
        )?;
        if let Some(tensors) = &self.tensors {
            let count = tensors.len();
            row(
                f,
                "tensors",
                format_args!("{count}, each at a multiple of 256 bytes"),
            )?;
        }
        let (rate, seconds) = (self.gbit_per_s, self.seconds);
        row(
            f,
            "rate",
            format_args!("{rate:.1} Gbit/s for {seconds:.2} s"),
        )?;
        let cpu = self.load_cpu_s_per_gb;
        row(
            f,
            "CPU",
            format_args!("{cpu:.3} s/GB to receive and to move to its place"),
        )?;
        let (pieces, repeated, broken) = (self.pieces, self.repeated, self.broken);
        let ranges = if self.serves_ranges {
            ""
        } else {
            "; the server serves no ranges"
        };
        row(
            f,
            "pieces",
            format_args!("{pieces}, {repeated} repeated, {broken} broken connections{ranges}"),
        )?;
        self.memory_rows(f)?;
        write!(f, "{}", self.undelivered)
    }
}
