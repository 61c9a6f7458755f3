//! Netlink, as much of it as this crate needs: requests with attributes, lists, generic families,
//! acknowledgements with the kernel's error text and the attribute it points at.
//!
//! A request is built with [`Request`], sent with [`NetlinkSocket::request`] or
//! [`NetlinkSocket::dump`], and its replies are read with [`attr::Attributes`]. [`GenericSocket`] does
//! the same for one generic family. Kernel bytes are never trusted to be well formed: a length that
//! does not fit ends the walk.

mod ack;
pub mod attr;
mod error;
mod exchange;
mod generic;
mod message;
mod names;
mod request;
mod socket;

pub use error::{BadAttribute, NetlinkError};
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) use exchange::fuzz_exchange;
pub use generic::{Family, GenericSocket};
pub use message::NetlinkMessage;
pub use names::Names;
pub use request::{F_DUMP, Request};
pub use socket::NetlinkSocket;
