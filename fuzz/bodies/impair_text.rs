//! The text of a link's impairments, as a person types it.
//!
//! Input: the text.

use nic::Impairment;

/// Checks that what is accepted is written back and read to the same.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<Impairment>() {
        Ok(impairment) => {
            let written = impairment.to_string();
            assert_eq!(
                written.parse(),
                Ok(impairment),
                "{text:?} was written as {written:?}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
