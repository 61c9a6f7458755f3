//! The packets of a wire with shared memory, in the byte order of the host: both ends are on it. They are the same in the socket and
//! in a [ring](super::ring).
//!
//! Every packet begins with the virtio-net header of a UNIX wire. Two bits of its flags that VIRTIO does not use (VIRTIO 1.2
//! 5.1.6) say what follows:
//!
//! - neither: a frame;
//! - [`BY_REFERENCE`]: 12 bytes (slot: u16, number of pieces: u16, bytes of headers: u16, until: u8, zero: u8, number: u32), the
//!   pieces of 16 bytes (region: u32, length: u32, offset in its file: u64), and the headers of the frame;
//! - [`FILE`]: the packet is no frame, but 16 bytes about a file (flag: u8, kind: u8, zero: u16, region: u32, size: u64), with a
//!   descriptor as SCM_RIGHTS if the kind has one.

use ::wire::VnetHeader;

use super::super::BorrowedUntil;

/// Flag of the virtio-net header: payload by reference.
const BY_REFERENCE: u8 = 0x80;
/// Flag of the first byte: about a file.
const FILE: u8 = 0x40;

/// Most pieces of one frame.
pub(super) const MAX_PIECES: usize = 256;

/// Longest headers of a frame by reference: those of [`HeadBuf`](crate::HeadBuf).
pub(super) const MAX_HEAD: usize = crate::packet::HeadBuf::CAPACITY;

const FRAME_HEADER: usize = 12;
const PIECE: usize = 16;
const FILE_RECORD: usize = 16;

/// Bytes of the longest packet that is not an inline frame.
pub(super) const MAX_RECORD: usize = VnetHeader::LEN + FRAME_HEADER + MAX_PIECES * PIECE + MAX_HEAD;

const MEMORY: u8 = 1;
const REVOKED: u8 = 2;
const NOTES: u8 = 3;
const RING: u8 = 4;
const WAKE: u8 = 5;

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceRecord {
    pub(super) region: u32,
    pub(super) len: u32,
    pub(super) offset: u64,
}

/// A frame whose payload is in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRecord<'a> {
    pub(super) header: VnetHeader,
    /// Where to tell that the memory is not needed any more, and what to write there.
    pub(super) slot: u16,
    pub(super) number: u32,
    pub(super) until: BorrowedUntil,
    pub(super) head: &'a [u8],
    pieces: &'a [u8],
}

/// Something about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRecord {
    /// The file has payload: the receiver maps it as `region`.
    Memory { region: u32, size: u64 },
    /// The region is not named any more.
    Revoked { region: u32 },
    /// The sender of this record writes there which frames it has let go of, how far it has read the ring of the other end, and
    /// whether it sleeps.
    Notes,
    /// The ring in which all later packets of the sender of this record come.
    Ring,
    /// No file: the receiver of this record is to look at the ring.
    Wake,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Inline {
        header: VnetHeader,
        frame: &'a [u8],
    },
    Frame(FrameRecord<'a>),
    File(FileRecord),
    /// None of these.
    Bad,
}

impl<'a> Packet<'a> {
    /// Parses a packet. A packet shorter than the virtio-net header is an empty frame, as on any UNIX wire.
    pub(super) fn parse(packet: &'a [u8]) -> Self {
        let Some((header, rest)) = packet.split_first_chunk::<{ VnetHeader::LEN }>() else {
            let header = VnetHeader::default();
            return Self::Inline { header, frame: &[] };
        };
        let mut header = *header;
        let kind = header[0] & (BY_REFERENCE | FILE);
        header[0] &= !(BY_REFERENCE | FILE);
        match kind {
            0 => Self::Inline {
                header: VnetHeader::parse(&header).unwrap_or_default(),
                frame: rest,
            },
            BY_REFERENCE => {
                let header = VnetHeader::parse(&header).unwrap_or_default();
                FrameRecord::parse(header, rest).map_or(Self::Bad, Self::Frame)
            }
            FILE => FileRecord::parse(packet).map_or(Self::Bad, Self::File),
            _ => Self::Bad,
        }
    }
}

impl<'a> FrameRecord<'a> {
    fn parse(header: VnetHeader, rest: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = rest.split_first_chunk::<FRAME_HEADER>()?;
        let [s0, s1, p0, p1, h0, h1, until, zero, n0, n1, n2, n3] = *fixed;
        let pieces = usize::from(u16::from_ne_bytes([p0, p1]));
        let head = usize::from(u16::from_ne_bytes([h0, h1]));
        if pieces == 0 || pieces > MAX_PIECES || head > MAX_HEAD || zero != 0 {
            return None;
        }
        let (pieces, head_bytes) = rest.split_at_checked(pieces * PIECE)?;
        (head_bytes.len() == head).then_some(Self {
            header,
            slot: u16::from_ne_bytes([s0, s1]),
            number: u32::from_ne_bytes([n0, n1, n2, n3]),
            until: match until {
                0 => BorrowedUntil::Copied,
                1 => BorrowedUntil::Read,
                _ => return None,
            },
            head: head_bytes,
            pieces,
        })
    }

