//! HTTP/1.1 (RFC 9112) up to the body of a file: requests, the heads of responses, redirects, proxies, credentials and signatures.
//!
//! # The way of a file
//!
//! A file belongs to the URL that the user gave, its origin. `Client::find` follows redirects from there to the place that has the bytes, `Way`;
//! `HttpRequest::redirected` decides which fields each place may see. Where a place has the file no more, because it was signed for an hour, the origin is
//! asked again: `HttpFile::find_again`. Connections wait in a `Pool` for the next file of the same host.

mod attempt;
pub mod chunks;
mod client;
mod date;
mod error_details;
mod fields;
mod file;
pub mod head;
mod location;
mod profile;
mod proxy;
mod request;
mod round_trip;
mod s3;
mod sigv4;
mod tunnel;

pub use attempt::ConnectionAttempt;
pub use client::Client;
pub use error_details::ErrorDetails;
pub use fields::{ContentRange, FileSum, SumOf};
pub use file::HttpFile;
pub use head::Head;
pub use location::Location;
pub use request::{Ask, HttpRequest};
pub use sigv4::S3Credentials;
