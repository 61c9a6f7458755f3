//! Vulkan's functions, and safe types over them.
//!
// UNSAFETY: none in this file; each of the others says why it has some.

pub(crate) mod copies;
pub(crate) mod gpu;
pub(crate) mod instance;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod queue;
