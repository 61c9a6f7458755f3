//! The records of the control connection: a header of 32 bytes, the ranges of memory that it names, and bytes.
//!
//! All numbers are little endian. A peer's bytes become a [`Record`] in [`Record::decode`], which knows nothing of memory:
//! keys and ranges are judged where the regions are.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the protocol. Another one is refused when the connection is made, and when metadata are loaded.
pub(crate) const VERSION: u16 = 3;

pub(crate) const HEADER_BYTES: usize = size_of::<Raw>();
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

/// Most ranges of one piece: those of one `recvmsg` (`UIO_MAXIOV`).
pub(crate) const MAX_ENTRIES: usize = 1024;

/// In place of a connection: the reader copies the bytes from the memory of the other process.
pub(crate) const NEAR: u16 = u16::MAX;

/// Most bytes of one piece.
pub(crate) const MAX_PIECE_BYTES: u64 = 1 << 20;

/// Most payload bytes behind the record of a piece, in the control connection: then both are one packet.
pub(crate) const MAX_INLINE_BYTES: usize = 8 << 10;

/// Longest notification.
pub(crate) const MAX_NOTIFICATION_BYTES: usize = 1 << 20;

/// Longest name of an agent.
pub(crate) const MAX_NAME_BYTES: usize = 4096;

/// The longest record.
pub(crate) const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_NOTIFICATION_BYTES;

const _: () =
    assert!(HEADER_BYTES + MAX_ENTRIES * ENTRY_BYTES + MAX_INLINE_BYTES <= MAX_RECORD_BYTES);

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: U16,
    stream: U16,
    entries: U32,
    id: U64,
    bytes: U64,
    tail: U32,
    check: U32,
}

/// A range of memory of the side that receives the record.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) key: U64,
    pub(crate) offset: U64,
    pub(crate) len: U64,
}

/// In each header: bytes of another protocol are recognised at once.
const CHECK: u32 = u32::from_le_bytes(*b"dvmX");

/// Which part of a transfer a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The transfer, as the side that has begun it calls it.
    pub(crate) transfer: u64,
    /// The connection with the bytes, from 1 on; 0: they follow the record.
    pub(crate) stream: u16,
    pub(crate) entries: u32,
    pub(crate) bytes: u64,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// First on each connection. On the one for control `number` is the cookie of the agent that is called, and `tail` bytes of the caller's
    /// name follow; on one for payload it is the number of the session.
    Hello {
        version: u16,
        stream: u16,
        streams: u32,
        number: u64,
        tail: u32,
    },
    /// Answer to the first: the session exists, and expects its connections for payload. Whether the target can read the memory of the
    /// initiator's process.
    Welcome { session: u64, is_near: bool },
    /// All connections are there.
    Ready,
    /// A write begins: `bytes` in all. `notification` bytes of a message follow, if there is one.
    Write {
        transfer: u64,
        bytes: u64,
        notification: Option<u32>,
    },
    /// Bytes of a write, and where they go.
    Put(Piece),
    /// Asks for bytes.
    Get(Piece),
    /// The initiator may copy the bytes of the first piece that it has asked to copy itself.
    Granted { transfer: u64 },
    /// A message without a transfer.
    Notify { bytes: u32 },
    /// Every byte of a write is in place.
    Done { transfer: u64 },
    /// No further piece of this write follows, and nobody waits for it.
    Cancel { transfer: u64 },
    /// The side that sends this ends the session.
    Failed(Fault),
}

/// Why a session was ended by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody of this cookie is here: an agent that was restarted.
    Stranger,
    /// Another version.
    Version,
    /// A range that is not registered.
    Region,
    /// A record that the protocol does not allow.
    Protocol,
    /// Memory of the side that is told, which could not be copied from.
    Memory,
    /// A GPU of the side that tells, or payload that did not arrive in its memory.
    Gpu,
}

/// What the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("its bytes are no record of this protocol")]
    Record,
    #[error("a record was longer than allowed")]
    Long,
    #[error("a record came at the wrong time")]
    Order,
    #[error(
        "the ranges of a piece do not add up to its bytes, or are more than those of its transfer"
    )]
    Sum,
    #[error("a piece is for a connection that does not exist")]
    Stream,
    #[error("a range is not registered here")]
    Region,
}

