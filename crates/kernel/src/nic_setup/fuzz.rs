//! Bodies of fuzz targets: a state file, and an RSS table from the kernel or from a state file.

use super::model::Model;
use super::restore::take_all_back;
use super::state::Record;
use super::undo::table_words;

/// Parses `bytes` as a state file, describes its changes, and restores a model of a NIC from it.
///
/// # Panics
///
/// If a record changes when it is written and read again, or the report misses a change.
pub(crate) fn fuzz_state_file(bytes: &[u8]) {
    let Ok(record) = Record::parse(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&record).expect("a record can be written");
    assert_eq!(Record::parse(&written).ok().as_ref(), Some(&record));
    for change in &record.undo {
        assert!(!change.command(&record.interface).is_empty());
    }
    let (report, kept) = take_all_back(&mut Model::new(), &record.undo);
    assert!(kept.len() <= record.undo.len());
    let told = report.restored.len() + report.left.len() + report.failed.len();
    let changes = record.undo.iter().filter(|undo| undo.is_change()).count();
    assert!(
        told >= changes.min(1),
        "the report misses some of {changes} changes: {report}"
    );
}

/// Writes the table as arguments of ethtool.
///
/// # Panics
///
/// If the text is longer than 16 bytes per entry of the table and per possible queue.
pub(crate) fn fuzz_table(table: &[u32]) {
    // At most one number and a space per entry, or per queue that a NIC can have.
    let most = 16 * (table.len() + 4096);
    assert!(table_words(table).len() <= most);
}
