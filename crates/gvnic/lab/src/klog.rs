//! Checks of the guest's kernel log: a warning of the kernel fails the run, even if the command succeeded.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use devmem_uapi::text::Printable;

/// Markers of kernel warnings and errors. `Call Trace:` follows most of them, but also appears alone.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "Call Trace:",
    "UBSAN:",
    "KASAN:",
    "refcount_t:",
    "INFO: task ",
    "detected stall",
    "soft lockup",
    "NETDEV WATCHDOG",
    "page_pool_release_retry",
    "Unable to handle kernel",
];

/// Maximum number of complaints that are kept, because a guest may log without end.
const MAX_COMPLAINTS: usize = 64;

/// Maximum bytes of a log that are checked; a longer log fails the run.
const MAX_LOG_BYTES: u64 = 64 << 20;

/// Reads the log of a guest; returns an empty text if that fails. A complaint is appended to a log that is too long.
pub fn read(path: &Path) -> String {
    read_at_most(path, MAX_LOG_BYTES).unwrap_or_default()
}

fn read_at_most(path: &Path, most: u64) -> io::Result<String> {
    let file = File::open(path)?;
    let is_cut = file.metadata()?.len() > most;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let mut log = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        log.push_str(&format!(
            "\n[0.0] BUG: the kernel's log is longer than {most} bytes\n"
        ));
    }
    Ok(log)
}

/// Returns the lines with warnings and errors, without duplicates, in order.
pub fn complaints(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in log.lines() {
        let Some(text) = message(line) else { continue };
        let complains = COMPLAINTS.iter().any(|mark| text.contains(mark));
        let shown = Printable(text).to_string();
        if complains && !found.contains(&shown) && found.len() < MAX_COMPLAINTS {
            found.push(shown);
        }
    }
    found
}

/// Returns the text of a kernel line after its timestamp, `[    1.234567] text`; `None` for other lines.
fn message(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches('\u{0}').trim().strip_prefix('[')?;
    let (time, text) = rest.split_once(']')?;
    let is_time = |c: char| c.is_ascii_digit() || c == '.' || c == ' ' || c == 'T' || c == 'C';
    (!time.is_empty() && time.chars().all(is_time)).then(|| text.trim())
}

/// Returns the reason that the log has for a guest that ended before its last frame: the last message of process 1, which
/// writes to the same console, or the kernel's panic.
pub fn last_message(log: &str) -> Option<String> {
    let mut lines = log.lines().rev();
    lines.find_map(|line| {
        let of_init = line.trim().strip_prefix("devmem-tcp: ");
        let of_kernel = message(line).filter(|text| text.contains("Kernel panic"));
        of_init
            .or(of_kernel)
            .map(|said| Printable(said).to_string())
    })
}

/// Returns the last `count` lines, for error messages.
pub fn tail(log: &str, count: usize) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_found_once_and_harmless_lines_are_not() {
        let log = "\
[    0.000000] Linux version 7.3.4\r
[    1.000000] clocksource: Watchdog remote CPU 1 read timed out\r
[    2.500000] WARNING: CPU: 0 PID: 1 at net/core/page_pool.c:1 x+0x1/0x2\r
[    2.500001] Call Trace:\r
[    2.600000] WARNING: CPU: 0 PID: 1 at net/core/page_pool.c:1 x+0x1/0x2\r
WARNING: this is what a program printed\r
";
        let found = complaints(log);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("WARNING: CPU: 0"));
    }

    #[test]
    fn the_last_message_of_process_1_is_found_or_else_the_kernels_panic() {
        let init = "devmem-tcp: the control port does not appear\r\n[ 21.0] reboot: Power down\r\n";
        let found = last_message(&format!("[ 1.0] Linux\n{init}"));
        assert_eq!(found.unwrap(), "the control port does not appear");
        let panic = last_message("[ 1.0] Kernel panic - not syncing: no init\n[ 1.1] ---\n");
        assert_eq!(panic.unwrap(), "Kernel panic - not syncing: no init");
        assert_eq!(last_message("[ 1.0] Linux\nsome text\n"), None);
    }

    #[test]
    fn a_log_that_is_too_long_is_truncated_and_a_complaint() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        std::fs::write(&path, "[ 1.0] all is well\n".repeat(100)).unwrap();
        let whole = read_at_most(&path, 10_000).unwrap();
        let cut = read_at_most(&path, 1000).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((whole.len(), complaints(&whole).len()), (1900, 0));
        assert!(cut.len() < 1100, "{} bytes", cut.len());
        let complaint = "BUG: the kernel's log is longer than 1000 bytes";
        assert_eq!(complaints(&cut), [complaint]);
        assert_eq!(read(&path), "");
    }

    #[test]
    fn the_number_of_complaints_is_limited() {
        let log: String = (0..1000).map(|i| format!("[ {i}.0] BUG: {i}\n")).collect();
        assert_eq!(complaints(&log).len(), MAX_COMPLAINTS);
        assert_eq!(tail(&log, 2), "[ 998.0] BUG: 998\n[ 999.0] BUG: 999");
    }
}
