//! Values of the fields of a response.

use std::ops::Range;

use crate::base64;
use crate::sum::{SumKind, SumValue};

/// Codings of a body that change its bytes (the registry "HTTP Content Coding", and old names). Others mean nothing: stores send what somebody has
/// written beside an object, such as `aws-chunked`, which is how it was uploaded.
const CODINGS: [&str; 12] = [
    "aes128gcm",
    "br",
    "compress",
    "dcb",
    "dcz",
    "deflate",
    "exi",
    "gzip",
    "pack200-gzip",
    "x-compress",
    "x-gzip",
    "zstd",
];

/// Returns whether a Content-Encoding has a coding that changes the bytes.
#[inline]
pub(super) fn changes_bytes(text: &str) -> bool {
    let mut codings = text
        .split(',')
        .map(|coding| coding.trim().to_ascii_lowercase());
    codings.any(|coding| CODINGS.contains(&coding.as_str()))
}

/// What a file is recognised by: a change of either means other bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The strong validator. A weak one does not promise equal bytes (RFC 9110 8.8.1).
    pub(crate) etag: Option<String>,
    /// The time of the last change.
    pub(crate) modified: Option<String>,
}

impl Validators {
    #[inline]
    pub(super) fn set_etag(&mut self, text: &str) {
        if !text.starts_with("W/") {
            self.etag = Some(text.to_owned());
        }
    }

    /// Returns whether the file is an object that was uploaded in parts: their number is at the end of its ETag then.
    pub(super) fn is_of_parts(&self) -> bool {
        let etag = self.etag.as_deref().unwrap_or_default();
        let parts = etag.trim_matches('"').rsplit_once('-');
        parts.is_some_and(|(_, parts)| decimal(parts).is_some())
    }

    /// Returns what was and what is, if the file has changed. Only values of the same kind are compared; where both have an ETag, dates may
    /// differ: replicas of a server have different ones.
    #[inline]
    pub(super) fn change<'a>(&'a self, now: &'a Self) -> Option<(&'a str, &'a str)> {
        let tags = self.etag.as_deref().zip(now.etag.as_deref());
        let dates = self.modified.as_deref().zip(now.modified.as_deref());
        tags.or(dates).filter(|(then, now)| then != now)
    }
}

/// The field Content-Range (RFC 9110 14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The bytes of the body; `None` in the answer to a range that the file does not have.
    pub bytes: Option<Range<u64>>,
    /// Size of the file, if the server tells.
    pub size: Option<u64>,
}

/// Parses `bytes 0-99/1000`, `bytes 0-99/*` or `bytes */1000`.
#[inline]
pub(super) fn content_range(text: &str) -> Option<ContentRange> {
    let (unit, rest) = text.split_once(' ')?;
    let (range, size) = rest.trim().split_once('/')?;
    let size = match size {
        "*" => None,
        digits => Some(decimal(digits)?),
    };
    let bytes = match range {
        "*" => None,
        range => {
            let (first, last) = range.split_once('-')?;
            let (first, end) = (decimal(first)?, decimal(last)?.checked_add(1)?);
            let is_inside = size.is_none_or(|size| end <= size);
            Some((first < end && is_inside).then_some(first..end)?)
        }
    };
    unit.eq_ignore_ascii_case("bytes")
        .then_some(ContentRange { bytes, size })
}

/// A checksum of the whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSum {
    /// How it is computed.
    pub kind: SumKind,
    /// Its value.
    pub value: SumValue,
    /// Which bytes it is of.
    pub of: SumOf,
}

/// What a checksum is of. The order is the one in which they are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SumOf {
    /// All bytes.
    Bytes,
    /// The checksums of so many parts, one after another.
    Parts(u32),
    /// The server does not say which of these.
    Unknown,
}

impl FileSum {
    /// Parses a checksum in base64, the high byte first, and `-N` after it for one of the checksums of N parts.
    pub(super) fn parse(kind: SumKind, text: &str) -> Option<Self> {
        let (value, of) = match text.split_once('-') {
            None => (text, SumOf::Bytes),
            Some((value, parts)) => (value, SumOf::Parts(decimal(parts)?.try_into().ok()?)),
        };
        Some(Self {
            kind,
            value: SumValue::new(base64::decode(value, kind.bytes())?),
            of,
        })
    }

    /// Returns a key by which the one is chosen that is compared: the lowest.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (self.of, self.kind)
    }
}

/// Returns the kind of a checksum by the end of the name of its field, after `x-amz-checksum-`.
#[inline]
pub(super) fn sum_kind(name: &str) -> Option<SumKind> {
    match name {
        "crc32" => Some(SumKind::Crc32),
        "crc32c" => Some(SumKind::Crc32c),
        "crc64nvme" => Some(SumKind::Crc64Nvme),
        "sha1" => Some(SumKind::Sha1),
        "sha256" => Some(SumKind::Sha256),
        _ => None,
    }
}

/// Parses digits only: `str::parse` accepts a sign.
#[inline]
pub(super) fn decimal(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Returns the beginning of a value for a message, which quotes it.
pub(super) fn beginning(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Returns the value of a field with its bytes outside of ASCII percent-encoded.
pub(super) fn ascii(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for &byte in value {
        match byte.is_ascii() {
            true => text.push(byte.into()),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_makes_no_sense_is_none() {
        let range = |text: &str| content_range(text);
        let unknown = range("bytes */77").unwrap();
        assert_eq!((unknown.bytes, unknown.size), (None, Some(77)));
        for text in [
            "bytes 5-4/10",
            "bytes 0-10/10",
            "bytes 0-18446744073709551615/*",
            "bytes 0--1/0",
            "bytes 0-0/0",
            "lines 0-1/10",
            "bytes",
            "",
        ] {
            assert_eq!(range(text), None, "{text}");
        }
    }

    #[test]
    fn validators_are_compared_with_their_own_kind() {
        let of = |etag: &str, modified: &str| {
            let mut found = Validators::default();
            let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            if let Some(etag) = set(etag) {
                found.set_etag(&etag);
            }
            found.modified = set(modified);
            found
        };
        for (then, now, changed) in [
            (of("\"a\"", "1"), of("", "1"), false),
            (of("\"a\"", ""), of("", "1"), false),
            (of("", "1"), of("\"a\"", "1"), false),
            (of("\"a\"", "1"), of("\"a\"", "2"), false),
            (of("\"a\"", "1"), of("\"b\"", "1"), true),
            (of("", "1"), of("", "2"), true),
            (of("W/\"a\"", "1"), of("W/\"b\"", "1"), false),
            (of("W/\"a\"", "1"), of("\"b\"", "2"), true),
        ] {
            assert_eq!(then.change(&now).is_some(), changed, "{then:?} {now:?}");
        }
    }
}