impl Record {
    /// Bytes that follow the header.
    pub(crate) fn behind(&self) -> usize {
        match self {
            Self::Hello { tail, .. } => *tail as usize,
            Self::Write { notification, .. } => notification.unwrap_or(0) as usize,
            Self::Notify { bytes } => *bytes as usize,
            Self::Put(piece) if piece.stream == 0 => piece.entry_bytes() + piece.bytes as usize,
            Self::Put(piece) if piece.stream == NEAR => piece.entry_bytes() + piece.source_bytes(),
            Self::Put(piece) | Self::Get(piece) => piece.entry_bytes(),
            Self::Welcome { .. }
            | Self::Granted { .. }
            | Self::Ready
            | Self::Done { .. }
            | Self::Cancel { .. }
            | Self::Failed(_) => 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let raw = |kind: u16, stream: u16, entries: u32, id: u64, bytes: u64, tail: u32| Raw {
            kind: kind.into(),
            stream: stream.into(),
            entries: entries.into(),
            id: id.into(),
            bytes: bytes.into(),
            tail: tail.into(),
            check: CHECK.into(),
        };
        let of = |kind, it: &Piece| raw(kind, it.stream, it.entries, it.transfer, it.bytes, 0);
        let raw = match self {
            Self::Hello {
                version,
                stream,
                streams,
                number,
                tail,
            } => raw(1, *stream, *streams, *number, u64::from(*version), *tail),
            Self::Welcome { session, is_near } => raw(2, 0, u32::from(*is_near), *session, 0, 0),
            Self::Granted { transfer } => raw(11, 0, 0, *transfer, 0, 0),
            Self::Ready => raw(3, 0, 0, 0, 0, 0),
            Self::Write {
                transfer,
                bytes,
                notification,
            } => {
                let has = u32::from(notification.is_some());
                raw(4, 0, has, *transfer, *bytes, notification.unwrap_or(0))
            }
            Self::Put(piece) => of(5, piece),
            Self::Get(piece) => of(6, piece),
            Self::Notify { bytes } => raw(7, 0, 0, 0, 0, *bytes),
            Self::Done { transfer } => raw(8, 0, 0, *transfer, 0, 0),
            Self::Cancel { transfer } => raw(9, 0, 0, *transfer, 0, 0),
            Self::Failed(fault) => raw(10, 0, 0, fault.code(), 0, 0),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a header, and checks each number against its limit.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Violation> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.check.get() != CHECK {
            return Err(Violation::Record);
        }
        let (id, tail) = (raw.id.get(), raw.tail.get());
        let at_most = |limit: usize| match tail as usize <= limit {
            true => Ok(tail),
            false => Err(Violation::Long),
        };
        Ok(match raw.kind.get() {
            1 => Self::Hello {
                version: u16::try_from(raw.bytes.get()).map_err(|_| Violation::Record)?,
                stream: raw.stream.get(),
                streams: raw.entries.get(),
                number: id,
                tail: at_most(CALLER_BYTES + MAX_NAME_BYTES)?,
            },
            2 => Self::Welcome {
                session: id,
                is_near: raw.entries.get() != 0,
            },
            11 => Self::Granted { transfer: id },
            3 => Self::Ready,
            4 => {
                let notification = at_most(MAX_NOTIFICATION_BYTES)?;
                Self::Write {
                    transfer: id,
                    bytes: raw.bytes.get(),
                    notification: (raw.entries.get() != 0).then_some(notification),
                }
            }
            5 => Self::Put(raw.piece()?),
            6 => Self::Get(raw.piece()?),
            7 => Self::Notify {
                bytes: at_most(MAX_NOTIFICATION_BYTES)?,
            },
            8 => Self::Done { transfer: id },
            9 => Self::Cancel { transfer: id },
            10 => Self::Failed(Fault::of_code(id)),
            _ => return Err(Violation::Record),
        })
    }
}

impl Raw {
    fn piece(&self) -> Result<Piece, Violation> {
        let (entries, bytes, stream) = (self.entries.get(), self.bytes.get(), self.stream.get());
        let limit = match stream {
            0 => MAX_INLINE_BYTES as u64,
            _ => MAX_PIECE_BYTES,
        };
        if entries as usize > MAX_ENTRIES || bytes > limit {
            return Err(Violation::Long);
        }
        if entries == 0 || bytes == 0 {
            return Err(Violation::Sum);
        }
        Ok(Piece {
            transfer: self.id.get(),
            stream,
            entries,
            bytes,
        })
    }
}

/// Reads the addresses of the ranges of a piece in the process of its sender: what follows the ranges if the reader copies the bytes.
pub(crate) fn sources(bytes: &[u8]) -> Result<Vec<u64>, Violation> {
    let sources = <[U64]>::ref_from_bytes(bytes).map_err(|_| Violation::Record)?;
    Ok(sources.iter().map(|source| source.get()).collect())
}

impl Piece {
    fn entry_bytes(&self) -> usize {
        self.entries as usize * ENTRY_BYTES
    }

    fn source_bytes(&self) -> usize {
        self.entries as usize * size_of::<U64>()
    }

    /// Splits what follows the record into ranges and the rest: payload, or addresses ([`sources`]).
    pub(crate) fn split<'a>(&self, behind: &'a [u8]) -> Result<(&'a [Entry], &'a [u8]), Violation> {
        let (entries, payload) = behind
            .split_at_checked(self.entry_bytes())
            .ok_or(Violation::Record)?;
        let entries = <[Entry]>::ref_from_bytes(entries).map_err(|_| Violation::Record)?;
        Ok((entries, payload))
    }
}

/// What follows the first record on a connection for control, before the caller's name.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Caller {
    /// Where the caller has its cookie in its memory: whoever can read it there can read the caller's memory.
    pub(crate) token: U64,
    pub(crate) cookie: U64,
}

