//! What fuzzing does with the bytes of a state file, and with an RSS table that a kernel or a file names.

use super::model::Model;
use super::restore::take_all_back;
use super::state::Record;
use super::undo::table_words;

/// Reads `bytes` as a state file, describes what it says, and restores a model of a NIC from it.
///
/// # Panics
///
/// If a record that was read is another one after it was written and read again, or a change has no outcome.
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
        "nothing is said of {changes} changes: {report}"
    );
}

/// Writes the table as arguments of ethtool.
///
/// # Panics
///
/// If the words are many times as long as the table and the list of a NIC's queues.
pub(crate) fn fuzz_table(table: &[u32]) {
    // A number, a space, and no list longer than the queues that a NIC can have.
    let most = 16 * (table.len() + 4096);
    assert!(table_words(table).len() <= most);
}
