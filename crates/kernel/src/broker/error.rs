//! Why a broker did not bind.

use std::io;
use std::path::PathBuf;

use devmem_uapi::Errno;
use devmem_uapi::text::Printable;

use super::message::Refusal;

/// Why memory was not bound through a broker. The text is one line; what comes from the broker is escaped in it.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// There is no broker at this path, or this user may not connect to it.
    #[error("no broker answers at {}: {error}", Printable(.path.display()))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of connect(2), or `TimedOut`.
        error: io::Error,
    },
    /// The broker, or the kernel that it asked, refused.
    #[error("the broker at {} refused: {}", Printable(.path.display()), Printable(.refusal.reason.as_str()))]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The refusal.
        refusal: Refusal,
    },
    /// What answers there does not keep to the protocol, or has ended.
    #[error("the broker at {}: {what}", Printable(.path.display()))]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
}

impl BrokerError {
    /// Returns the errno that stands for the error.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Connect { error, .. } => match (error.raw_os_error(), error.kind()) {
                (Some(errno), _) => Errno(errno),
                (None, io::ErrorKind::TimedOut) => Errno::ETIMEDOUT,
                (None, _) => Errno::EINVAL,
            },
            Self::Refused { refusal, .. } => refusal.errno,
            Self::Broken { .. } => Errno::EPROTO,
        }
    }

    /// Returns the remedy, one or more lines.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Connect { .. } => Some(
                "start one, as root of the machine: `devmem-tcp broker --help`; in a pod, mount the folder of its socket"
                    .to_owned(),
            ),
            Self::Refused { refusal, .. } => refusal.remedy.clone(),
            Self::Broken { .. } => {
                Some("start broker and program from the same version of devmem-tcp".to_owned())
            }
        }
    }
}
