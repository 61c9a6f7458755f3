//! The `devmem-tcp` tool.

fn main() {}
