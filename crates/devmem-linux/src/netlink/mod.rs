//! Netlink, as much of it as this crate needs: requests with attributes, acknowledgements with the
//! kernel's error text.
//!
//! A request is built with [`Request`], sent with [`NetlinkSocket::request`], and its replies are read
//! with [`attr::Attributes`]. Kernel bytes are never trusted to be well formed: a length that does not
//! fit ends the walk.

pub mod attr;
mod error;
mod message;
mod socket;

pub use error::NetlinkError;
pub use message::{Message, Messages, Request};
pub use socket::NetlinkSocket;
