//! Parameters as they were given.

use crate::status::{Failure, Status};

/// Names, defaults and meaning of the parameters, as NIXL shows them.
pub const PARAMETERS: &[(&str, &str)] = &[
    ("way", "auto"),
    ("require", "any"),
    ("connections", "2"),
    ("address", ""),
    ("gateway", ""),
    ("port", "0"),
    ("timeout", "30"),
    ("impair", ""),
    ("pool", ""),
    ("queues", ""),
    ("gpu", ""),
];

/// Parameters as they were given, without those that are empty.
pub(super) struct Given<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Given<'a> {
    /// An unknown parameter is refused: it may be a misspelled `require`.
    pub(super) fn new(
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for (key, value) in given {
            if !PARAMETERS.iter().any(|(name, _)| *name == key) {
                let known: Vec<_> = PARAMETERS.iter().map(|(name, _)| *name).collect();
                return Err(bad(key, value, &format!("known are {}", known.join(", "))));
            }
            if !value.trim().is_empty() {
                all.push((key, value.trim()));
            }
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        // The last one counts.
        let found = self.0.iter().rev().find(|(name, _)| *name == key);
        found.map(|(_, value)| *value)
    }

    /// Returns the parts of a list with commas.
    pub(super) fn list(&self, key: &str) -> impl Iterator<Item = &'a str> {
        let parts = self.get(key).unwrap_or_default().split(',').map(str::trim);
        parts.filter(|part| !part.is_empty())
    }

    /// Refuses parameters that the way does not have.
    pub(super) fn refuse(&self, keys: &[&str], why: &str) -> Result<(), Failure> {
        let found = self.0.iter().find(|(name, _)| keys.contains(name));
        match found {
            Some((key, value)) => Err(bad(key, value, &format!("leave it out: {why}"))),
            None => Ok(()),
        }
    }
}

pub(super) fn bad(key: &str, value: &str, remedy: &str) -> Failure {
    let what = format!(
        "parameter {}={}: {remedy}",
        key.escape_debug(),
        value.escape_debug()
    );
    Failure::new(Status::InvalidParam, what)
}
