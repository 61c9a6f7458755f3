//! The head of a response (RFC 9112 4 and 5): its status and the fields that tell where its body is.

use std::ops::Range;
use std::time::Duration;

use httparse::Status;

use devmem_tcp::text::printable;

use super::date;
use crate::load::base64;

/// Most bytes of a head. Servers send a few hundred.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most fields of a head.
const MAX_FIELDS: usize = 128;

/// A parsed head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) reason: String,
    /// Whether the connection may carry another response.
    pub(crate) is_persistent: bool,
    pub(crate) length: Option<u64>,
    pub(crate) is_chunked: bool,
    pub(crate) range: Option<ContentRange>,
    pub(crate) location: Option<String>,
    /// The strong validator of the file, or the time of its last change.
    pub(crate) version: Option<String>,
    /// How long the server asks to wait (Retry-After).
    pub(crate) retry_after: Option<Duration>,
    retry_at: Option<String>,
    /// The server's time, in seconds.
    date: Option<u64>,
    /// CRC-32C of the whole file.
    pub(crate) crc32c: Option<u32>,
}

/// The field Content-Range (RFC 9110 14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContentRange {
    /// The bytes of the body; `None` in the answer to a range that the file does not have.
    pub(crate) bytes: Option<Range<u64>>,
    /// Size of the file, if the server tells.
    pub(crate) size: Option<u64>,
}

/// Why bytes are not the head of a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("its head is not HTTP: {0}")]
    Syntax(httparse::Error),
    #[error("its head has more than {MAX_HEAD_BYTES} bytes")]
    TooLong,
    #[error("its field {0} is {1:?}")]
    Field(&'static str, String),
    #[error("its body has the coding {0:?}, which was not asked for")]
    Coding(String),
}

/// Parses a head, if it is complete; returns it with its length in bytes.
///
/// # Errors
/// The bytes are not the beginning of a response.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, HeadError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let len = match response.parse(bytes).map_err(HeadError::Syntax)? {
        Status::Complete(len) if len <= MAX_HEAD_BYTES => len,
        Status::Partial if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Status::Complete(_) | Status::Partial => return Err(HeadError::TooLong),
    };
    let mut head = Head {
        status: response.code.unwrap_or_default(),
        reason: printable(response.reason.unwrap_or_default()),
        is_persistent: response.version == Some(1),
        ..Head::default()
    };
    for field in response.headers.iter() {
        let text = String::from_utf8_lossy(field.value);
        head.take(&field.name.to_ascii_lowercase(), text.trim())?;
    }
    head.retry_after = head.wait().map(Duration::from_secs);
    Ok(Some((head, len)))
}

