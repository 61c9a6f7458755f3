//! The headers of replies: simple, and chunks of structured ones.

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Flag of the last chunk of a reply.
const FLAG_DONE: u16 = 1 << 0;
const TYPE_NONE: u16 = 0;
const TYPE_OFFSET_DATA: u16 = 1;
const TYPE_OFFSET_HOLE: u16 = 2;
/// Types of errors have this bit.
const TYPE_ERROR: u16 = 1 << 15;
/// Bytes that tell the kind of a header: a whole simple reply.
const FIRST_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
const CHUNK_BYTES: usize = 20;
/// Longest payload of an error: code, length and text, which has at most 4096 bytes, and an offset.
const MAX_ERROR_BYTES: u32 = 4 + 2 + 4096 + 8;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cookie: u64,
    /// Whether the reply ends with this header and its payload.
    pub(crate) is_last: bool,
    pub(crate) content: Content,
}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A simple reply without an error: all requested bytes.
    All,
    /// This many bytes for this offset.
    Data {
        at: u64,
        len: u64,
    },
    /// Nothing: there are this many zeros at this offset.
    Hole {
        at: u64,
        len: u64,
    },
    Nothing,
    /// Nothing: the server failed, with this errno of Linux.
    Error(u32),
}

/// The outcome of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// This many more bytes belong to the header.
    More(usize),
    Whole(Header),
}

/// Parses a header, or tells how much of it is missing. The caller reads exactly that much, so that no payload is copied.
///
/// # Errors
/// The bytes are no reply.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, &'static str> {
    if bytes.len() < FIRST_BYTES {
        return Ok(Parsed::More(FIRST_BYTES - bytes.len()));
    }
    match u32_at(bytes, 0) {
        Some(SIMPLE_MAGIC) => Ok(simple(bytes)),
        Some(CHUNK_MAGIC) => chunk(bytes),
        _ => Err("a reply does not begin as one"),
    }
}

fn simple(bytes: &[u8]) -> Parsed {
    let error = u32_at(bytes, 4).unwrap_or_default();
    Parsed::Whole(Header {
        cookie: u64_at(bytes, 8).unwrap_or_default(),
        is_last: true,
        content: match error {
            0 => Content::All,
            error => Content::Error(error),
        },
    })
}

fn chunk(bytes: &[u8]) -> Result<Parsed, &'static str> {
    let (flags, kind) = (u16_at(bytes, 4), u16_at(bytes, 6));
    let kind = kind.unwrap_or_default();
    let header = |content| {
        Parsed::Whole(Header {
            cookie: u64_at(bytes, 8).unwrap_or_default(),
            is_last: flags.unwrap_or_default() & FLAG_DONE != 0,
            content,
        })
    };
    let fields = match kind {
        TYPE_OFFSET_DATA => 8,
        TYPE_OFFSET_HOLE => 12,
        _ => 0,
    };
    let known = CHUNK_BYTES + fields;
    let Some(len) = u32_at(bytes, FIRST_BYTES).filter(|_| bytes.len() >= known) else {
        return Ok(Parsed::More(known.saturating_sub(bytes.len())));
    };
    let at = u64_at(bytes, CHUNK_BYTES).unwrap_or_default();
    match kind {
        TYPE_NONE if len == 0 => Ok(header(Content::Nothing)),
        TYPE_OFFSET_DATA if len > 8 => {
            let len = u64::from(len) - 8;
            Ok(header(Content::Data { at, len }))
        }
        TYPE_OFFSET_HOLE if len == 12 => {
            let len = u32_at(bytes, CHUNK_BYTES + 8).unwrap_or_default();
            Ok(header(Content::Hole {
                at,
                len: len.into(),
            }))
        }
        kind if kind & TYPE_ERROR != 0 && (6..=MAX_ERROR_BYTES).contains(&len) => {
            let whole = CHUNK_BYTES + len as usize;
            match whole.checked_sub(bytes.len()).filter(|more| *more > 0) {
                Some(more) => Ok(Parsed::More(more)),
                None => {
                    let error = u32_at(bytes, CHUNK_BYTES).unwrap_or_default();
                    Ok(header(Content::Error(error)))
                }
            }
        }
        _ => Err("a chunk of an unknown type, or of a wrong length"),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simple(error: u32) -> Vec<u8> {
        let mut bytes = SIMPLE_MAGIC.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes
    }

    fn chunk(flags: u16, kind: u16, len: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = CHUNK_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend_from_slice(rest);
        bytes
    }

    /// Parses byte by byte, as little as a connection may deliver; returns the header and its length.
    fn parsed(bytes: &[u8]) -> Result<(Header, usize), &'static str> {
        for len in 0..=bytes.len() {
            match parse(&bytes[..len])? {
                Parsed::More(more) => assert!(more > 0, "{len}"),
                Parsed::Whole(header) => return Ok((header, len)),
            }
        }
        Err("incomplete")
    }

    #[test]
    fn each_header_is_as_long_as_it_is_and_no_longer() {
        let payload = [0xff; 40];
        let offset = 4096u64.to_be_bytes();
        let hole = [&offset[..], &512u32.to_be_bytes()].concat();
        let error = [&5u32.to_be_bytes()[..], &[0, 3], b"bad"].concat();
        for (bytes, len, is_last, content) in [
            (simple(0), 16, true, Content::All),
            (simple(22), 16, true, Content::Error(22)),
            (chunk(1, 0, 0, &[]), 20, true, Content::Nothing),
            (
                chunk(0, 1, 48, &offset),
                28,
                false,
                Content::Data { at: 4096, len: 40 },
            ),
            (
                chunk(1, 2, 12, &hole),
                32,
                true,
                Content::Hole { at: 4096, len: 512 },
            ),
            (chunk(1, 0x8001, 9, &error), 29, true, Content::Error(5)),
        ] {
            let bytes = [&bytes[..], &payload].concat();
            let (header, used) = parsed(&bytes).unwrap();
            assert_eq!(
                (used, header.is_last, header.content),
                (len, is_last, content)
            );
            assert_eq!(header.cookie, 7);
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in [
            vec![0; 16],
            chunk(1, 0, 1, &[0; 40]),
            chunk(1, 1, 8, &[0; 40]),
            chunk(1, 1, 0, &[0; 40]),
            chunk(1, 2, 13, &[0; 40]),
            chunk(1, 5, 0, &[0; 40]),
            chunk(1, 0x8001, 5, &[0; 40]),
            chunk(1, 0x8001, u32::MAX, &[0; 40]),
        ] {
            assert!(parsed(&bytes).is_err(), "{bytes:?}");
        }
    }
}
