//! What an NBD server sends after requests to read: see `load/fuzz.rs` of the crate.

/// Checks the input.
pub fn run(data: &[u8]) {
    devmem_transfer::load::fuzz::nbd(data);
}
