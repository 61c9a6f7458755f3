//! What a call returns to NIXL.

use std::error::Error;

use devmem_tcp::Remedy;

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

/// Returns the reason of an error, and its remedy in the words of those who set the parameters of an agent, as one line.
pub(crate) fn text_of(error: &(dyn Error + 'static)) -> String {
    let remedy = Remedy::of(error).map(words).unwrap_or_default();
    remedy.lines().fold(error.to_string(), |text, line| {
        format!("{text}; {}", line.trim())
    })
}

fn words(remedy: Remedy) -> String {
    let words = match remedy {
        Remedy::GiveAddress => "give the parameter address=10.0.0.2/24",
        Remedy::NameRouter => {
            "name a router by the parameter gateway, or use an address in a network of this NIC"
        }
        Remedy::CorrectRouter => {
            "correct the parameter gateway, or check that the router is up and on this link"
        }
        Remedy::AcceptHostMemory | Remedy::DeliverFromHostMemory => {
            "`devmem-tcp doctor` shows the settings of the NIC; without require=device such bytes are copied"
        }
        // Its words are those of people.
        other => return other.to_string(),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use devmem_tcp::{Netdev, RecvError};

    use super::*;

    #[test]
    fn an_error_is_one_line_with_its_remedy_in_the_words_of_parameters() {
        let misplaced = RecvError::Misplaced {
            bytes: 1,
            cause: None,
        };
        let refused = Netdev::user("mem:said", "10.77.0.2/24")
            .and_then(|nic| nic.connect("192.0.2.1:1").map(drop))
            .unwrap_err();
        for (error, remedy) in [
            (io::Error::from(misplaced), "require=device"),
            (refused.into(), "the parameter gateway"),
        ] {
            let text = text_of(&error);
            let (reason, help) = text.split_once("; ").unwrap_or((&text, ""));
            assert_eq!(reason, error.to_string());
            assert!(help.contains(remedy) && !help.contains("::"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        let foreign = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(text_of(&foreign), foreign.to_string());
    }

    #[test]
    fn a_status_survives_as_a_number() {
        for status in Status::ALL {
            assert_eq!(Status::of_code(status.code()), status);
        }
        assert_eq!(Status::of_code(77), Status::Backend);
    }
}
