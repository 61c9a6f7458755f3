//! The kernel log of a guest.
//!
//! Input: one byte, the requested number of last lines; then the log.

use devmem_uapi::text::Printable;

use super::klog::{complaints, tail};

/// Checks that complaints are of lines of the log, as a terminal may have them, limited in number and without duplicates, and that the
/// tail is the end of it.
pub fn run(data: &[u8]) {
    let Some((&lines, log)) = data.split_first() else {
        return;
    };
    let log = String::from_utf8_lossy(log);
    let found = complaints(&log);
    assert!(found.len() <= 64);
    for (at, complaint) in found.iter().enumerate() {
        let is_of = |line: &str| Printable(line).to_string().contains(complaint.as_str());
        assert!(log.lines().any(is_of), "{complaint:?}");
        assert!(!found[..at].contains(complaint), "{complaint:?} twice");
    }
    let end = tail(&log, lines.into());
    assert!(end.lines().count() <= usize::from(lines));
    assert!(end.len() <= log.len());
}
