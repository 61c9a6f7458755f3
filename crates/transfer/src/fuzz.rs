//! The bodies of the fuzz targets: sessions and parsers that read what a server sends.

use ::nvme::pdu::Digests;

pub use crate::load::fuzz::{http, nbd, nvme, safetensors, url};
use crate::store::{fuzz_nbd, fuzz_nvme};

/// Feeds an NBD session that writes. Input: whether replies are structured and how many requests are in flight, where the
/// bytes are cut, the bytes of the server.
///
/// # Panics
/// If a request is acknowledged that was not made, or twice, or is lost.
pub fn nbd_write(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    fuzz_nbd(kind & 1 == 0, usize::from(kind >> 1 & 3) + 1, *cut, bytes);
}

/// Feeds a queue that writes to an NVMe controller. Input: the digests, whether data are in the capsules and the number of
/// commands in flight, where the bytes are cut, the bytes of the controller.
///
/// # Panics
/// If a command is acknowledged that was not issued, or twice, or is lost; if data are sent that are none of the command.
pub fn nvme_write(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    let depth = usize::from(kind >> 2 & 3) + 2;
    fuzz_nvme(
        Digests::of_bits(*kind),
        kind & 0x10 != 0,
        depth,
        *cut,
        bytes,
    );
}
