//! What a client says to a server before payload moves: where a file, an export or a namespace is, who asks for it, and by which rules it can be read.
//!
//! Key types: [`http::HttpFile`], [`nbd::NbdExport`] and [`nvme::NvmeNamespace`], each found by its URL and asked for its size. [`Transport`] is a
//! connection to one of them, with or without TLS, which `devmem-transfer` moves payload over; [`LoadError`] says why there is none, and what helps.
//!
//! In the walk of a received segment it is the program, for the few bytes of heads, handshakes and answers, which it reads into host memory.
//!
//! It neither cuts a file into requests nor knows where payload belongs: nothing here is called for each byte, and release builds optimise it little. Functions
//! that are called for each request or for each record of TLS are `#[inline]`: compiled, and optimised, where they are called.

#![forbid(unsafe_code)]

mod base64;
mod cause;
mod connection_key;
pub mod dial;
mod error;
pub mod http;
pub mod nbd;
mod notice;
pub mod nvme;
mod piece;
mod pool;
mod remedy;
pub mod retry;
mod secrets;
mod shown;
mod sum;
pub mod tls;
mod transport;
pub mod url;

pub use cause::Cause;
pub use connection_key::ConnectionKey;
pub use error::{LoadError, PartError};
pub use notice::Notice;
pub use piece::Piece;
pub use pool::Pool;
pub use remedy::{Remedy, Setting};
pub use secrets::{SecretError, password_of, read_secret};
pub use shown::shown;
pub use sum::{SumKind, SumValue};
pub use transport::{CUT, Transport};
pub use url::{Url, UrlError};
