//! `cargo xtask`: the checks CI runs.

fn main() {}