pub(crate) const CALLER_BYTES: usize = size_of::<Caller>();

impl Entry {
    pub(crate) fn new(key: u64, offset: u64, len: u64) -> Self {
        Self {
            key: key.into(),
            offset: offset.into(),
            len: len.into(),
        }
    }
}

impl Fault {
    fn code(self) -> u64 {
        match self {
            Self::Stranger => 1,
            Self::Version => 2,
            Self::Region => 3,
            Self::Protocol => 4,
            Self::Memory => 5,
            Self::Gpu => 6,
        }
    }

    /// What a later release adds is a fault, too.
    fn of_code(code: u64) -> Self {
        match code {
            1 => Self::Stranger,
            2 => Self::Version,
            3 => Self::Region,
            5 => Self::Memory,
            6 => Self::Gpu,
            _ => Self::Protocol,
        }
    }
}

impl Violation {
    /// Returns what the peer is told.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::Region => Fault::Region,
            _ => Fault::Protocol,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: u16, entries: u32, bytes: u64) -> Piece {
        Piece {
            transfer: 7,
            stream,
            entries,
            bytes,
        }
    }

    #[test]
    fn records_survive_as_bytes() {
        let all = [
            Record::Hello {
                version: VERSION,
                stream: 3,
                streams: 4,
                number: u64::MAX,
                tail: 5,
            },
            Record::Welcome {
                session: 1,
                is_near: true,
            },
            Record::Granted { transfer: 5 },
            Record::Put(piece(NEAR, 2, 9)),
            Record::Ready,
            Record::Write {
                transfer: 2,
                bytes: 1 << 40,
                notification: None,
            },
            Record::Write {
                transfer: 2,
                bytes: 0,
                notification: Some(0),
            },
            Record::Put(piece(0, 1, 8192)),
            Record::Put(piece(2, 1024, MAX_PIECE_BYTES)),
            Record::Get(piece(1, 1, 1)),
            Record::Notify { bytes: 9 },
            Record::Done { transfer: 3 },
            Record::Cancel { transfer: 4 },
            Record::Failed(Fault::Stranger),
            Record::Failed(Fault::Region),
            Record::Failed(Fault::Gpu),
        ];
        for record in all {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn numbers_beyond_their_limits_are_refused() {
        let cases = [
            (
                Record::Notify {
                    bytes: (1 << 20) + 1,
                },
                Violation::Long,
            ),
            (Record::Put(piece(0, 1, 8193)), Violation::Long),
            (
                Record::Put(piece(1, 1, MAX_PIECE_BYTES + 1)),
                Violation::Long,
            ),
            (Record::Get(piece(1, 1025, 1)), Violation::Long),
            (Record::Get(piece(1, 0, 1)), Violation::Sum),
            (Record::Put(piece(1, 1, 0)), Violation::Sum),
        ];
        for (record, violation) in cases {
            assert_eq!(
                Record::decode(&record.encode()),
                Err(violation),
                "{record:?}"
            );
        }
        assert_eq!(
            Record::decode(b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n"),
            Err(Violation::Record)
        );
        let mut unknown = Record::Ready.encode();
        unknown[0] = 99;
        assert_eq!(Record::decode(&unknown), Err(Violation::Record));
    }

    #[test]
    fn a_piece_is_followed_by_its_ranges_and_then_its_bytes() {
        let it = piece(0, 2, 3);
        let mut behind = Entry::new(1, 2, 1).as_bytes().to_vec();
        behind.extend_from_slice(Entry::new(3, 4, 2).as_bytes());
        behind.extend_from_slice(b"abc");
        assert_eq!(Record::Put(it).behind(), behind.len());
        let (entries, payload) = it.split(&behind).unwrap();
        assert_eq!(entries[1], Entry::new(3, 4, 2));
        assert_eq!(payload, b"abc");
        assert_eq!(it.split(&behind[..40]), Err(Violation::Record));
    }
}