    /// Returns the pieces of the payload, in order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = PieceRecord> + use<'a> {
        let (pieces, _) = self.pieces.as_chunks::<PIECE>();
        pieces.iter().map(|piece| {
            let [r0, r1, r2, r3, l0, l1, l2, l3, offset @ ..] = *piece;
            PieceRecord {
                region: u32::from_ne_bytes([r0, r1, r2, r3]),
                len: u32::from_ne_bytes([l0, l1, l2, l3]),
                offset: u64::from_ne_bytes(offset),
            }
        })
    }
}

/// What [`emit_frame`] writes besides headers and pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameFields {
    pub(super) header: VnetHeader,
    pub(super) slot: u16,
    pub(super) number: u32,
    pub(super) until: BorrowedUntil,
}

/// Writes the packet of a frame to `out`. `pieces` are at most [`MAX_PIECES`], `head` at most [`MAX_HEAD`] bytes.
pub(super) fn emit_frame(
    out: &mut Vec<u8>,
    fields: FrameFields,
    pieces: &[PieceRecord],
    head: &[u8],
) {
    out.clear();
    let mut vnet = [0; VnetHeader::LEN];
    fields.header.emit(&mut vnet);
    vnet[0] |= BY_REFERENCE;
    out.extend_from_slice(&vnet);
    out.extend_from_slice(&fields.slot.to_ne_bytes());
    // Both fit: see above.
    out.extend_from_slice(&(pieces.len() as u16).to_ne_bytes());
    out.extend_from_slice(&(head.len() as u16).to_ne_bytes());
    let until = match fields.until {
        BorrowedUntil::Copied => 0,
        BorrowedUntil::Read => 1,
    };
    out.extend_from_slice(&[until, 0]);
    out.extend_from_slice(&fields.number.to_ne_bytes());
    for piece in pieces {
        out.extend_from_slice(&piece.region.to_ne_bytes());
        out.extend_from_slice(&piece.len.to_ne_bytes());
        out.extend_from_slice(&piece.offset.to_ne_bytes());
    }
    out.extend_from_slice(head);
}

impl FileRecord {
    fn parse(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; FILE_RECORD] = packet.try_into().ok()?;
        let [FILE, kind, 0, 0, r0, r1, r2, r3, size @ ..] = *packet else {
            return None;
        };
        let region = u32::from_ne_bytes([r0, r1, r2, r3]);
        let size = u64::from_ne_bytes(size);
        match kind {
            MEMORY => Some(Self::Memory { region, size }),
            REVOKED if size == 0 => Some(Self::Revoked { region }),
            NOTES if region == 0 && size == 0 => Some(Self::Notes),
            RING if region == 0 && size == 0 => Some(Self::Ring),
            WAKE if region == 0 && size == 0 => Some(Self::Wake),
            _ => None,
        }
    }

    /// Returns the packet.
    pub(super) fn emit(self) -> [u8; FILE_RECORD] {
        let (kind, region, size) = match self {
            Self::Memory { region, size } => (MEMORY, region, size),
            Self::Revoked { region } => (REVOKED, region, 0),
            Self::Notes => (NOTES, 0, 0),
            Self::Ring => (RING, 0, 0),
            Self::Wake => (WAKE, 0, 0),
        };
        let mut out = [0; FILE_RECORD];
        out[..2].copy_from_slice(&[FILE, kind]);
        out[4..8].copy_from_slice(&region.to_ne_bytes());
        out[8..].copy_from_slice(&size.to_ne_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_and_each_file_record_are_parsed_as_they_were_emitted() {
        let pieces =
            [(0, 5, 4096), (63, u32::MAX, u64::MAX)].map(|(region, len, offset)| PieceRecord {
                region,
                len,
                offset,
            });
        for (until, head) in [
            (BorrowedUntil::Copied, &[7; 66][..]),
            (BorrowedUntil::Read, &[]),
        ] {
            let fields = FrameFields {
                header: VnetHeader::default(),
                slot: 300,
                number: 0x0102_0304,
                until,
            };
            let mut out = Vec::new();
            emit_frame(&mut out, fields, &pieces, head);
            let Packet::Frame(record) = Packet::parse(&out) else {
                panic!("{out:?}");
            };
            assert_eq!(
                (record.slot, record.number, record.until, record.head),
                (300, 0x0102_0304, until, head)
            );
            assert!(record.pieces().eq(pieces));
            for len in VnetHeader::LEN..out.len() {
                assert_eq!(Packet::parse(&out[..len]), Packet::Bad, "{len}");
            }
        }
        for record in [
            FileRecord::Memory {
                region: 9,
                size: 1 << 40,
            },
            FileRecord::Revoked { region: 9 },
            FileRecord::Notes,
            FileRecord::Ring,
            FileRecord::Wake,
        ] {
            assert_eq!(Packet::parse(&record.emit()), Packet::File(record));
            assert_eq!(Packet::parse(&record.emit()[..15]), Packet::Bad);
        }
    }

    #[test]
    fn other_packets_are_frames_and_odd_flags_are_bad() {
        let mut packet = vec![0; VnetHeader::LEN];
        packet.extend_from_slice(b"frame");
        assert!(matches!(
            Packet::parse(&packet),
            Packet::Inline {
                frame: b"frame",
                ..
            }
        ));
        packet[0] = BY_REFERENCE | FILE;
        assert_eq!(Packet::parse(&packet), Packet::Bad);
        assert!(matches!(
            Packet::parse(&[0xff; 9]),
            Packet::Inline { frame: [], .. }
        ));
    }
}
