//! JSON of a server, parsed in small steps, so that a caller can cancel.

use std::io::{self, Read};
use std::ops::ControlFlow;

use client::dial::CancelCheck;
use serde::Deserialize;
use serde::de::DeserializeSeed;

use devmem_tcp::text::printable;

/// Bytes between two calls of a [`CancelCheck`]: less than a millisecond.
const STEP_BYTES: usize = 64 << 10;

/// Why JSON was not parsed.
#[derive(Debug)]
pub(super) enum JsonError {
    /// It is not what was expected.
    Invalid(serde_json::Error),
    /// The caller has cancelled it.
    Cancelled,
}

impl JsonError {
    /// Returns the mistake for a message, of which a server may have chosen a part.
    pub(super) fn text(error: &serde_json::Error) -> String {
        printable(&error.to_string())
    }
}

/// Parses all of `text`, unless `cancel_check` cancels that. Nesting has a limit of 128 levels.
///
/// # Errors
/// It is not one value of the expected type; it was cancelled.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(
    text: &[u8],
    cancel_check: &mut CancelCheck<'_>,
) -> Result<T, JsonError> {
    parse_with(std::marker::PhantomData, text, cancel_check)
}

/// As [`parse`], by a seed.
///
/// # Errors
/// Those of [`parse`].
pub(super) fn parse_with<T>(
    seed: impl for<'de> DeserializeSeed<'de, Value = T>,
    text: &[u8],
    cancel_check: &mut CancelCheck<'_>,
) -> Result<T, JsonError> {
    let mut is_cancelled = false;
    let reader = CancellableReader {
        rest: text,
        left: STEP_BYTES,
        cancel_check,
        is_cancelled: &mut is_cancelled,
    };
    let mut json = serde_json::Deserializer::from_reader(reader);
    let parsed = seed.deserialize(&mut json);
    let parsed = parsed.and_then(|value| json.end().map(|()| value));
    match parsed {
        Ok(value) => Ok(value),
        Err(_) if is_cancelled => Err(JsonError::Cancelled),
        Err(error) => Err(JsonError::Invalid(error)),
    }
}

/// Bytes in memory whose reader can be cancelled.
struct CancellableReader<'a, 'b> {
    rest: &'a [u8],
    /// Bytes until the next call of `cancel_check`.
    left: usize,
    cancel_check: &'a mut CancelCheck<'b>,
    is_cancelled: &'a mut bool,
}

impl Read for CancellableReader<'_, '_> {
    /// Called for each byte.
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(out)?;
        match self.left.checked_sub(read) {
            Some(left) => self.left = left,
            None => self.check_cancelled()?,
        }
        Ok(read)
    }
}

impl CancellableReader<'_, '_> {
    #[cold]
    fn check_cancelled(&mut self) -> io::Result<()> {
        self.left = STEP_BYTES;
        match (self.cancel_check)() {
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

    fn never_cancelled() -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn a_value_is_parsed_and_nothing_may_follow_it() {
        assert_eq!(
            parse::<Vec<u8>>(b" [1,2] \n", &mut never_cancelled).unwrap(),
            [1, 2]
        );
        for text in [&b""[..], b"[1,2] x", b"[1,", b"{}"] {
            let refused = parse::<Vec<u8>>(text, &mut never_cancelled);
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
