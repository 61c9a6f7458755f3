//! Text for people that fits the width of their terminal.

use std::env;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

use crate::output::tell;

/// Width of the names in the first column of a table, with the gap after them.
pub const NAMES_WIDTH: usize = 15;
/// Widths below this are not tried: no word would fit.
const MIN_WIDTH: usize = 24;

/// Returns the width in columns for text on `fd`: the variable `COLUMNS`, else the width of the terminal; `None` if there is
/// neither, for example in a pipe.
pub fn width(fd: impl AsFd) -> Option<usize> {
    let columns = env::var("COLUMNS").ok();
    let wanted = columns.and_then(|text| text.parse().ok());
    let terminal = || tcgetwinsize(fd).ok().map(|size| usize::from(size.ws_col));
    let width = wanted.or_else(terminal).filter(|width| *width > 0);
    width.map(|width| width.max(MIN_WIDTH))
}

/// Writes a table to stderr. Lines that are too long for the terminal continue on the next line, below the second column.
pub fn tell_table(table: impl std::fmt::Display) {
    let table = table.to_string();
    tell(match width(std::io::stderr()) {
        Some(width) => fold(&table, width, NAMES_WIDTH),
        None => table,
    });
}

/// Breaks the lines of `text` that are longer than `width` characters, between words. The continued lines are indented. A word
/// longer than a line, such as a path, is not broken, so that it can be copied.
pub fn fold(text: &str, width: usize, indent: usize) -> String {
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_end_matches('\n').chars().count() <= width {
            folded.push_str(line);
        } else {
            fold_line(line, width, indent, &mut folded);
        }
    }
    folded
}

/// Appends `line`, which is too long.
fn fold_line(line: &str, width: usize, indent: usize, folded: &mut String) {
    let mut column = 0;
    let mut spaces = 0;
    let mut has_word = false;
    for piece in line.trim_end_matches('\n').split(' ') {
        let word = piece.chars().count();
        if word > 0 {
            if has_word && column + spaces + word > width {
                folded.push('\n');
                (column, spaces) = (0, indent);
            }
            folded.extend(std::iter::repeat_n(' ', spaces));
            folded.push_str(piece);
            column += spaces + word;
            (spaces, has_word) = (0, true);
        }
        spaces += 1;
    }
    if line.ends_with('\n') {
        folded.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_keep_their_columns() {
        let table = "     received  5 GiB\n         rate  35.1 Gbit/s\n";
        assert_eq!(fold(table, 30, NAMES_WIDTH), table);
    }

    #[test]
    fn a_long_line_continues_below_the_second_column() {
        let row = "     received  5 GiB over tap:dm0, 1 connection\n";
        let folded = fold(row, 40, NAMES_WIDTH);
        let expected = "     received  5 GiB over tap:dm0, 1\n               connection\n";
        assert_eq!(folded, expected);
        for width in MIN_WIDTH..50 {
            let folded = fold(row, width, NAMES_WIDTH);
            let longest = folded.lines().map(str::len).max();
            assert!(longest <= Some(width.max(25)), "{width}: {folded}");
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&folded), words(row), "no word is lost");
        }
    }

    #[test]
    fn a_word_longer_than_the_line_is_not_broken() {
        let text = "see /a/very/long/path/of/a/file for more";
        assert_eq!(
            fold(text, 24, 2),
            "see\n  /a/very/long/path/of/a/file\n  for more"
        );
    }
}
