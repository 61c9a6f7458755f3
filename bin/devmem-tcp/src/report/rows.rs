//! Rows and figures that reports have in common.

use std::fmt;
use std::time::Duration;

use tool::rate::Rate;
use tool::size::Size;

/// Returns the name of what has computed a checksum: a device, or else the CPU.
pub fn checksum_on(device: Option<String>) -> String {
    device.unwrap_or_else(|| "cpu".to_owned())
}

/// Fewest bytes of which the CPU time per byte says anything: that of fewer is the time of beginning and ending a run.
const FEWEST_BYTES: u64 = 1_000_000;

/// Returns CPU time in seconds per 10^9 bytes; `None` for too few bytes.
pub(super) fn per_gb(time: Duration, bytes: u64) -> Option<f64> {
    (bytes >= FEWEST_BYTES).then(|| time.as_secs_f64() / (bytes as f64 / 1e9))
}

/// Returns the text of such a figure, and of a second one with what it is for.
pub(super) fn cpu_text(cost: Option<f64>, second: Option<(Option<f64>, &str)>) -> String {
    match (cost, second) {
        (Some(cost), Some((Some(second), what))) => {
            format!("{cost:.3} s/GB, and {second:.3} s/GB {what}")
        }
        (Some(cost), _) => format!("{cost:.3} s/GB"),
        (None, _) => "no figure for less than 1 MB".to_owned(),
    }
}

pub(super) fn row(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: fmt::Arguments<'_>,
) -> fmt::Result {
    writeln!(f, "{name:>13}  {value}")
}

/// Writes what was done to how many bytes, over which link and how many connections.
pub(super) fn summary_row(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    bytes: u64,
    link: &str,
    count: u64,
) -> fmt::Result {
    let (size, connections) = (Size(bytes), connections(count));
    row(f, name, format_args!("{size} over {link}, {connections}"))
}

/// Returns a number of connections in words.
pub fn connections(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} connection{plural}")
}

pub(super) fn rate_row(f: &mut fmt::Formatter<'_>, gbit_per_s: f64, seconds: f64) -> fmt::Result {
    let rate = format_args!("{} for {seconds:.2} s", Rate(gbit_per_s * 1e9));
    row(f, "rate", rate)
}

/// Writes where the received bytes are.
pub(super) fn placed_row(
    f: &mut fmt::Formatter<'_>,
    device_bytes: u64,
    linear_bytes: u64,
) -> fmt::Result {
    let share = 100.0 * device_bytes as f64 / (device_bytes + linear_bytes).max(1) as f64;
    row(
        f,
        "placed",
        format_args!("{share:.4} % in device memory, {linear_bytes} bytes in host memory"),
    )
}

/// Returns the error of net_iovs that were not returned.
pub(super) fn not_home(home: u64, total: u64) -> Option<String> {
    let missing = total - home;
    (missing > 0).then(|| format!("{missing} of {total} net_iovs were not returned"))
}
