//! What several tests need.

/// Returns bytes that differ from page to page.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
        .collect()
}
