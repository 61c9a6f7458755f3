//! Memory that others write at the same time: mapping it, and copying in and out of it.
//!
//! Device memory, guest memory and network memory are written by devices, guests, the kernel and other threads while
//! this process has them mapped. No `&[u8]` or `&mut [u8]` of such memory may exist. This crate is the only one that
//! maps memory or touches its bytes:
//!
//! - [`Mapping`] is a run of mapped memory. Every range is checked; every copy loads each byte once and stores it
//!   once, by operations that are defined when another thread or process accesses the same bytes (see `copy.rs`). Copied
//!   bytes are private and no longer change: code that validates untrusted bytes copies them once and validates the copy.
//! - [`MappableFile`] is the proof that a file cannot get shorter under a mapping (which would turn an access into
//!   SIGBUS): a memfd sealed against shrinking, or a dma-buf.
//! - [`DmaRight`] is the right of a NIC to access memory that the stack may not read; other crates require it as an
//!   argument.
//!
//! [`readv`], [`receive`] and [`writev`] let the kernel move bytes between a file and mapped memory: the scatter read and gather
//! write in step 1 of a received segment and step 6 of a send (ARCHITECTURE.md).
//!
//! [`Process`] and [`PerProcess`] are here because they need a page that the kernel zeroes in a child by fork(2).
//!
//! [`check_room`] tells before memory is touched whether the control groups and the machine have it.
//!
//! The crate knows no packets, pools, windows or policies: its users decide which code may access which bytes.

mod copy;
mod dma_right;
mod file;
mod kinds;
mod mapping;
mod process;
mod room;
mod vectors;

pub use dma_right::DmaRight;
pub use file::{FilePages, MappableFile, UnmappableFile};
pub use kinds::{Advice, Commit, MapAccess, RangeError};
pub use mapping::{Mapping, Span};
#[cfg(any(test, feature = "test-util"))]
pub use process::in_child;
pub use process::{PerProcess, Process};
pub use room::{NoRoom, RoomHolder, check_room};
pub use vectors::{MAX_IOVECS, readv, receive, writev};

/// Alignment of every mapping, so that it can have huge pages (x86-64 and arm64 PMD size).
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The smallest page that a mapping is made of.
pub const BASE_PAGE_BYTES: usize = 4096;
