//! The report of `load`.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use devmem_tcp::{Impairment, Netdev, stats::QueueStats};
use serde::Serialize;

use super::MemoryAndLink;
use super::rows::{cpu_text, not_home, per_gb, placed_row, rate_row, row, summary_row};
use super::server_sum::{FileSum, ServerSum};
use crate::backend::SOCKETS;
use crate::unused::Unused;
use pattern::Verifier;
use tool::rate::Rate;
use tool::size::Size;
use transfer::load::{Loaded, NoSum, Tensor};

/// The report of `load`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// The receiving stack: `user`, `kernel`, or `sockets`: the kernel's, without device memory.
    pub backend: &'static str,
    /// The link: `tap:NAME`, or the interface of the kernel.
    pub link: String,
    /// The file, without user and password, after redirects.
    pub url: String,
    /// Where the bytes went: `memory`, the kind of memory that `--to` named, or the name of the file.
    pub to: String,
    /// The tensors of a checkpoint and their places; `null` for other files.
    pub tensors: Option<Vec<TensorRow>>,
    /// A signal has ended the load before its end.
    pub interrupted: bool,
    /// Loaded bytes.
    pub bytes: u64,
    /// Bytes that an earlier load had brought already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_bytes: Option<u64>,
    /// Time from the first request for them to the last byte, in seconds.
    pub seconds: f64,
    /// Loaded bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// CPU time of receiving and of moving the bytes to their place, in seconds per 10^9 bytes.
    pub load_cpu_s_per_gb: Option<f64>,
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
    /// Received bytes in device memory that were copied once more, to their place; the others were received there.
    pub moved_bytes: u64,
    /// Bytes of https servers that the CPU decrypted in host memory, and that were copied to their place from there.
    pub decrypted_bytes: u64,
    /// Frags of device memory lent.
    pub device_frags: u64,
    /// Frags of device memory returned.
    pub tokens_returned: u64,
    /// Number of net_iovs of the bound memory.
    pub net_iovs_total: u64,
    /// Number of net_iovs that were free after unbinding.
    pub net_iovs_home: u64,
    /// CRC-32C of the loaded bytes in hexadecimal, if it was requested.
    pub crc32c: Option<String>,
    /// Whether the server has the same CRC-32C; `null` if it has none of the bytes of the file, or none was computed.
    pub crc32c_matches: Option<bool>,
    /// What computed the checksum: a device, which computes over its memory, such as `cuda:0`, or `cpu`; `null` without `--verify`.
    pub checksum_on: Option<String>,
    /// Why no device computed it, if the CPU did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_reason: Option<&'static str>,
    /// The checksum that the server has of the file, and that of the loaded bytes, with `--verify`; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_checksum: Option<ServerSum>,
    /// Why the checksum that the server has cannot be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_compared: Option<String>,
    /// The checksums that the servers have of the files of a checkpoint, compared, with `--verify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileSum>>,
    /// XXH3 of 64 bits of the loaded bytes in hexadecimal, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xxh3: Option<String>,
    /// Correct bytes, if each was compared: by `demo --load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_bytes: Option<u64>,
    /// Wrong bytes, if each was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_bytes: Option<u64>,
    /// The bound memory and the link.
    #[serde(flatten)]
    pub memory_and_link: MemoryAndLink,
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
    pub fn set_loaded(&mut self, loaded: &Loaded, cpu: Duration) {
        self.bytes = loaded.bytes;
        self.seconds = loaded.elapsed.as_secs_f64();
        self.gbit_per_s = Rate::of(loaded.bytes, loaded.elapsed).gbit_per_s();
        self.load_cpu_s_per_gb = per_gb(cpu, loaded.bytes);
        self.connections = loaded.connections;
        self.broken = loaded.broken;
        self.pieces = loaded.pieces;
        self.repeated = loaded.repeated;
        self.device_bytes = loaded.stats.device_bytes;
        self.linear_bytes = loaded.stats.linear_bytes;
        self.decrypted_bytes = loaded.decrypted;
        self.device_frags = loaded.stats.device_frags;
        self.tokens_returned = loaded.stats.tokens_returned;
    }

    /// Sets the outcome of a load that a signal has ended after `bytes` bytes and `elapsed` time, by the counters of the NIC's
    /// queues.
    pub fn set_interrupted(&mut self, bytes: u64, elapsed: Duration, queues: &[QueueStats]) {
        self.interrupted = true;
        self.bytes = bytes;
        self.seconds = elapsed.as_secs_f64();
        self.gbit_per_s = Rate::of(bytes, elapsed).gbit_per_s();
        for queue in queues {
            // Queue 0 receives into host memory.
            match queue.queue.0 {
                0 => self.linear_bytes += queue.bytes,
                _ => self.device_bytes += queue.bytes,
            }
        }
    }

    /// Sets how many bytes were copied to their place, by the counters of the NIC's queues and [`Self::set_loaded`].
    pub fn set_moved(&mut self, queues: &[QueueStats]) {
        let received_there = |queue: &QueueStats| queue.direct_bytes - queue.direct_copied_bytes;
        let at_once: u64 = queues.iter().map(received_there).sum();
        self.moved_bytes = self.device_bytes.saturating_sub(at_once);
    }

    /// Sets memory and link, when the memory was unbound from the NIC.
    pub fn set_unused(&mut self, unused: &Unused, address: IpAddr, impairment: Impairment) {
        let Unused {
            nic,
            memory,
            net_iovs,
            ..
        } = unused;
        self.net_iovs_total = net_iovs.total as u64;
        self.net_iovs_home = net_iovs.home as u64;
        self.memory_and_link = MemoryAndLink::of(nic, memory, address, impairment);
    }

    /// Sets memory and link of a load without bound memory.
    pub fn set_unbound(&mut self, nic: &Netdev, address: IpAddr) {
        self.memory_and_link = MemoryAndLink::unbound(nic, address);
    }

    /// Sets the result of comparing every byte.
    pub fn set_verified(&mut self, verifier: &Verifier) {
        self.verified_bytes = Some(verifier.good_bytes());
        self.bad_bytes = Some(verifier.bad_bytes());
    }

    /// Returns the error of a run with a wrong result; `None` if the result is correct.
    pub fn complaint(&self) -> Option<String> {
        let server_sum = self.server_checksum.as_ref();
        let of_file = |sum: &ServerSum| sum.complaint("the server's file");
        let of_files = || self.files.iter().flatten().find_map(FileSum::complaint);
        if let Some(complaint) = server_sum.and_then(of_file).or_else(of_files) {
            return Some(complaint);
        }
        if let Some(bad) = self.bad_bytes.filter(|bad| *bad > 0) {
            return Some(format!("{bad} loaded bytes differ from the file"));
        }
        not_home(self.net_iovs_home, self.net_iovs_total)
    }
}

