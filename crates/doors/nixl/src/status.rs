//! What a call returns to NIXL.

/// A result of NIXL's backend interface (`nixl_status_t` in `nixl_types.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// The transfer is going on.
    InProgress = 1,
    /// Done.
    Success = 0,
    /// The transfer was never posted.
    NotPosted = -1,
    /// An argument is impossible.
    InvalidParam = -2,
    /// Something failed on this machine, or the protocol with the peer.
    Backend = -3,
    /// A name or number is not known.
    NotFound = -4,
    /// Two things that must fit together do not, such as versions.
    Mismatch = -5,
    /// Not allowed in this state.
    NotAllowed = -6,
    /// The transfer is still going on.
    RepostActive = -7,
    /// This kind of memory or operation is not supported.
    NotSupported = -9,
    /// The peer is gone.
    RemoteDisconnect = -10,
    /// The transfer was cancelled.
    Cancelled = -11,
}

impl Status {
    const ALL: [Self; 12] = [
        Self::InProgress,
        Self::Success,
        Self::NotPosted,
        Self::InvalidParam,
        Self::Backend,
        Self::NotFound,
        Self::Mismatch,
        Self::NotAllowed,
        Self::RepostActive,
        Self::NotSupported,
        Self::RemoteDisconnect,
        Self::Cancelled,
    ];

    /// Returns the number that NIXL knows it by.
    #[must_use]
    pub fn code(self) -> i32 {
        self as i32
    }

    /// Returns the status of a number that [`code`](Self::code) has returned.
    #[must_use]
    pub fn of_code(code: i32) -> Self {
        let found = Self::ALL.into_iter().find(|status| status.code() == code);
        found.unwrap_or(Self::Backend)
    }
}

/// A call that failed: what NIXL gets, and what the log says.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The status that NIXL gets.
    pub status: Status,
    text: String,
}

impl Failure {
    /// Makes a failure with a text that names cause and remedy.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// Adds what failed.
    #[must_use]
    pub fn within(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// A system call failed.
    pub fn system(call: &str, error: impl std::fmt::Display) -> Self {
        Self::new(Status::Backend, format!("{call} failed: {error}"))
    }
}

/// Returns an error with its remedy, which may be on lines below it, as one line.
pub(crate) fn one_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_survives_as_a_number() {
        for status in Status::ALL {
            assert_eq!(Status::of_code(status.code()), status);
        }
        assert_eq!(Status::of_code(77), Status::Backend);
    }
}
