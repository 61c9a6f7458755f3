//! Messages for people.

use devmem_tcp::text::PrintableLines;

/// Says why something failed: the interface has no room for it. The text may have bytes of a server, which are escaped.
pub(crate) fn failure(what: &str, cause: &dyn std::fmt::Display) {
    eprintln!(
        "devmem streamer: {}: {}",
        PrintableLines(what),
        PrintableLines(cause)
    );
}
