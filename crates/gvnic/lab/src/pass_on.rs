//! Output of a guest's command on this process's stdout and stderr.
//!
//! A guest is not trusted: a terminal gets no control characters of it, only their escaped form. A pipe or a file gets
//! every byte as it is.

use std::io::{self, IsTerminal, Write};

use devmem_uapi::text::PrintableLines;

/// Destination of the command's output.
pub trait Output: Send {
    /// Takes bytes of standard output.
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Takes bytes of standard error.
    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Output to stdout and stderr of this process.
#[derive(Debug, Default)]
pub struct PassOn {
    stdout: Escape,
    stderr: Escape,
}

impl Output for PassOn {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        self.stdout.write(&mut stdout, is_terminal, bytes)?;
        stdout.flush()
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stderr = io::stderr().lock();
        let is_terminal = stderr.is_terminal();
        self.stderr.write(&mut stderr, is_terminal, bytes)
    }
}

/// Bytes of a stream that is shown in a terminal.
#[derive(Debug, Default)]
struct Escape {
    /// The beginning of a character whose other bytes have not arrived.
    begun: Vec<u8>,
}

impl Escape {
    fn write(&mut self, to: &mut impl Write, is_terminal: bool, bytes: &[u8]) -> io::Result<()> {
        match is_terminal {
            true => to.write_all(self.shown(bytes).as_bytes()),
            false => to.write_all(bytes),
        }
    }

    /// Returns the next bytes of the stream as they are shown.
    fn shown(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.begun);
        let mut text = String::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (valid, after, invalid) = match std::str::from_utf8(rest) {
                Ok(valid) => (valid, &rest[rest.len()..], &rest[..0]),
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    let Some(invalid) = error.error_len() else {
                        self.begun = after.to_vec();
                        push_printable(&mut text, &String::from_utf8_lossy(valid));
                        break;
                    };
                    let (invalid, after) = after.split_at(invalid);
                    (
                        std::str::from_utf8(valid).unwrap_or_default(),
                        after,
                        invalid,
                    )
                }
            };
            push_printable(&mut text, valid);
            invalid
                .iter()
                .for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
            rest = after;
        }
        text
    }
}

/// Adds text as a terminal may have it. A command may return its carriage, as progress bars do, unlike a message of this program.
fn push_printable(shown: &mut String, text: &str) {
    for (at, part) in text.split('\r').enumerate() {
        if at > 0 {
            shown.push('\r');
        }
        shown.push_str(&PrintableLines(part).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters_and_a_pipe_gets_every_byte() {
        let bytes =
            b"a\x1b[2J\x1b]0;title\x07 \xc2\x9b31m \x9b \xe2\x80\xae \xf0\x9f\xa6\x80\r\n\x7f";
        let shown =
            "a\\u{1b}[2J\\u{1b}]0;title\\u{7} \\u{9b}31m \\x9b \\u{202e} \u{1f980}\r\n\\u{7f}";
        let passed = |is_terminal, size| {
            let (mut escape, mut out) = (Escape::default(), Vec::new());
            for piece in bytes.chunks(size) {
                escape.write(&mut out, is_terminal, piece).unwrap();
            }
            out
        };
        // However the bytes of a character are split over frames.
        for size in 1..=bytes.len() {
            assert_eq!(String::from_utf8(passed(true, size)).unwrap(), shown);
            assert_eq!(passed(false, size), bytes);
        }
    }

    #[test]
    fn the_bytes_that_wait_for_the_end_of_a_character_are_at_most_three() {
        let mut escape = Escape::default();
        assert_eq!(escape.shown(&[0xf0; 1000]), "\\xf0".repeat(999));
        assert_eq!(escape.shown(&[0x9f, 0xa6]), "");
        assert_eq!(escape.begun.len(), 3);
        assert_eq!(escape.shown(b"x"), "\\xf0\\x9f\\xa6x");
    }
}
