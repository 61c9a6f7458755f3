//! The Network Block Device protocol (the file proto.md of the NBD project) up to the first request: an export is found, and its rules are negotiated.

mod export;
mod flags;
mod handshake;
mod url;

pub use export::NbdExport;
pub use flags::{SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES};
pub use url::NbdUrl;
