//! The virtio-net header of frames on a TAP and on a UNIX wire (VIRTIO 1.2 5.1.6).

use std::num::NonZeroU16;

use zerocopy::byteorder::native_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ecn::has_cwr;
use crate::parse_error::ParseError;
use crate::tx_checksum::TxChecksum;

/// State of a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// Not verified: the field has what the sender computed.
    #[default]
    Unknown,
    /// Verified, and correct (VIRTIO_NET_HDR_F_DATA_VALID).
    Verified,
    /// Left to be computed: the field has the folded sum of the pseudo-header (VIRTIO_NET_HDR_F_NEEDS_CSUM). A received
    /// frame of this kind was sent on this machine, or merged by its GRO, which has verified the parts: it needs no
    /// verification.
    Partial(TxChecksum),
}

impl From<Option<TxChecksum>> for ChecksumState {
    /// Returns [`Self::Partial`] for a frame with a checksum to compute, and [`Self::Unknown`] for others.
    fn from(left: Option<TxChecksum>) -> Self {
        left.map_or(Self::Unknown, Self::Partial)
    }
}

/// How to cut a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind of the pieces.
    pub kind: GsoKind,
    /// Payload bytes of each piece except the last.
    pub size: NonZeroU16,
}

/// Kind of the pieces of a super-packet (VIRTIO 1.2 5.1.6.2 `gso_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// A TCP segment over IPv4 (VIRTIO_NET_HDR_GSO_TCPV4).
    Tcp4,
    /// A TCP segment over IPv6 (VIRTIO_NET_HDR_GSO_TCPV6).
    Tcp6,
    /// UDP datagrams of one flow (VIRTIO_NET_HDR_GSO_UDP_L4).
    Udp,
}

/// Contents of a virtio-net header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: ChecksumState,
    /// Set for a super-packet. When it is sent, its checksum is [`ChecksumState::Partial`]; when it is received, the
    /// checksum may have any state.
    pub gso: Option<Gso>,
}

/// `struct virtio_net_hdr` (linux include/uapi/linux/virtio_net.h) in the byte order of the host, which is what a TAP
/// with IFF_VNET_HDR uses unless TUNSETVNETLE or TUNSETVNETBE was called (linux drivers/net/tun.c `tun_is_little_endian`).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: U16,
    gso_size: U16,
    csum_start: U16,
    csum_offset: U16,
}
const _: () = assert!(size_of::<VnetHeader>() == VnetHeader::LEN);

// linux include/uapi/linux/virtio_net.h, of `flags`.
/// VIRTIO_NET_HDR_F_NEEDS_CSUM
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID
const DATA_VALID: u8 = 2;
// The same file, of `gso_type`.
/// VIRTIO_NET_HDR_GSO_NONE
const GSO_NONE: u8 = 0;
/// VIRTIO_NET_HDR_GSO_TCPV4
const GSO_TCPV4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6
const GSO_TCPV6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4
const GSO_UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN, a flag beside the type: only the first segment gets CWR
const GSO_ECN: u8 = 0x80;

