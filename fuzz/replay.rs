//! Replays kept inputs of a fuzz target under plain `cargo test`.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// Returns the folder of the kept inputs, in the root above this package.
///
/// # Panics
///
/// If there is none.
pub fn kept_inputs() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = package
        .ancestors()
        .map(|folder| folder.join("fuzz/regressions"));
    folders
        .find(|folder| folder.is_dir())
        .expect("a folder above this package has fuzz/regressions")
}

/// Runs a target's body on every file of `fuzz/regressions/TARGET`.
///
/// # Panics
///
/// If the body panics on one (its name is printed), or if there is none.
pub fn replay(target: &str, body: fn(&[u8])) {
    let folder = kept_inputs().join(target);
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
