//! A program for a guest of the lab: its loader, and the list of its libraries by the loader.
//!
//! Input: the file; the same bytes are then parsed as the loader's list.

use super::elf::{interpreter, is_dynamic, parse_list};

/// Checks that a loader's path is text of the file, and a library's path is absolute and text of the list.
pub fn run(data: &[u8]) {
    if let Some(loader) = interpreter(data) {
        let text = loader.to_str().expect("it is UTF-8");
        let bytes = text.as_bytes();
        let is_in_file = bytes.is_empty() || data.windows(bytes.len()).any(|part| part == bytes);
        assert!(is_in_file, "{text:?}");
    }
    let _ = is_dynamic(data);
    let text = String::from_utf8_lossy(data);
    for library in parse_list(&text) {
        assert!(library.is_absolute());
        assert!(text.contains(library.to_str().expect("it is UTF-8")));
    }
}