impl VnetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 10;

    /// Returns the header of a frame. `head` is the start of the frame, with at least all headers; it is used for
    /// super-packets only, for CWR and for the length of the headers.
    pub fn new(offload: Offload, head: &[u8]) -> Self {
        let (flags, start, offset) = match offload.checksum {
            ChecksumState::Unknown => (0, 0, 0),
            ChecksumState::Verified => (DATA_VALID, 0, 0),
            ChecksumState::Partial(TxChecksum { start, offset }) => (NEEDS_CSUM, start, offset),
        };
        let mut header = Self {
            flags,
            csum_start: start.into(),
            csum_offset: offset.into(),
            ..Self::default()
        };
        if let Some(Gso { kind, size }) = offload.gso {
            let ecn = match has_cwr(head, start.into()) {
                true => GSO_ECN,
                false => 0,
            };
            header.gso_type = match kind {
                GsoKind::Tcp4 => GSO_TCPV4 | ecn,
                GsoKind::Tcp6 => GSO_TCPV6 | ecn,
                GsoKind::Udp => GSO_UDP_L4,
            };
            header.gso_size = size.get().into();
            // A hint for the receiver; 0: none.
            header.hdr_len = u16::try_from(head.len()).unwrap_or(0).into();
        }
        header
    }

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
        Ok(header)
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..Self::LEN].copy_from_slice(self.as_bytes());
        Self::LEN
    }

    /// Returns what the header says. A kind of super-packet that is not known, and one of 0 bytes, count as none.
    pub fn offload(&self) -> Offload {
        let Self {
            flags,
            gso_type,
            hdr_len: _,
            gso_size,
            csum_start,
            csum_offset,
        } = *self;
        let checksum = if flags & NEEDS_CSUM != 0 {
            ChecksumState::Partial(TxChecksum {
                start: csum_start.get(),
                offset: csum_offset.get(),
            })
        } else if flags & DATA_VALID != 0 {
            ChecksumState::Verified
        } else {
            ChecksumState::Unknown
        };
        let kind = match gso_type & !GSO_ECN {
            GSO_TCPV4 => Some(GsoKind::Tcp4),
            GSO_TCPV6 => Some(GsoKind::Tcp6),
            GSO_UDP_L4 => Some(GsoKind::Udp),
            GSO_NONE => None,
            // UFO (3), which Linux no longer makes, and what comes after this was written.
            _ => None,
        };
        let gso = kind
            .zip(NonZeroU16::new(gso_size.get()))
            .map(|(kind, size)| Gso { kind, size });
        Offload { checksum, gso }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIAL: ChecksumState = ChecksumState::Partial(TxChecksum {
        start: 34,
        offset: 16,
    });

    fn emitted(offload: Offload, head: &[u8]) -> [u8; VnetHeader::LEN] {
        let mut out = [0xee; VnetHeader::LEN];
        assert_eq!(VnetHeader::new(offload, head).emit(&mut out), out.len());
        out
    }

    #[test]
    fn emitted_headers_are_parsed_again() {
        let size = NonZeroU16::new(1448).unwrap();
        let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
        let supers = kinds.map(|kind| (PARTIAL, Some(Gso { kind, size })));
        let plain = [ChecksumState::Unknown, ChecksumState::Verified, PARTIAL];
        for (checksum, gso) in plain.map(|state| (state, None)).into_iter().chain(supers) {
            let offload = Offload { checksum, gso };
            let header = VnetHeader::parse(&emitted(offload, &[0; 66])).unwrap();
            assert_eq!(header.offload(), offload);
        }
    }

    #[test]
    fn the_header_lies_as_the_kernel_has_it() {
        let offload = Offload {
            checksum: PARTIAL,
            gso: Some(Gso {
                kind: GsoKind::Tcp6,
                size: NonZeroU16::new(0x0102).unwrap(),
            }),
        };
        let expected = [0x0042u16, 0x0102, 34, 16].map(u16::to_ne_bytes).concat();
        let mut head = [0; 0x42];
        assert_eq!(emitted(offload, &head)[..2], [1, 4]);
        assert_eq!(emitted(offload, &head)[2..], expected);
        // With CWR, which only the first segment may have.
        head[34 + 13] = 0x90;
        assert_eq!(emitted(offload, &head)[..2], [1, 0x84]);
    }

    #[test]
    fn a_frame_that_is_no_super_packet_has_no_header_length() {
        let offload = Offload {
            checksum: PARTIAL,
            gso: None,
        };
        let expected = [0u16, 0, 34, 16].map(u16::to_ne_bytes).concat();
        assert_eq!(emitted(offload, &[0xff; 66])[..2], [1, 0]);
        assert_eq!(emitted(offload, &[0xff; 66])[2..], expected);
        assert_eq!(emitted(Offload::default(), &[]), [0; VnetHeader::LEN]);
    }

    #[test]
    fn ecn_is_beside_the_type_and_unknown_types_are_none() {
        let gso = |kind, size: u16| {
            let [a, b] = size.to_ne_bytes();
            let header = VnetHeader::parse(&[0, kind, 0, 0, a, b, 0, 0, 0, 0]).unwrap();
            header.offload().gso.map(|gso| gso.kind)
        };
        assert_eq!(gso(GSO_TCPV4 | GSO_ECN, 1), Some(GsoKind::Tcp4));
        assert_eq!(gso(3, 1), None);
        assert_eq!(gso(GSO_TCPV4, 0), None, "nothing to cut it by");
    }

    #[test]
    fn a_header_cut_short_is_refused_and_one_with_more_behind_it_is_read() {
        let bytes = [1; VnetHeader::LEN + 2];
        assert_eq!(VnetHeader::parse(&bytes[..9]), Err(ParseError::Truncated));
        let header = VnetHeader::parse(&bytes).unwrap();
        assert_eq!(header, VnetHeader::parse(&bytes[..10]).unwrap());
    }
}
