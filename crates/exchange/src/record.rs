//! The records of the control stream: 64 bytes each, little-endian, in both directions. Some are followed by bytes: a short
//! message, or a notification.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;

/// Most bytes that follow a record. No chunk is shorter, so a message of this length is one chunk.
pub const INLINE_BYTES: usize = 4096;

/// Version of the records and of their meaning. Both sides must have the same. Since version 2 bytes can follow a record.
pub const VERSION: u32 = 2;

/// First field of a hello: what connects to the control port by mistake does not send it ("devmemXC").
const MAGIC: u64 = u64::from_le_bytes(*b"devmemXC");

/// A record as it is on the control stream. Fields that a kind does not use are zero.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    part: u8,
    stream: U16,
    /// Reserved for several channels over one endpoint; 0.
    channel: U32,
    op: U64,
    offset: U64,
    len: U64,
    total: U64,
    tag: U32,
    ip: [u8; 16],
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<Raw>() == RECORD_BYTES);

/// Where the bytes of a chunk are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Behind the record, in the control stream: at most [`INLINE_BYTES`].
    Control,
    /// On the data stream of this index.
    Data(u16),
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// First record of the side that connects.
    Hello(Hello),
    /// Follows the hello once for each data stream: the local address of the side that connects.
    Address {
        /// Index of the data stream.
        stream: u16,
        /// The address that the other side sees as the peer's.
        local: SocketAddr,
    },
    /// Answer to the hello, sent when every data stream is connected.
    Ready,
    /// One part of a receive: permits one message of at most `len` bytes.
    Posted {
        /// The receive, named by its side.
        op: u64,
        /// The part of it.
        part: u8,
        /// Bytes of room.
        len: u64,
        /// Only a message with this tag goes there.
        tag: u32,
    },
    /// The next bytes of a stream belong to a posted part, or to the answer of a get.
    Chunk {
        /// The receive or get.
        op: u64,
        /// The part of it; 0 for a get.
        part: u8,
        /// The stream with the bytes.
        carrier: Carrier,
        /// Where in the message they begin.
        offset: u64,
        /// How many; 0 only in a message without bytes, and only behind the record.
        len: u64,
        /// Bytes of the whole message.
        total: u64,
    },
    /// The next bytes of a stream belong into a published region.
    Put {
        /// The region.
        key: u64,
        /// The stream with the bytes.
        carrier: Carrier,
        /// Where in the region they go.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Asks for bytes of a published region.
    Get {
        /// The get, named by the side that asks.
        op: u64,
        /// The region.
        key: u64,
        /// Where in the region the bytes begin.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// A notification. Its bytes follow the record.
    Notify {
        /// How many; at most [`INLINE_BYTES`].
        len: u64,
    },
    /// The sender of this record closes the endpoint and posts nothing more.
    Bye,
    /// The sender of this record has broken the endpoint.
    Failed(Failure),
}

/// What the side that connects says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Cookie of the ticket: which listener is meant.
    pub cookie: u64,
    /// Number of data streams.
    pub streams: u16,
    /// Length of a chunk that is not the last one of its message.
    pub chunk: u64,
}

/// Why the other side broke the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A message was longer than the room posted for its tag.
    TooLong {
        /// Bytes of the message.
        sent: u64,
        /// Bytes of room.
        posted: u64,
        /// The tag.
        tag: u32,
    },
    /// This side has sent something that the protocol does not allow.
    Protocol,
    /// A put or get named a region or a range that is not published.
    Region,
    /// Anything else: a stream broke, a memory is gone.
    Other,
}

/// Bytes that are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// The kind is not known.
    #[error("record of the unknown kind {0}")]
    Kind(u8),
    /// The hello does not begin with the magic number.
    #[error("the hello is not one of this protocol")]
    Magic,
    /// The hello has another version.
    #[error(
        "the peer speaks version {0} of the protocol, this side version {VERSION}; use the same release on both sides"
    )]
    Version(u32),
    /// A field has a value that no encoder writes.
    #[error("a record of kind {0} has a field with a value that it cannot have")]
    Field(u8),
}

