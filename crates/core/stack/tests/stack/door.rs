//! The door of these tests: the stack's own interface.

/// How scenarios reach a stack.
pub type Door = netsim::Direct;

/// Worlds of each test of seeds, unless the environment says otherwise.
pub const SEEDS: u64 = 500;
