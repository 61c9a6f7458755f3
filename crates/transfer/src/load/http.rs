//! HTTP/1.1 (RFC 9112): ranges of files, over connections that stay open.

mod session;
mod sums;
mod volume;

pub(crate) use session::HttpSession;
pub(crate) use sums::stored_sum;
pub use volume::Volume;