const HELLO: u8 = 1;
const ADDRESS: u8 = 2;
const READY: u8 = 3;
const POSTED: u8 = 4;
const CHUNK: u8 = 5;
const PUT: u8 = 6;
const GET: u8 = 7;
const NOTIFY: u8 = 8;
const BYE: u8 = 9;
const FAILED: u8 = 10;

const FAILED_TOO_LONG: u8 = 1;
const FAILED_PROTOCOL: u8 = 2;
const FAILED_REGION: u8 = 3;
const FAILED_OTHER: u8 = 4;

/// [`Carrier::Control`] as the number of a stream.
const CONTROL: u16 = u16::MAX;

impl Raw {
    const EMPTY: Self = Self {
        kind: 0,
        part: 0,
        stream: U16::ZERO,
        channel: U32::ZERO,
        op: U64::ZERO,
        offset: U64::ZERO,
        len: U64::ZERO,
        total: U64::ZERO,
        tag: U32::ZERO,
        ip: [0; 16],
        reserved: [0; 4],
    };

    fn of(kind: u8) -> Self {
        Self {
            kind,
            ..Self::EMPTY
        }
    }
}

impl Raw {
    /// A record about `len` bytes at `offset` of an operation or region.
    fn of_bytes(kind: u8, op: u64, offset: u64, len: u64) -> Self {
        Self {
            op: op.into(),
            offset: offset.into(),
            len: len.into(),
            ..Self::of(kind)
        }
    }
}

impl Carrier {
    fn raw(self) -> U16 {
        match self {
            Self::Control => CONTROL,
            Self::Data(stream) => stream,
        }
        .into()
    }

    /// Returns where the bytes of a record are. `None`: there are more than may follow a record, or a data stream would have none.
    fn of(raw: &Raw) -> Option<Self> {
        match (raw.stream.get(), raw.len.get()) {
            (CONTROL, len) => (len <= INLINE_BYTES as u64).then_some(Self::Control),
            (_, 0) => None,
            (stream, _) => Some(Self::Data(stream)),
        }
    }
}

