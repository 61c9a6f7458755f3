//! The door of these tests: the stack's own interface.

/// The interface of the scenarios to a stack.
pub type Door = netsim::Direct;

/// Number of simulations per test of seeds, unless the environment sets another.
pub const SEEDS: u64 = 500;
