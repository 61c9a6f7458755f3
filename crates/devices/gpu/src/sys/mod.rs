//! The driver's functions, and safe types over them.
//!
// UNSAFETY: none in this file; each of the others says why it has some.

pub(crate) mod chunk_sums;
pub(crate) mod context;
pub(crate) mod copies;
pub(crate) mod driver;
mod export;
pub(crate) mod functions;
pub(crate) mod kernel;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod piece_copier;
mod revocation;
pub(crate) mod shared;
