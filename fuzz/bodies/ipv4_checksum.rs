//! The IPv4 header checksum of a frame that a fuzzer has changed: bodies correct it, so that parsers look at the rest.

use wire::{Ipv4Header, checksum};

/// Corrects the checksum, if the frame has an IPv4 header.
pub fn mend(frame: &mut [u8]) {
    const AT: usize = 14;
    let Some(first) = frame.get(AT) else { return };
    let len = usize::from(first & 0x0f) * 4;
    let Some(header) = frame.get_mut(AT..AT + len) else {
        return;
    };
    if header.len() >= Ipv4Header::LEN {
        header[10..12].fill(0);
        let sum = checksum(header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
    }
}
