//! Memory that is taken away while operations use it.
//!
// UNSAFETY: none in this file, but its flag is part of the proof: no operation begins on memory that its owner may free.

use std::sync::atomic::{AtomicBool, Ordering};

use netmem::{DeviceError, DeviceState};

/// Whether the memory that this is a part of was revoked.
#[derive(Debug, Default)]
pub(crate) struct Revocation(AtomicBool);

impl Revocation {
    /// Lets no operation begin any more. Those that are running end only when the lanes were waited for.
    pub(super) fn revoke(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns whether no operation may begin. To be asked under the lock of the lane.
    pub(super) fn is_revoked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Returns the error of an operation on memory that was revoked.
pub(super) fn revoked() -> DeviceError {
    DeviceError {
        call: "copy",
        name: "the memory was taken away while an operation used it",
        code: 1,
        state: DeviceState::Usable,
        remedy: "end what uses the memory before it is freed or deregistered",
    }
}
