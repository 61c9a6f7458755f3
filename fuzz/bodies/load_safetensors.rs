//! A safetensors file; the index of a checkpoint's files: see `load/fuzz.rs` of the crate.

/// Checks the input.
pub fn run(data: &[u8]) {
    devmem_transfer::fuzz::safetensors(data);
}
