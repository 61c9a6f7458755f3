//! What an HTTP server sends after requests for ranges: see `load/fuzz.rs` of the crate.

/// Checks the input.
pub fn run(data: &[u8]) {
    devmem_transfer::fuzz::http(data);
}
