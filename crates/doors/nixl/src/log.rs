//! Lines for people, on standard error, where NIXL's own log is.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use devmem_tcp::text::Printable;

/// Lines in a time, beyond which they are left out: a peer may cause as many as it likes.
const LINES: u32 = 100;
const IN: Duration = Duration::from_secs(1);

/// Lines since a time.
struct Written {
    since: Option<Instant>,
    lines: u32,
}

static WRITTEN: Mutex<Written> = Mutex::new(Written {
    since: None,
    lines: 0,
});

/// Says why something failed. What a terminal would obey is escaped: names in `text` may have come from a peer.
pub(crate) fn warn(text: &str) {
    let text = Printable(text);
    // Another thread writes a line just now; or did, before this process was made by fork.
    let Ok(mut written) = WRITTEN.try_lock() else {
        return eprintln!("devmem-nixl: {text}");
    };
    if written.since.is_none_or(|since| since.elapsed() > IN) {
        *written = Written {
            since: Some(Instant::now()),
            lines: 0,
        };
    }
    written.lines += 1;
    match written.lines {
        ..=LINES => eprintln!("devmem-nixl: {text}"),
        line if line == LINES + 1 => {
            eprintln!("devmem-nixl: {text}; further lines in this second are left out");
        }
        _ => {}
    }
}

/// Says what was chosen, if NIXL's log has such lines, too (`NIXL_LOG_LEVEL`).
pub(crate) fn info(text: &str) {
    let level = std::env::var("NIXL_LOG_LEVEL").unwrap_or_default();
    if ["INFO", "DEBUG", "TRACE"].contains(&level.to_ascii_uppercase().as_str()) {
        eprintln!("devmem-nixl: {}", Printable(text));
    }
}
