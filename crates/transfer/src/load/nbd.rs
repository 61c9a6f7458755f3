//! The Network Block Device protocol (the file proto.md of the NBD project): reading an export, several requests at a time.
//! `crate::store` writes.

pub(crate) mod reply;
pub(crate) mod request;
mod session;

pub(crate) use session::NbdSession;
