//! Pointers to tensors: what Python's buffers and DLPack take and give. The only unsafe code of the package.
//!
// UNSAFETY: the files of this folder, each for its own reason; there is none in this one.

mod adopt;
mod buffer;
mod dlpack;
mod fd;
mod foreign;
mod host;
mod lent;

pub(crate) use adopt::Described;
pub(crate) use buffer::Exported;
pub(crate) use dlpack::{IsCopied, IsVersioned, capsule};
pub(crate) use fd::duplicate;
pub(crate) use foreign::{Foreign, Use};
pub(crate) use host::HostBytes;