impl Head {
    fn take(&mut self, name: &str, text: &str) -> Result<(), HeadError> {
        match name {
            "content-length" => self.take_length(text)?,
            "transfer-encoding" => match text.eq_ignore_ascii_case("chunked") {
                true => self.is_chunked = true,
                false => return Err(HeadError::Coding(beginning(text))),
            },
            "content-encoding" if !text.is_empty() && !text.eq_ignore_ascii_case("identity") => {
                return Err(HeadError::Coding(beginning(text)));
            }
            "content-range" => {
                let range = content_range(text);
                let wrong = || HeadError::Field("Content-Range", beginning(text));
                self.range = Some(range.ok_or_else(wrong)?);
            }
            "connection" => {
                for option in text.split(',').map(str::trim) {
                    if option.eq_ignore_ascii_case("close") {
                        self.is_persistent = false;
                    }
                }
            }
            "location" => self.location = Some(text.to_owned()),
            // A weak validator does not promise equal bytes (RFC 9110 8.8.1).
            "etag" if !text.starts_with("W/") => self.version = Some(text.to_owned()),
            "last-modified" => {
                self.version.get_or_insert_with(|| text.to_owned());
            }
            // Of Google's storage, and of S3 for objects that were stored with it.
            "x-goog-hash" => {
                let sums = text.split(',').map(str::trim);
                let ours = sums.filter_map(|sum| sum.strip_prefix("crc32c="));
                self.crc32c = ours.filter_map(checksum).next().or(self.crc32c);
            }
            "x-amz-checksum-crc32c" => self.crc32c = checksum(text).or(self.crc32c),
            "date" => self.date = date::seconds(text),
            "retry-after" => self.retry_at = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Returns the seconds of Retry-After: a number, or a time by the clock of the server (RFC 9110 10.2.3).
    fn wait(&self) -> Option<u64> {
        let text = self.retry_at.as_deref()?;
        decimal(text).or_else(|| Some(date::seconds(text)?.saturating_sub(self.date?)))
    }

    /// Takes a Content-Length; equal ones may be repeated, also in one field (RFC 9112 6.3).
    fn take_length(&mut self, text: &str) -> Result<(), HeadError> {
        let wrong = || HeadError::Field("Content-Length", beginning(text));
        for digits in text.split(',').map(str::trim) {
            let length = decimal(digits).ok_or_else(wrong)?;
            if self
                .length
                .replace(length)
                .is_some_and(|other| other != length)
            {
                return Err(wrong());
            }
        }
        Ok(())
    }
}

/// Returns the beginning of a value for a message, which quotes it.
fn beginning(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Parses a checksum in base64, the high byte first.
fn checksum(text: &str) -> Option<u32> {
    base64::decode_four(text).map(u32::from_be_bytes)
}

/// Parses digits only: `str::parse` accepts a sign.
fn decimal(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Parses `bytes 0-99/1000`, `bytes 0-99/*` or `bytes */1000`.
fn content_range(text: &str) -> Option<ContentRange> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> Result<Head, HeadError> {
        let text = format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n\r\nbody");
        let (head, len) = parse(text.as_bytes())?.expect("it is complete");
        assert_eq!(len, text.len() - 4);
        Ok(head)
    }

    #[test]
    fn a_head_is_found_only_when_it_is_complete() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        for len in 0..text.len() {
            assert_eq!(parse(&text[..len]), Ok(None), "{len}");
        }
        let (head, len) = parse(text).unwrap().unwrap();
        assert_eq!((head.status, head.reason.as_str()), (200, "OK"));
        assert_eq!((head.length, len), (Some(5), text.len()));
        assert!(head.is_persistent);
    }

    #[test]
    fn the_fields_of_a_range_are_read() {
        let fields = "content-range: bytes 100-199/1000\r\nCONTENT-LENGTH: 100\r\nETag: \"v1\"\r\n\
                      Last-Modified: yesterday\r\nConnection: x, Close\r\nRetry-After: 3\r\nLocation: /b";
        let head = head(fields).unwrap();
        let range = head.range.unwrap();
        assert_eq!((range.bytes, range.size), (Some(100..200), Some(1000)));
        assert_eq!(head.version.as_deref(), Some("\"v1\""));
        assert!(!head.is_persistent);
        assert_eq!(head.retry_after, Some(Duration::from_secs(3)));
        assert_eq!(head.location.as_deref(), Some("/b"));
    }

    #[test]
    fn the_checksums_of_object_stores_are_read() {
        for fields in [
            "X-Goog-Hash: crc32c=AAAAAQ==\r\nX-Goog-Hash: md5=x",
            "x-goog-hash: md5=x, crc32c=AAAAAQ==",
            "x-amz-checksum-crc32c: AAAAAQ==",
        ] {
            assert_eq!(head(fields).unwrap().crc32c, Some(1), "{fields}");
        }
        assert_eq!(head("X-Goog-Hash: crc32c=!").unwrap().crc32c, None);
    }

    #[test]
    fn the_time_to_come_again_is_a_number_or_a_date() {
        let now = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
        let then = "Retry-After: Sun, 06 Nov 1994 08:50:07 GMT";
        for (fields, expected) in [
            (format!("{then}\r\n{now}"), Some(30)),
            (format!("Retry-After: 7\r\n{now}"), Some(7)),
            // In the past, by a clock that is not known, and no time at all.
            (
                "Retry-After: Sun, 06 Nov 1994 08:49:07 GMT\r\n".to_owned() + now,
                Some(0),
            ),
            (then.to_owned(), None),
            ("Retry-After: soon".to_owned(), None),
            ("Retry-After: -1".to_owned(), None),
        ] {
            let found = head(&fields).unwrap().retry_after;
            assert_eq!(found, expected.map(Duration::from_secs), "{fields}");
        }
    }

    #[test]
    fn a_weak_validator_is_not_used() {
        let weak = head("ETag: W/\"v1\"\r\nLast-Modified: yesterday").unwrap();
        assert_eq!(weak.version.as_deref(), Some("yesterday"));
    }

    #[test]
    fn a_field_that_contradicts_itself_is_refused() {
        assert_eq!(head("Content-Length: 5, 5").unwrap().length, Some(5));
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: -5",
            "Content-Length: +5",
            "Content-Length: 18446744073709551616",
            "Content-Length:",
            "Content-Range: bytes 5-4/10",
            "Content-Range: bytes 0-10/10",
            "Content-Range: bytes 0-18446744073709551615/*",
            "Content-Range: lines 0-1/10",
            "Content-Range: bytes",
            "Transfer-Encoding: gzip, chunked",
            "Content-Encoding: gzip",
        ] {
            assert!(head(fields).is_err(), "{fields}");
        }
        let unknown = head("Content-Range: bytes */77").unwrap().range.unwrap();
        assert_eq!((unknown.bytes, unknown.size), (None, Some(77)));
    }

    #[test]
    fn garbage_and_endless_heads_are_refused() {
        assert!(matches!(parse(b"SSH-2.0-x\r\n"), Err(HeadError::Syntax(_))));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(MAX_HEAD_BYTES));
        assert_eq!(parse(endless.as_bytes()), Err(HeadError::TooLong));
    }
}
