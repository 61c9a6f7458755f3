//! HTTP/1.1 (RFC 9112): ranges of a file, over connections that stay open.

mod chunks;
mod date;
mod file;
mod head;
mod profile;
mod proxy;
mod request;
mod s3;
pub(crate) mod secret;
mod session;
mod sigv4;
pub(crate) mod url;

pub use file::HttpFile;
pub use request::HttpRequest;
pub(crate) use session::HttpSession;
pub use sigv4::S3Credentials;
pub(crate) use sigv4::encoded_bytes;
pub use url::{Url, UrlError};
