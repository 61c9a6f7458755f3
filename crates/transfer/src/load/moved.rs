//! What follows when a place does not have a file any more.

use std::sync::Arc;

use client::LoadError;
use client::http::{HttpFile, Way};

/// A place that does not have a file any more, or not yet: the user's URL is asked again.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) file: HttpFile,
    pub(crate) way: Arc<Way>,
    /// The answer, if nothing better is found.
    pub(crate) refusal: LoadError,
}
