//! TLS of https servers: the CPU decrypts their bytes in host memory, from where they are copied to their place.
//!
//! `rustls` is the protocol without I/O. A [`TlsStream`] moves records between it and a [`Stream`](devmem_tcp::Stream), of
//! our stack or of the kernel's.

mod fault;
mod options;
mod stream;
mod unverified;

pub use options::{TlsClient, TlsError, TlsOptions};
pub use stream::{TlsRead, TlsStream};
