//! The book's page of drop reasons explains every reason that exists, and no other.

use std::collections::BTreeSet;

/// The page, from the folder of this package. A published package comes without the book.
const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/src/reference/drops.md"
);

/// Returns the names in the first column of the page's tables.
fn explained(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" |").next());
    cells
        .flat_map(|cell| cell.trim_end_matches('`').split("`, `"))
        .collect()
}

#[test]
fn the_book_explains_every_drop_reason_and_no_other() {
    let Ok(page) = std::fs::read_to_string(PAGE) else {
        println!("SKIP the book is not beside this package");
        return;
    };
    let nic = nic::DropReason::ALL.iter().map(|reason| reason.name());
    let stack = stack::DropReason::ALL.iter().map(|reason| reason.name());
    let tcp = tcp::SegmentDrop::ALL.iter().map(|reason| reason.name());
    let existing: BTreeSet<_> = nic.chain(stack).chain(tcp).collect();
    assert_eq!(explained(&page), existing);
}

#[test]
fn a_cell_may_name_several_reasons() {
    let names = explained("| `rx_runt`, `rx_vlan` | x |\n| `no_route` | `y` |\n|---|---|\n");
    assert_eq!(names, BTreeSet::from(["no_route", "rx_runt", "rx_vlan"]));
}
