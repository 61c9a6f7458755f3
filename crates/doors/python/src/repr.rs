//! What `repr` shows of a handle.

use crate::error::Error;

/// Returns `<NAME STATE>`, or `<NAME closed>` for a handle that can tell no state: it is closed, or of another process.
pub(crate) fn of_handle(name: &str, state: Result<String, Error>) -> String {
    let state = state.unwrap_or_else(|_closed| "closed".to_owned());
    format!("<{name} {state}>")
}

/// Returns a number of things in words.
pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
