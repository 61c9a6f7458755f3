//! HTTP/1.1 (RFC 9112): ranges of a file, over connections that stay open.

mod approach;
mod chunks;
mod client;
mod date;
mod error_details;
mod fields;
mod file;
mod head;
mod moved;
mod profile;
mod proxy;
mod request;
mod round_trip;
mod s3;
mod session;
mod sigv4;
mod sums;
mod tunnel;
mod volume;
mod way;

pub(crate) use approach::Approach;
pub(crate) use client::Client;
pub use file::HttpFile;
pub(crate) use moved::Moved;
#[cfg(test)]
pub(crate) use request::Ask;
pub use request::HttpRequest;
pub(crate) use session::HttpSession;
pub use sigv4::S3Credentials;
pub use volume::Volume;