impl Record {
    /// Returns how many bytes follow the record: at most [`INLINE_BYTES`] if it was decoded.
    pub fn inline_bytes(&self) -> usize {
        let len = match self {
            Self::Chunk { carrier, len, .. } | Self::Put { carrier, len, .. }
                if *carrier == Carrier::Control =>
            {
                *len
            }
            Self::Notify { len } => *len,
            _ => 0,
        };
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    /// Writes the record.
    pub fn encode(self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(self.raw())
    }

    fn raw(self) -> Raw {
        match self {
            Self::Hello(hello) => Raw {
                stream: hello.streams.into(),
                total: MAGIC.into(),
                tag: VERSION.into(),
                ..Raw::of_bytes(HELLO, hello.cookie, 0, hello.chunk)
            },
            Self::Address { stream, local } => raw_address(stream, local),
            Self::Ready => Raw::of(READY),
            Self::Posted { op, part, len, tag } => Raw {
                part,
                tag: tag.into(),
                ..Raw::of_bytes(POSTED, op, 0, len)
            },
            Self::Chunk {
                op,
                part,
                carrier,
                offset,
                len,
                total,
            } => Raw {
                part,
                stream: carrier.raw(),
                total: total.into(),
                ..Raw::of_bytes(CHUNK, op, offset, len)
            },
            Self::Put {
                key,
                carrier,
                offset,
                len,
            } => Raw {
                stream: carrier.raw(),
                ..Raw::of_bytes(PUT, key, offset, len)
            },
            Self::Get {
                op,
                key,
                offset,
                len,
            } => Raw {
                total: key.into(),
                ..Raw::of_bytes(GET, op, offset, len)
            },
            Self::Notify { len } => Raw::of_bytes(NOTIFY, 0, 0, len),
            Self::Bye => Raw::of(BYE),
            Self::Failed(failure) => raw_failure(failure),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`BadRecord`] for bytes that [`encode`](Self::encode) never writes.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, BadRecord> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        let record = match raw.kind {
            HELLO => Self::Hello(hello(&raw)?),
            ADDRESS => Self::Address {
                stream: raw.stream.get(),
                local: address(&raw).ok_or(BadRecord::Field(ADDRESS))?,
            },
            READY => Self::Ready,
            POSTED => Self::Posted {
                op: raw.op.get(),
                part: raw.part,
                len: raw.len.get(),
                tag: raw.tag.get(),
            },
            CHUNK => Self::Chunk {
                op: raw.op.get(),
                part: raw.part,
                carrier: Carrier::of(&raw).ok_or(BadRecord::Field(CHUNK))?,
                offset: raw.offset.get(),
                len: raw.len.get(),
                total: raw.total.get(),
            },
            PUT => Self::Put {
                key: raw.op.get(),
                carrier: Carrier::of(&raw).ok_or(BadRecord::Field(PUT))?,
                offset: raw.offset.get(),
                len: raw.len.get(),
            },
            GET => Self::Get {
                op: raw.op.get(),
                key: raw.total.get(),
                offset: raw.offset.get(),
                len: raw.len.get(),
            },
            NOTIFY if raw.len.get() > INLINE_BYTES as u64 => return Err(BadRecord::Field(NOTIFY)),
            NOTIFY => Self::Notify { len: raw.len.get() },
            BYE => Self::Bye,
            FAILED => Self::Failed(failure(&raw).ok_or(BadRecord::Field(FAILED))?),
            kind => return Err(BadRecord::Kind(kind)),
        };
        // A field that the kind does not use must be zero, so that a later version can use it.
        if record.raw() != raw {
            return Err(BadRecord::Field(raw.kind));
        }
        Ok(record)
    }
}

fn hello(raw: &Raw) -> Result<Hello, BadRecord> {
    if raw.total.get() != MAGIC {
        return Err(BadRecord::Magic);
    }
    if raw.tag.get() != VERSION {
        return Err(BadRecord::Version(raw.tag.get()));
    }
    Ok(Hello {
        cookie: raw.op.get(),
        streams: raw.stream.get(),
        chunk: raw.len.get(),
    })
}

/// `part` is the address family: 4 or 6; `tag` is the port.
fn raw_address(stream: u16, local: SocketAddr) -> Raw {
    let mut octets = [0; 16];
    let part = match local.ip() {
        IpAddr::V4(ip) => {
            octets[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            octets = ip.octets();
            6
        }
    };
    Raw {
        part,
        stream: stream.into(),
        tag: u32::from(local.port()).into(),
        ip: octets,
        ..Raw::of(ADDRESS)
    }
}

fn address(raw: &Raw) -> Option<SocketAddr> {
    let ip = match raw.part {
        4 => IpAddr::V4(Ipv4Addr::from(*raw.ip.first_chunk::<4>()?)),
        6 => IpAddr::V6(Ipv6Addr::from(raw.ip)),
        _ => return None,
    };
    let port = u16::try_from(raw.tag.get()).ok()?;
    Some(SocketAddr::new(ip, port))
}

fn raw_failure(failure: Failure) -> Raw {
    let reason = |part| Raw {
        part,
        ..Raw::of(FAILED)
    };
    match failure {
        Failure::TooLong { sent, posted, tag } => Raw {
            len: posted.into(),
            total: sent.into(),
            tag: tag.into(),
            ..reason(FAILED_TOO_LONG)
        },
        Failure::Protocol => reason(FAILED_PROTOCOL),
        Failure::Region => reason(FAILED_REGION),
        Failure::Other => reason(FAILED_OTHER),
    }
}

fn failure(raw: &Raw) -> Option<Failure> {
    Some(match raw.part {
        FAILED_TOO_LONG => Failure::TooLong {
            sent: raw.total.get(),
            posted: raw.len.get(),
            tag: raw.tag.get(),
        },
        FAILED_PROTOCOL => Failure::Protocol,
        FAILED_REGION => Failure::Region,
        FAILED_OTHER => Failure::Other,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Record> {
        vec![
            Record::Hello(Hello {
                cookie: u64::MAX - 1,
                streams: 4,
                chunk: 512 << 10,
            }),
            Record::Address {
                stream: 3,
                local: "10.77.0.2:40000".parse().unwrap(),
            },
            Record::Address {
                stream: 0,
                local: "[fd77::2]:1".parse().unwrap(),
            },
            Record::Ready,
            Record::Posted {
                op: 7,
                part: 5,
                len: 1 << 40,
                tag: u32::MAX,
            },
            Record::Chunk {
                op: 7,
                part: 5,
                carrier: Carrier::Data(2),
                offset: 4096,
                len: 1,
                total: 4097,
            },
            Record::Put {
                key: 9,
                carrier: Carrier::Data(1),
                offset: 3,
                len: 2,
            },
            Record::Get {
                op: 1,
                key: 2,
                offset: 3,
                len: 4,
            },
            Record::Notify { len: 23 },
            Record::Bye,
            Record::Failed(Failure::TooLong {
                sent: 2,
                posted: 1,
                tag: 3,
            }),
            Record::Failed(Failure::Protocol),
            Record::Failed(Failure::Region),
            Record::Failed(Failure::Other),
        ]
    }

    #[test]
    fn each_record_survives_the_wire() {
        for record in one_of_each() {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = Record::Chunk {
            op: 0x0807_0605_0403_0201,
            part: 0xaa,
            carrier: Carrier::Data(0xbbcc),
            offset: 0x10,
            len: 0x20,
            total: 0x30,
        }
        .encode();
        assert_eq!(bytes[..4], [CHUNK, 0xaa, 0xcc, 0xbb]);
        assert_eq!(bytes[4..8], [0; 4]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((bytes[16], bytes[24], bytes[32]), (0x10, 0x20, 0x30));
        assert_eq!(bytes[40..], [0; 24]);
    }

    #[test]
    fn unused_fields_must_be_zero() {
        for record in one_of_each() {
            let mut bytes = record.encode();
            bytes[4] = 1;
            assert_eq!(Record::decode(&bytes), Err(BadRecord::Field(bytes[0])));
        }
    }

    #[test]
    fn unknown_kinds_magics_and_versions_are_named() {
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), Err(BadRecord::Kind(0)));
        let hello = one_of_each()[0].encode();
        let mut stranger = hello;
        stranger[32] ^= 1;
        assert_eq!(Record::decode(&stranger), Err(BadRecord::Magic));
        let mut newer = hello;
        newer[40] = 9;
        assert_eq!(Record::decode(&newer), Err(BadRecord::Version(9)));
    }

    /// A chunk, a put and a notification of so many bytes, which follow their records.
    fn inline(len: u64) -> [Record; 3] {
        let carrier = Carrier::Control;
        [
            Record::Chunk {
                op: 7,
                part: 0,
                carrier,
                offset: 0,
                len,
                total: len,
            },
            Record::Put {
                key: 9,
                carrier,
                offset: 0,
                len,
            },
            Record::Notify { len },
        ]
    }

    #[test]
    fn no_more_bytes_follow_a_record_than_allowed() {
        for len in [0, 1, INLINE_BYTES as u64] {
            for record in inline(len) {
                assert_eq!(Record::decode(&record.encode()), Ok(record));
                assert_eq!(record.inline_bytes() as u64, len);
            }
        }
        for len in [INLINE_BYTES as u64 + 1, u64::MAX] {
            for record in inline(len) {
                let bytes = record.encode();
                assert_eq!(Record::decode(&bytes), Err(BadRecord::Field(bytes[0])));
            }
        }
    }

    #[test]
    fn nothing_follows_the_record_of_a_chunk_on_a_data_stream() {
        let chunk = |len| Record::Chunk {
            op: 7,
            part: 0,
            carrier: Carrier::Data(0),
            offset: 0,
            len,
            total: len,
        };
        assert_eq!(chunk(8).inline_bytes(), 0);
        assert_eq!(
            Record::decode(&chunk(0).encode()),
            Err(BadRecord::Field(CHUNK)),
            "a message without bytes needs no data stream"
        );
    }
}
