//! What an error of this crate says, for an interface that has its own words for remedies.

use std::error::Error;

use crate::load::{
    CheckpointError, LoadError, PartError, PartialError, Remedy, SecretError, SelectionError,
    TlsError, UrlError,
};
use crate::store::{InputError, StoreError};

/// Returns the reason of an error of this crate in one line, and what helps; `None` for other errors, and for those whose text is the same in
/// each interface.
pub fn explain(error: &(dyn Error + 'static)) -> Option<(String, Option<Remedy>)> {
    macro_rules! first_of {
        ($($kind:ty),* $(,)?) => {$(
            if let Some(error) = error.downcast_ref::<$kind>() {
                return Some((error.to_string(), error.remedy()));
            }
        )*};
    }
    first_of!(
        LoadError,
        StoreError,
        CheckpointError,
        SelectionError,
        PartError,
        PartialError,
        UrlError,
        TlsError,
        SecretError,
        InputError,
    );
    None
}
