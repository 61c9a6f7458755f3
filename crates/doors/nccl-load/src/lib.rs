//! The caller's side of NCCL's network interface: what NCCL does with a plugin, in Rust.
//!
//! Key types: [`Plugin`] (a loaded library), [`SendComm`] and [`RecvComm`] (the two ends of a communicator), [`Request`] (a
//! message in flight). All memory is a dma-buf, which the plugin is given by its descriptor: no pointer to memory of this
//! process leaves it, so that callers need no unsafe code.
//!
//! It has one version of the interface, 12, and messages of one part. It does no I/O, and no function waits:
//! the caller repeats [`Plugin::connect`], [`PluginListener::accept`], [`SendComm::send`], [`RecvComm::receive`] and
//! [`Request::test`] until they have a result.

mod ffi;
mod log;
mod plugin;

pub use ffi::{HANDLE_BYTES, Handle};
pub use log::take_notes;
pub use plugin::{Plugin, PluginListener, RecvComm, Registered, Request, SendComm, Tested};

/// Why a plugin could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file is no library that can be loaded.
    #[error("the plugin cannot be loaded: {0}")]
    NotLoaded(String),
    /// The library has no interface of the version.
    #[error(
        "the library has no symbol {0}: it is no network plugin of NCCL, or of another version"
    )]
    NoInterface(&'static str),
    /// A function that NCCL needs is NULL.
    #[error("the plugin has no function {0}")]
    NoFunction(&'static str),
    /// A function returned another result than success.
    #[error("{function}: {}{}", text_of(*code), .warning.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Failed {
        /// Name of the function of the interface, in lower case.
        function: &'static str,
        /// `ncclResult_t`.
        code: i32,
        /// The last warning that the plugin has logged.
        warning: Option<String>,
    },
    /// Memory was named to another communicator than it is registered for.
    #[error("the memory is registered for another communicator")]
    OtherComm,
    /// A function returned success with a value that makes no sense.
    #[error("{function}: the plugin returned {value}")]
    Nonsense {
        /// Name of the function of the interface, in lower case.
        function: &'static str,
        /// The value.
        value: i64,
    },
}

/// Returns NCCL's text of a result (nccl src/init.cc ncclGetErrorString).
fn text_of(code: i32) -> String {
    let text = match code {
        1 => "unhandled CUDA error",
        2 => "unhandled system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote process exited or there was a network error",
        7 => "in progress",
        other => return format!("result {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_nccls_text_and_the_plugins_reason() {
        let failed = |code, warning| PluginError::Failed {
            function: "listen",
            code,
            warning,
        };
        let reason = failed(2, Some("eth9: no such device".to_owned()));
        let text = "listen: unhandled system error: eth9: no such device";
        assert_eq!(reason.to_string(), text);
        assert_eq!(failed(42, None).to_string(), "listen: result 42");
    }

    #[test]
    fn what_is_no_plugin_is_refused() {
        let missing = Plugin::load("/nonexistent/libnccl-net-x.so".as_ref());
        assert!(matches!(missing, Err(PluginError::NotLoaded(_))));
        // A library that every Linux with a C library has.
        let other = Plugin::load("libc.so.6".as_ref());
        assert!(
            matches!(other, Err(PluginError::NoInterface(_))),
            "{other:?}"
        );
    }
}
