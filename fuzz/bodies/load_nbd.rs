//! What an NBD server sends after requests to read, or to write: see `load/fuzz.rs` of the crate.

/// Checks the input: its first bit says which requests were made.
pub fn run(data: &[u8]) {
    match data {
        [kind, ..] if kind & 0x80 != 0 => devmem_transfer::fuzz::nbd_write(data),
        _ => devmem_transfer::fuzz::nbd(data),
    }
}
