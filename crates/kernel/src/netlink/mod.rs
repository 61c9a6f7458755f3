//! The parts of netlink that this crate needs: requests with attributes, dumps, generic families, and refusals
//! with the kernel's message and the attribute that it names.
//!
//! A request is built with [`Request`] and sent with [`NetlinkSocket::request`] or [`NetlinkSocket::dump`]; its
//! replies are parsed with [`attr::Attributes`]. [`GenericSocket`] does the same for one generic family. Bytes from the
//! kernel are not trusted to be well formed: parsing ends at a length that does not fit.

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
