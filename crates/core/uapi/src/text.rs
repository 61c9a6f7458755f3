//! Text from outside, made safe to print: of peers, servers, the kernel, files and their names.
//!
//! A terminal obeys control characters: text with them can move the cursor, change the title, fill the clipboard or send input.
//! Format characters reorder the text around them, or are not seen. Both are replaced by their escapes as in a Rust string literal, so that a
//! reader sees what was there. Errors put a remedy on a line of its own: text from outside must not be able to begin one.

use std::fmt::{self, Display, Write};

/// Writes a value with all characters escaped that a terminal obeys or does not show, line ends among them.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escaping = Escaping {
            out: f,
            keeps_lines: false,
        };
        write!(escaping, "{}", self.0)
    }
}

/// As [`Printable`], of a text that has lines and columns of this program: line ends and tabs stay.
#[derive(Clone, Copy, Debug)]
pub struct PrintableLines<T>(pub T);

impl<T: Display> Display for PrintableLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escaping = Escaping {
            out: f,
            keeps_lines: true,
        };
        write!(escaping, "{}", self.0)
    }
}

/// Returns a text from outside for a message, with the characters escaped that [`Printable`] escapes. Of a long text, the beginning.
pub fn printable(text: &str) -> String {
    /// Longest text of somebody else in one of our messages: two lines of a terminal.
    const MOST_CHARS: usize = 200;
    let mut chars = text.chars();
    let mut out: String = chars.by_ref().take(MOST_CHARS).collect();
    if chars.next().is_some() {
        out.push_str("...");
    }
    match out.contains(is_unprintable) {
        true => Printable(out).to_string(),
        false => out,
    }
}

/// Returns a text of this program, which may have some from outside, as [`PrintableLines`] writes it.
pub fn printable_lines(text: String) -> String {
    match text.contains(|c| is_unprintable(c) && c != '\n') {
        true => PrintableLines(text).to_string(),
        false => text,
    }
}

/// Returns whether a terminal obeys a character or does not show it: control characters (C0, DEL, C1), line and paragraph
/// separators, and the format characters of Unicode (general category Cf), those that change the direction of text among them.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes what is written.
struct Escaping<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    keeps_lines: bool,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let is_escaped =
            |c: char| is_unprintable(c) && !(self.keeps_lines && matches!(c, '\n' | '\t'));
        while let Some(at) = rest.find(is_escaped) {
            let (plain, from) = rest.split_at(at);
            self.out.write_str(plain)?;
            let mut chars = from.chars();
            match chars.next() {
                Some(c @ ('\n' | '\r' | '\t')) => write!(self.out, "{}", c.escape_default())?,
                Some(c) => write!(self.out, "{}", c.escape_unicode())?,
                None => {}
            }
            rest = chars.as_str();
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_stays() {
        for (text, shown) in [
            ("plain, with spaces", "plain, with spaces"),
            (
                "Grüße \"quoted\" \\ 模型 हिन्दी",
                "Grüße \"quoted\" \\ 模型 हिन्दी",
            ),
            ("\x1b[2J\x1b]0;title\x07", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("a\r\nb\tc\0d\x7f", "a\\r\\nb\\tc\\u{0}d\\u{7f}"),
            // CSI of 8 bits, and the control characters around it.
            ("\u{80}\u{9b}31m\u{9f}", "\\u{80}\\u{9b}31m\\u{9f}"),
            (
                "abc\u{202e}cba\u{2066}x\u{2069}",
                "abc\\u{202e}cba\\u{2066}x\\u{2069}",
            ),
            (
                "\u{200b}\u{feff}\u{2028}\u{e0041}",
                "\\u{200b}\\u{feff}\\u{2028}\\u{e0041}",
            ),
        ] {
            assert_eq!(Printable(text).to_string(), shown, "{text:?}");
            assert_eq!(printable(text), shown, "{text:?}");
        }
        assert_eq!(PrintableLines("a\n\tb\x1b").to_string(), "a\n\tb\\u{1b}");
    }

    #[test]
    fn all_of_the_control_and_direction_characters_are_unprintable() {
        let controls = ('\0'..' ').chain('\u{7f}'..='\u{9f}');
        let directions = ['\u{200e}', '\u{200f}', '\u{61c}'];
        let embeddings = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in controls.chain(directions).chain(embeddings) {
            assert!(is_unprintable(c), "{c:?}");
        }
        assert!(!(' '..='~').any(is_unprintable));
    }

    #[test]
    fn of_a_long_text_the_beginning_is_shown() {
        let shown = printable(&"x".repeat(10_000));
        assert_eq!(shown, format!("{}...", "x".repeat(200)));
    }
}
