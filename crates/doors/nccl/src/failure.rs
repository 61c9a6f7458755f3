//! Failed calls: the code that NCCL gets, and the text for its log.

use std::error::Error;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use exchange::{Cause, ConnectError, FabricError, PostError, RegisterError, Remedy};

use crate::raw::log;

/// A result of NCCL (`ncclResult_t`). 7 ("in progress") is never returned: NCCL takes it for success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    /// A call of CUDA failed.
    Cuda = 1,
    /// A system call failed, or the network is gone.
    System = 2,
    /// NCCL used the plugin wrongly, or the plugin has a bug.
    Internal = 3,
    /// A device index is out of range.
    Argument = 4,
    /// The user's mistake: configuration, or lengths that do not fit together.
    Usage = 5,
    /// The peer closed, died or broke the protocol.
    Remote = 6,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// `None`: it was logged before.
    pub(crate) text: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self {
            code,
            text: Some(text.into()),
        }
    }

    /// A pointer that this library has not given, or that is closed.
    pub(crate) fn no_such(what: &str) -> Self {
        Self::new(
            Code::Internal,
            format!("the {what} is not one of this plugin, or is closed"),
        )
    }
}

/// Returns the code for the reason why a communicator broke.
pub(crate) fn code_of(cause: &Cause) -> Code {
    match cause {
        Cause::TooLong { .. } => Code::Usage,
        Cause::MemoryGone => Code::Internal,
        Cause::Copy(_) => Code::System,
        _ => Code::Remote,
    }
}

/// Returns the text of an error for the log: the reason, and what helps on a line below it, in the words of those who run NCCL.
pub(crate) fn text_of(error: &(dyn Error + 'static)) -> String {
    let (reason, remedy) = exchange::explain(error).unwrap_or_else(|| {
        (
            error.to_string(),
            devmem_tcp::Remedy::of(error).map(Remedy::Library),
        )
    });
    match remedy {
        Some(remedy) => format!("{reason}\n  {}", words(&remedy)),
        None => reason,
    }
}

fn words(remedy: &Remedy) -> String {
    match remedy {
        Remedy::SameLength => {
            "the two sides disagree on the length: check that all ranks pass the same counts and have the same NCCL_PROTO and NCCL_ALGO"
                .to_owned()
        }
        other => other.to_string(),
    }
}

macro_rules! from_error {
    ($($error:ty => $code:expr),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new($code, text_of(&error))
            }
        }
    )*};
}

from_error! {
    devmem_tcp::Error => Code::System,
    devmem_tcp::memory::DmabufError => Code::System,
    devmem_tcp::cuda::GpuError => Code::Cuda,
    FabricError => Code::System,
    ConnectError => Code::Remote,
    RegisterError => Code::System,
    PostError => Code::Internal,
}

/// Makes the call `name` on behalf of NCCL: logs a failure and returns its code. A panic is a bug of this library, and must
/// not unwind into C.
pub(crate) fn finish(name: &str, call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // State behind a lock that the panic poisoned stays usable: every lock here ignores poisoning.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let panicked = |_| {
        let text = "a bug in libnccl-net-devmem.so; please report the message above";
        Err(Failure::new(Code::Internal, text))
    };
    match outcome.unwrap_or_else(panicked) {
        Ok(()) => Code::Success as c_int,
        Err(failure) => {
            if let Some(text) = failure.text {
                log::warn(&format!("NET/Devmem {name}: {text}"));
            }
            failure.code as c_int
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_reason_and_remedy_in_the_words_of_nccl() {
        let cause = Cause::TooLong {
            sent: 2,
            posted: 1,
            tag: 0,
            is_ours: true,
        };
        let text = text_of(&cause);
        assert!(text.starts_with("a message of 2 bytes"), "{text}");
        assert!(text.ends_with("NCCL_PROTO and NCCL_ALGO"), "{text}");
        let refused = Failure::from(FabricError::NoAddress)
            .text
            .unwrap_or_default();
        assert!(
            refused.contains("no IP address\n  add one: ip address add"),
            "{refused}"
        );
        let refused = Failure::from(FabricError::Nic(
            devmem_tcp::Netdev::kernel("nosuch0").unwrap_err(),
        ));
        let refused = refused.text.unwrap_or_default();
        assert!(refused.contains("nosuch0"), "{refused}");
        assert!(refused.contains("`ip link` lists"), "{refused}");
        let size = devmem_tcp::Dmabuf::anonymous(1).unwrap_err();
        let size = Failure::from(size).text.unwrap_or_default();
        assert!(size.ends_with("\n  round it up"), "{size}");
    }
}
