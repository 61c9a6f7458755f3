//! The text of a link's impairments.
//!
//! Input: the text.

use nic::Impairment;

/// Checks that accepted impairments are the same after they were formatted and parsed again.
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
                "{text:?} was formatted as {written:?}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
