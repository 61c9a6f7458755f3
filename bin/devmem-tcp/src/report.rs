//! The report of a run: a table for people, a JSON object for programs.

mod exchange;
mod load;
mod memory_and_link;
mod rows;
mod send;
mod server_sum;
mod store;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use devmem_tcp::stats::QueueStats;

use crate::args::Direction;
use crate::plan::NicPlan;
use tool::output::Failure;
use tool::rate::Rate;
use tool::receive::Totals;
use tool::size::Size;
use tool::spread::Spread;
use tool::undelivered::Undelivered;

pub use exchange::{Collective, ExchangeReport, Reduction};
pub use load::{LoadReport, TensorRow};
pub use memory_and_link::MemoryAndLink;
pub use rows::{checksum_on, connections};
pub use send::{SendReport, Sending};
pub use server_sum::{FileSum, ServerSum};
pub use store::StoreReport;

use rows::{cpu_text, not_home, per_gb, placed_row, rate_row, row, summary_row};

/// Returns the end of a run whose report is printed: a wrong result, else a signal that has cut the run short.
pub fn verdict(complaint: Option<impl fmt::Display>, interrupted: bool) -> Result<(), Failure> {
    match complaint {
        Some(complaint) => Err(Failure::failed(complaint)),
        None if interrupted => Err(Failure::interrupted()),
        None => Ok(()),
    }
}

/// The report of `demo` and `recv`. The field names are those of the JSON and must not change.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// The receiving stack: `user` or `kernel`.
    pub backend: &'static str,
    /// Direction of the transfer: `rx`, `tx`, `loopback`.
    pub direction: Direction,
    /// The link: `tap:NAME` or `wire`.
    pub link: String,
    /// A signal has ended the run before its end.
    pub interrupted: bool,
    /// Connections that the peer ended with a FIN.
    pub connections: u64,
    /// Connections that failed, or that a signal has cut off.
    pub broken: u64,
    /// Payload bytes received.
    pub bytes: u64,
    /// Of those, verified bytes that are correct. `null` if no bytes were verified.
    pub verified_bytes: Option<u64>,
    /// Of those, verified bytes that are wrong.
    pub bad_bytes: Option<u64>,
    /// Stream position of the first wrong byte of any connection.
    pub first_bad: Option<u64>,
    /// Time from the first byte to the last, without the time between connections, in seconds.
    pub seconds: f64,
    /// Payload bits per second, in 10^9.
    pub gbit_per_s: f64,
    /// CPU time of receiving, without verification and output, in seconds per 10^9 bytes.
    pub recv_cpu_s_per_gb: Option<f64>,
    /// CPU time of verification and output, in seconds per 10^9 bytes.
    pub check_cpu_s_per_gb: Option<f64>,
    /// The payload was written to a file.
    #[serde(skip)]
    pub is_written: bool,
    /// Bytes in device memory.
    pub device_bytes: u64,
    /// Bytes in host memory.
    pub linear_bytes: u64,
    /// Frags of device memory lent.
    pub device_frags: u64,
    /// Frags of device memory returned.
    pub tokens_returned: u64,
    /// Number of net_iovs of the bound memory.
    pub net_iovs_total: u64,
    /// Number of net_iovs that were free after unbinding.
    pub net_iovs_home: u64,
    /// Size of a net_iov in bytes.
    pub niov_bytes: u64,
    /// Bytes of bound memory.
    pub mem_bytes: u64,
    /// Pages of the bound memory: huge, transparent-huge or base.
    pub page_kind: String,
    /// Bound RX queues.
    pub queues: u16,
    /// Largest IP packet.
    pub mtu: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// Impairments of the link.
    pub impair: String,
    /// Counters of each RX queue, bound or not.
    pub rx_queues: Vec<QueueRow>,
    /// How the received packets were spread over the shards of the NIC.
    #[serde(flatten)]
    pub spread: Spread,
    /// Packets that our NIC and stack did not deliver, by reason.
    #[serde(flatten)]
    pub undelivered: Undelivered,
    /// Statistics of sending from device memory, if that was done.
    #[serde(flatten)]
    pub sending: Option<Sending>,
}

/// Counters of one RX queue.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct QueueRow {
    /// Its number.
    pub queue: u16,
    /// Received packets.
    pub packets: u64,
    /// Bytes of these packets: payload in user space, as the driver counts them in the kernel.
    pub bytes: u64,
}

impl From<QueueStats> for QueueRow {
    fn from(stats: QueueStats) -> Self {
        Self {
            queue: stats.queue.0,
            packets: stats.packets,
            bytes: stats.bytes,
        }
    }
}

impl RunReport {
    /// Returns the report of a run over `link` without received bytes.
    pub fn of(backend: &'static str, link: String, nic: &NicPlan, address: IpAddr) -> Self {
        Self {
            backend,
            link,
            queues: nic.queues,
            ip_version: if address.is_ipv4() { 4 } else { 6 },
            impair: nic.impairment.to_string(),
            ..Self::default()
        }
    }

    /// Sets what was received.
    pub fn set_received(&mut self, totals: &Totals) {
        self.interrupted = totals.is_interrupted;
        self.connections = totals.connections;
        self.broken = totals.broken;
        self.bytes = totals.device_bytes + totals.linear_bytes;
        self.verified_bytes = totals.verified;
        self.bad_bytes = totals.verified.map(|_| totals.bad);
        self.first_bad = totals.first_bad;
        self.device_bytes = totals.device_bytes;
        self.linear_bytes = totals.linear_bytes;
        self.device_frags = totals.device_frags;
        self.tokens_returned = totals.tokens_returned;
        self.set_times(totals.elapsed, totals.receiving, totals.checking);
    }

