//! JSON of a server, parsed in small steps, so that a caller can cancel.

use std::io::{self, Read};
use std::ops::ControlFlow;

use client::dial::GoOn;
use serde::Deserialize;
use serde::de::DeserializeSeed;

use devmem_tcp::text::printable;

/// Bytes between two questions whether to go on: less than a millisecond.
const STEP_BYTES: usize = 64 << 10;

/// Why JSON was not parsed.
#[derive(Debug)]
pub(super) enum JsonError {
    /// It is not what was expected.
    Invalid(serde_json::Error),
    /// The caller does not go on.
    Cancelled,
}

impl JsonError {
    /// Returns the mistake for a message, of which a server may have chosen a part.
    pub(super) fn text(error: &serde_json::Error) -> String {
        printable(&error.to_string())
    }
}

/// Parses all of `text`, while `go_on` says so. Nesting has a limit of 128 levels.
///
/// # Errors
/// It is not one value of the expected type; it was cancelled.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(
    text: &[u8],
    go_on: &mut GoOn<'_>,
) -> Result<T, JsonError> {
    parse_with(std::marker::PhantomData, text, go_on)
}

/// As [`parse`], by a seed.
///
/// # Errors
/// Those of [`parse`].
pub(super) fn parse_with<T>(
    seed: impl for<'de> DeserializeSeed<'de, Value = T>,
    text: &[u8],
    go_on: &mut GoOn<'_>,
) -> Result<T, JsonError> {
    let mut is_cancelled = false;
    let steps = Steps {
        rest: text,
        left: STEP_BYTES,
        go_on,
        is_cancelled: &mut is_cancelled,
    };
    let mut json = serde_json::Deserializer::from_reader(steps);
    let parsed = seed.deserialize(&mut json);
    let parsed = parsed.and_then(|value| json.end().map(|()| value));
    match parsed {
        Ok(value) => Ok(value),
        Err(_) if is_cancelled => Err(JsonError::Cancelled),
        Err(error) => Err(JsonError::Invalid(error)),
    }
}

/// Bytes in memory, whose reader asks whether to go on.
struct Steps<'a, 'b> {
    rest: &'a [u8],
    /// Bytes until the next question.
    left: usize,
    go_on: &'a mut GoOn<'b>,
    is_cancelled: &'a mut bool,
}

impl Read for Steps<'_, '_> {
    /// Called for each byte.
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(out)?;
        match self.left.checked_sub(read) {
            Some(left) => self.left = left,
            None => self.ask()?,
        }
        Ok(read)
    }
}

impl Steps<'_, '_> {
    #[cold]
    fn ask(&mut self) -> io::Result<()> {
        self.left = STEP_BYTES;
        match (self.go_on)() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                *self.is_cancelled = true;
                // Not `Interrupted`, after which a reader is asked again.
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn always() -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn a_value_is_parsed_and_nothing_may_follow_it() {
        assert_eq!(parse::<Vec<u8>>(b" [1,2] \n", &mut always).unwrap(), [1, 2]);
        for text in [&b""[..], b"[1,2] x", b"[1,", b"{}"] {
            let refused = parse::<Vec<u8>>(text, &mut always);
            assert!(matches!(refused, Err(JsonError::Invalid(_))), "{text:?}");
        }
    }

    #[test]
    fn parsing_is_cancelled_within_a_step_wherever_it_is() {
        let long = "x".repeat(10 * STEP_BYTES);
        let blanks = " ".repeat(10 * STEP_BYTES);
        for text in [
            format!("[{}1]", "1,".repeat(5 * STEP_BYTES)),
            format!("[\"{long}\"]"),
            format!("{{\"{long}\":1}}"),
            format!("{blanks}[]"),
        ] {
            let mut asked = 0;
            let mut at_third = || {
                asked += 1;
                match asked {
                    3 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            };
            let cancelled = parse::<serde::de::IgnoredAny>(text.as_bytes(), &mut at_third);
            assert!(
                matches!(cancelled, Err(JsonError::Cancelled)),
                "{cancelled:?}"
            );
            assert_eq!(asked, 3, "of 10");
        }
    }
}
