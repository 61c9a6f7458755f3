//! The door of these tests: the stack's own interface.

/// How scenarios reach a stack.
pub type Door = netsim::Direct;
