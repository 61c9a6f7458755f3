//! The virtio-net header of TAP and UNIX wires, and the device's words for the same.

use std::num::NonZeroU16;

use gve::{ChecksumState, Gso, GsoKind, Offload};
use wire::{TxChecksum, has_cwr};

/// Bytes of `struct virtio_net_hdr` (linux include/uapi/linux/virtio_net.h).
pub const LEN: usize = 10;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID
const DATA_VALID: u8 = 2;
/// VIRTIO_NET_HDR_GSO_TCPV4
const GSO_TCPV4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6
const GSO_TCPV6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4
const GSO_UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN, a flag beside the type: only the first segment gets CWR
const GSO_ECN: u8 = 0x80;

/// Returns the header of a frame whose headers are the first `head_len` bytes of `frame`.
pub fn emit(offload: Offload, frame: &[u8], head_len: usize) -> [u8; LEN] {
    let (flags, start, offset) = match offload.checksum {
        ChecksumState::Unknown => (0, 0, 0),
        ChecksumState::Verified => (DATA_VALID, 0, 0),
        ChecksumState::Partial(TxChecksum { start, offset }) => (NEEDS_CSUM, start, offset),
    };
    let cwr = match has_cwr(frame, start.into()) {
        true => GSO_ECN,
        false => 0,
    };
    let (kind, size) = match offload.gso {
        None => (0, 0),
        Some(Gso { kind, size }) => (
            match kind {
                GsoKind::Tcp4 => GSO_TCPV4 | cwr,
                GsoKind::Tcp6 => GSO_TCPV6 | cwr,
                GsoKind::Udp => GSO_UDP_L4,
            },
            size.get(),
        ),
    };
    // Wanted for super-packets only, and then a hint.
    let head_len = match offload.gso {
        None => 0,
        Some(_) => u16::try_from(head_len).unwrap_or(0),
    };
    let [[a, b], [c, d], [e, f], [g, h]] = [head_len, size, start, offset].map(u16::to_ne_bytes);
    [flags, kind, a, b, c, d, e, f, g, h]
}

/// Reads what the other side says about its frame; a kind of super-packet that is not known counts as none.
pub fn parse(header: [u8; LEN]) -> Offload {
    let [flags, kind, _, _, c, d, e, f, g, h] = header;
    let [size, start, offset] = [[c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
    let checksum = if flags & NEEDS_CSUM != 0 {
        ChecksumState::Partial(TxChecksum { start, offset })
    } else if flags & DATA_VALID != 0 {
        ChecksumState::Verified
    } else {
        ChecksumState::Unknown
    };
    let kind = match kind & !GSO_ECN {
        GSO_TCPV4 => Some(GsoKind::Tcp4),
        GSO_TCPV6 => Some(GsoKind::Tcp6),
        GSO_UDP_L4 => Some(GsoKind::Udp),
        _ => None,
    };
    let gso = kind
        .zip(NonZeroU16::new(size))
        .map(|(kind, size)| Gso { kind, size });
    Offload { checksum, gso }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let partial = ChecksumState::Partial(TxChecksum {
            start: 34,
            offset: 16,
        });
        let size = NonZeroU16::new(1448).unwrap();
        let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
        let supers = kinds.map(|kind| (partial, Some(Gso { kind, size })));
        let plain = [ChecksumState::Unknown, ChecksumState::Verified, partial];
        for (checksum, gso) in plain.map(|state| (state, None)).into_iter().chain(supers) {
            let offload = Offload { checksum, gso };
            assert_eq!(parse(emit(offload, &[0; 66], 66)), offload);
        }
    }

    #[test]
    fn the_header_lies_as_the_kernel_has_it() {
        let offload = Offload {
            checksum: ChecksumState::Partial(TxChecksum {
                start: 34,
                offset: 16,
            }),
            gso: Some(Gso {
                kind: GsoKind::Tcp6,
                size: NonZeroU16::new(0x0102).unwrap(),
            }),
        };
        let expected = [0x0042u16, 0x0102, 34, 16].map(u16::to_ne_bytes).concat();
        let mut frame = [0; 0x42];
        assert_eq!(emit(offload, &frame, 0x42)[..2], [1, 4]);
        assert_eq!(emit(offload, &frame, 0x42)[2..], expected);
        // With CWR, which only the first segment may have.
        frame[34 + 13] = 0x90;
        assert_eq!(emit(offload, &frame, 0x42)[..2], [1, 0x84]);
    }

    #[test]
    fn ecn_is_beside_the_type_and_unknown_types_are_none() {
        let header = |kind| {
            parse([0, kind, 0, 0, 1, 0, 0, 0, 0, 0])
                .gso
                .map(|gso| gso.kind)
        };
        assert_eq!(header(GSO_TCPV4 | GSO_ECN), Some(GsoKind::Tcp4));
        assert_eq!(header(3), None);
        assert_eq!(parse([0, GSO_TCPV4, 0, 0, 0, 0, 0, 0, 0, 0]).gso, None);
    }
}
