//! What an NVMe controller sends after commands to read, or to write: see `load/fuzz.rs` of the crate.

/// Checks the input: its first bit says which commands were issued.
pub fn run(data: &[u8]) {
    match data {
        [kind, ..] if kind & 0x80 != 0 => devmem_transfer::fuzz::nvme_write(data),
        _ => devmem_transfer::fuzz::nvme(data),
    }
}