    /// Sets the times and rates.
    pub fn set_times(&mut self, elapsed: Duration, receiving: Duration, checking: Duration) {
        self.seconds = elapsed.as_secs_f64();
        self.gbit_per_s = Rate::of(self.bytes, elapsed).gbit_per_s();
        self.recv_cpu_s_per_gb = per_gb(receiving, self.bytes);
        self.check_cpu_s_per_gb = per_gb(checking, self.bytes);
    }

    /// Returns the error of a run with a wrong result; `None` if the result is correct.
    pub fn complaint(&self) -> Option<String> {
        if let (Some(bad), first) = (self.bad_bytes.filter(|&bad| bad > 0), self.first_bad) {
            let place = first.map(|at| format!(", the first at byte {at} of its stream"));
            return Some(format!(
                "{bad} bytes are wrong{}",
                place.unwrap_or_default()
            ));
        }
        let unsent = self.sending.filter(|_| !self.interrupted);
        if let Some(complaint) = unsent.and_then(|sending| sending.complaint()) {
            return Some(complaint);
        }
        if let Some(complaint) = not_home(self.net_iovs_home, self.net_iovs_total) {
            return Some(complaint);
        }
        if self.tokens_returned != self.device_frags {
            let (returned, lent) = (self.tokens_returned, self.device_frags);
            return Some(format!("{lent} frags were lent and {returned} returned"));
        }
        None
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.direction {
            Direction::Tx => "sent",
            Direction::Rx | Direction::Both | Direction::Loopback => "received",
        };
        summary_row(f, name, self.bytes, &self.link, self.connections)?;
        if self.broken > 0 {
            row(f, "broken", format_args!("{}", connections(self.broken)))?;
        }
        self.verified_row(f)?;
        rate_row(f, self.gbit_per_s, self.seconds)?;
        if let Some(sending) = &self.sending {
            sending.rows(f)?;
        }
        if self.direction != Direction::Tx {
            self.receiving_rows(f)?;
        }
        write!(f, "{}{}", self.spread, self.undelivered)
    }
}

impl RunReport {
    fn verified_row(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.verified_bytes, self.bad_bytes) {
            (Some(good), Some(0)) if good == self.bytes => {
                let place = if self.direction == Direction::Tx {
                    "by the peer"
                } else {
                    "in device memory"
                };
                row(f, "verified", format_args!("every byte, {place}"))
            }
            (Some(good), Some(bad)) => row(f, "verified", format_args!("{good} good, {bad} BAD")),
            _ => row(f, "verified", format_args!("not requested")),
        }
    }

    fn receiving_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.verified_bytes.is_some(), self.is_written) {
            (true, true) => Some("to check and to write"),
            (true, false) => Some("to check"),
            (false, true) => Some("to write"),
            (false, false) => None,
        };
        let second = what.map(|what| (self.check_cpu_s_per_gb, what));
        let cpu = cpu_text(self.recv_cpu_s_per_gb, second);
        row(f, "receiver CPU", format_args!("{cpu}"))?;
        placed_row(f, self.device_bytes, self.linear_bytes)?;
        let (frags, back) = (self.device_frags, self.tokens_returned);
        row(f, "frags", format_args!("{frags} lent, {back} returned"))?;
        let (home, total, size) = (
            self.net_iovs_home,
            self.net_iovs_total,
            Size(self.niov_bytes),
        );
        let kind = &self.page_kind;
        row(
            f,
            "net_iovs",
            format_args!("{home} of {total} returned, {size} each, {kind}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> RunReport {
        RunReport {
            link: "tap:dm0".into(),
            bytes: 5 << 30,
            connections: 1,
            verified_bytes: Some(5 << 30),
            bad_bytes: Some(0),
            device_bytes: 5 << 30,
            device_frags: 10,
            tokens_returned: 10,
            net_iovs_total: 4096,
            net_iovs_home: 4096,
            ..RunReport::default()
        }
    }

    #[test]
    fn a_correct_run_has_no_error_and_a_short_table() {
        let report = good();
        assert_eq!(report.complaint(), None);
        let text = report.to_string();
        assert!(
            text.contains("5 GiB over tap:dm0, 1 connection\n"),
            "{text}"
        );
        assert!(text.contains("every byte, in device memory"), "{text}");
        assert!(
            text.lines().count() <= 10 && text.lines().all(|l| l.len() < 80),
            "{text}"
        );
    }

    #[test]
    fn wrong_bytes_and_missing_net_iovs_and_frags_are_errors() {
        let wrong = RunReport {
            bad_bytes: Some(3),
            first_bad: Some(77),
            ..good()
        };
        let text = wrong.complaint().unwrap();
        assert_eq!(
            text,
            "3 bytes are wrong, the first at byte 77 of its stream"
        );
        let lost = RunReport {
            net_iovs_home: 4090,
            ..good()
        };
        assert_eq!(
            lost.complaint().unwrap(),
            "6 of 4096 net_iovs were not returned"
        );
        let kept = RunReport {
            tokens_returned: 9,
            ..good()
        };
        assert_eq!(
            kept.complaint().unwrap(),
            "10 frags were lent and 9 returned"
        );
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let json = serde_json::to_value(good()).unwrap();
        for field in [
            "backend",
            "link",
            "bytes",
            "verified_bytes",
            "bad_bytes",
            "gbit_per_s",
            "recv_cpu_s_per_gb",
            "device_bytes",
            "linear_bytes",
            "device_frags",
            "tokens_returned",
            "net_iovs_total",
            "net_iovs_home",
            "drops",
            "discarded",
        ] {
            assert!(json.get(field).is_some(), "{field} is missing");
        }
    }
}
