//! The pattern of `-v`.

use std::io::Write;

use tool::output::{Failure, say};

/// Number of wrong bytes after which the check ends.
const WRONG_BYTES_MAX: u64 = 20;

/// Checks that the bytes 1 to N-1 and newline repeat, as `yes $(echo -e \\x01...)` prints them.
#[derive(Debug)]
pub struct Validator {
    /// N, up to 256.
    period: u16,
    /// Position of the next byte in the pattern; 0 is the newline.
    next: u16,
    wrong: u64,
}

impl Validator {
    pub fn new(period: u16) -> Self {
        Self {
            period,
            next: 1,
            wrong: 0,
        }
    }

    /// Checks the next bytes of the stream and prints the result to `stdout`.
    ///
    /// # Errors
    ///
    /// Too many bytes are wrong, or `stdout` is closed.
    pub fn check(&mut self, bytes: &[u8], stdout: &mut impl Write) -> Result<(), Failure> {
        for (index, &actual) in bytes.iter().enumerate() {
            let expected = match u8::try_from(self.next) {
                Ok(0) | Err(_) => b'\n',
                Ok(byte) => byte,
            };
            if actual != expected {
                say!("Failed validation: expected={expected}, actual={actual}, index={index}");
                self.wrong += 1;
                if self.wrong > WRONG_BYTES_MAX {
                    return Err(Failure::failed("validation failed"));
                }
            }
            self.next = (self.next + 1) % self.period;
        }
        writeln!(stdout, "Validated buffer")?;
        Ok(())
    }

    /// Returns the result for the whole stream.
    ///
    /// # Errors
    ///
    /// A byte was wrong.
    pub fn finish(&self) -> Result<(), Failure> {
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::failed(format!(
                "validation failed: {wrong} bytes are wrong"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(period: u16, pieces: &[&[u8]]) -> Result<String, String> {
        let mut validator = Validator::new(period);
        let mut stdout = Vec::new();
        for piece in pieces {
            validator
                .check(piece, &mut stdout)
                .map_err(|failure| failure.to_string())?;
        }
        validator.finish().map_err(|failure| failure.to_string())?;
        Ok(String::from_utf8(stdout).unwrap())
    }

    #[test]
    fn the_pattern_continues_across_pieces() {
        let said = check(
            7,
            &[b"\x01\x02\x03\x04\x05\x06\n\x01", b"\x02\x03", b"\x04"],
        );
        assert_eq!(said.unwrap(), "Validated buffer\n".repeat(3));
        assert!(check(2, &[b"\x01\n\x01\n"]).is_ok());
    }

    #[test]
    fn the_longest_pattern_has_every_byte_except_nul() {
        let all: Vec<u8> = (1..=255).chain([b'\n', 1, 2]).collect();
        assert!(check(256, &[&all]).is_ok());
    }

    #[test]
    fn one_wrong_byte_is_a_failure_and_too_many_end_the_check() {
        let one = check(7, &[b"\x01\x02\x03\x04\x05\x06\x00"]).unwrap_err();
        assert_eq!(one, "validation failed: 1 bytes are wrong");
        let many = check(7, &[&[9; 100], b""]).unwrap_err();
        assert_eq!(many, "validation failed");
    }
}
