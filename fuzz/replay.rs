//! Replays kept inputs of a fuzz target under plain `cargo test`.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

/// Runs a target's body on every file of `fuzz/regressions/TARGET`.
///
/// # Panics
///
/// If the body panics on one (its name is printed), or if there is none.
pub fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/regressions")
        .join(target);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("a folder can be listed").path())
        .collect();
    paths.sort();
    assert!(
        !paths.is_empty(),
        "no input is kept for {target}: this test would check nothing"
    );
    for path in paths {
        let input = fs::read(&path).expect("a kept input can be read");
        if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| body(&input))) {
            eprintln!("{target} fails on {}", path.display());
            panic::resume_unwind(cause);
        }
    }
}