impl LoadReport {
    fn memory_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        placed_row(f, self.device_bytes, self.linear_bytes)?;
        let arrival = match self.backend {
            "kernel" => "none on arrival",
            _ => "1 on arrival",
        };
        let moved = 100.0 * self.moved_bytes as f64 / self.device_bytes.max(1) as f64;
        match self.backend {
            _ if self.decrypted_bytes > 0 => row(
                f,
                "copies",
                format_args!(
                    "1 on arrival in host memory, 1 more to the place of {}, which the CPU decrypted",
                    Size(self.decrypted_bytes)
                ),
            )?,
            SOCKETS => row(
                f,
                "copies",
                format_args!("1 on arrival in host memory, 1 more to their place"),
            )?,
            _ => row(
                f,
                "copies",
                format_args!("{arrival}, 1 more of {moved:.1} % of the bytes, to their place"),
            )?,
        }
        self.checksum_rows(f)?;
        match (self.verified_bytes, self.bad_bytes) {
            (Some(_), Some(0)) => row(f, "verified", format_args!("every byte, in device memory"))?,
            (Some(good), Some(bad)) => row(f, "verified", format_args!("{good} good, {bad} BAD"))?,
            _ => {}
        }
        if self.net_iovs_total == 0 {
            return Ok(());
        }
        let (home, total) = (self.net_iovs_home, self.net_iovs_total);
        let kind = &self.memory_and_link.page_kind;
        row(
            f,
            "net_iovs",
            format_args!("{home} of {total} returned, {kind}"),
        )
    }
}

impl LoadReport {
    fn checksum_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.checksum_on.as_deref().unwrap_or_default();
        let why = self.checksum_reason.map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        if let Some(sum) = &self.crc32c {
            let judged = match (self.crc32c_matches, &self.server_checksum) {
                (Some(true), _) => ", as the server says".to_owned(),
                (Some(false), _) => ", NOT as the server says".to_owned(),
                (None, Some(_)) => String::new(),
                // The memory has gaps between tensors: no file has this checksum.
                (None, None) if self.files.is_some() => " of the memory".to_owned(),
                (None, None) => match &self.not_compared {
                    Some(why) => format!("; {why}"),
                    None => format!("; {}", NoSum::None),
                },
            };
            let text = format_args!("{sum}{judged}; computed on {on}{why}");
            row(f, "CRC-32C", text)?;
        }
        let other = self.server_checksum.as_ref();
        if let Some(sum) = other.filter(|_| self.crc32c_matches.is_none()) {
            let judged = if sum.matches { "as" } else { "NOT as" };
            let of_parts = match sum.parts {
                0 => String::new(),
                parts => format!(" of the checksums of {parts} parts"),
            };
            let text = format_args!("{}{of_parts}, {judged} the server says", sum.loaded);
            row(f, sum.kind, text)?;
        }
        if let Some(files) = &self.files {
            FileSum::rows(files, f)?;
        }
        match &self.xxh3 {
            Some(sum) => row(f, "XXH3", format_args!("{sum}; computed on {on}{why}")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        summary_row(f, "loaded", self.bytes, &self.link, self.connections)?;
        if let Some(tensors) = &self.tensors {
            let count = tensors.len();
            row(
                f,
                "tensors",
                format_args!("{count}, each at a multiple of 256 bytes"),
            )?;
        }
        rate_row(f, self.gbit_per_s, self.seconds)?;
        let cpu = self.load_cpu_s_per_gb;
        let cpu = cpu_text(cpu, None);
        row(
            f,
            "CPU",
            format_args!("{cpu} to receive and to move to its place"),
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
        if let Some(bytes) = self.resumed_bytes {
            row(
                f,
                "resumed",
                format_args!("{} had come before", Size(bytes)),
            )?;
        }
        self.memory_rows(f)?;
        write!(f, "{}", self.memory_and_link)
    }
}
