//! What follows when a place does not have a file any more.

use std::sync::Arc;

use client::LoadError;
use client::http::{HttpFile, Location};

/// A location that does not have the file any more, or not yet: the user's URL is asked again.
#[derive(Debug)]
pub(crate) struct StaleLocation {
    pub(crate) file: HttpFile,
    pub(crate) location: Arc<Location>,
    /// The answer, if nothing better is found.
    pub(crate) refusal: LoadError,
}
