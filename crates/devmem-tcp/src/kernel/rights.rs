//! What this process may do with an interface of the kernel.

use std::path::PathBuf;

/// What this process may do with an interface of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Set it up, bind memory to its queues, and restore the previous settings.
    All,
    /// Bind memory to queues that an agent of the machine has prepared. This process writes nothing else to the interface, and checks what
    /// it can see.
    Bind,
    /// As `Bind`, but the broker that listens at this path binds: this process has no privilege.
    Ask(PathBuf),
}
