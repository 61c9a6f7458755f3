//! `cargo xtask names`: committed text holds nothing of the machine it was written on, and no mark of
//! unfinished work.

use crate::finding::Finding;
use crate::workspace::Workspace;

/// Path prefixes that exist only on the writer's machine. Each is cut in two here so that this file is not
/// its own finding.
const PLACES: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/tmp/", "wt/"),
];

/// Words that say the work is not done: it goes to the issue list, not into the tree.
const MARKS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
];

/// Macros that stand for code that was not written, or was left in from debugging. Rust files only.
const STUBS: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
    concat!("db", "g!"),
];

/// Files whose text is not ours.
const NOT_OURS: &[&str] = &["LICENSE-APACHE", "Cargo.lock", "fuzz/Cargo.lock"];

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let ours = workspace
        .texts
        .iter()
        .filter(|(path, _)| !NOT_OURS.contains(&path.as_str()));
    ours.flat_map(|(path, text)| check_text(path, text))
        .collect()
}

fn check_text(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut report = |what: String| findings.push(Finding::new(path, index + 1, what));
        for place in PLACES.iter().filter(|place| says_path(line, place)) {
            report(format!("names a place of one machine: {place}"));
        }
        for mark in MARKS.iter().filter(|mark| says_word(line, mark)) {
            report(format!("marks unfinished work: {mark}"));
        }
        if path.ends_with(".rs") {
            for stub in STUBS.iter().filter(|stub| says_word(line, stub)) {
                report(format!("stands for code that is not there: {stub}"));
            }
        }
    }
    findings
}

/// Tells whether a line has the path at the start of a path (`https://host/home/x` does not).
fn says_path(line: &str, place: &str) -> bool {
    let part_of_longer = |before: char| before.is_alphanumeric() || "._-~$})".contains(before);
    line.match_indices(place)
        .any(|(at, _)| !line[..at].ends_with(part_of_longer))
}

/// Tells whether a line has the word as a whole word.
fn says_word(line: &str, word: &str) -> bool {
    let of_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(of_word) && !line[at + word.len()..].starts_with(of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_and_each_mark_is_found_at_its_line() {
        for place in PLACES {
            let findings = check_text("README.md", &format!("fine\nsee {place}x\n"));
            assert_eq!(findings.len(), 1, "{place}");
            assert_eq!(findings[0].line, 2);
        }
        for mark in MARKS {
            assert_eq!(
                check_text("README.md", &format!("{mark}: later\n")).len(),
                1,
                "{mark}"
            );
        }
    }

    #[test]
    fn a_stub_is_found_in_rust_only() {
        for stub in STUBS {
            assert_eq!(
                check_text("crates/tcp/src/lib.rs", &format!("    {stub}()\n")).len(),
                1,
                "{stub}"
            );
            assert_eq!(check_text("README.md", &format!("no {stub} here\n")), []);
        }
    }

    #[test]
    fn part_of_a_word_or_of_a_longer_path_is_fine() {
        let text = format!("https://example.org{}a\nS{}S\n", PLACES[0], MARKS[2]);
        assert_eq!(check_text("README.md", &text), []);
    }

    #[test]
    fn files_that_are_not_ours_are_left_out() {
        let mut workspace = Workspace::default();
        workspace.add("LICENSE-APACHE".to_owned(), MARKS[0].to_owned());
        assert_eq!(check(&workspace), []);
        workspace.add("CHANGELOG.md".to_owned(), MARKS[0].to_owned());
        assert_eq!(check(&workspace).len(), 1);
    }
}
