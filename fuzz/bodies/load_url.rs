//! A URL, or a redirect: see `load/fuzz.rs` of the crate.

/// Checks the input.
pub fn run(data: &[u8]) {
    devmem_transfer::fuzz::url(data);
}
