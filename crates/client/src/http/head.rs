//! The head of a response (RFC 9112 4 and 5): its status and the fields that tell where its body is. Servers write heads that no standard allows;
//! what curl takes is taken, and what would change the bytes is refused.

use std::time::Duration;

use httparse::{ParserConfig, Status};

use devmem_tcp::text::printable;

use super::date;
use super::fields::{self, ContentRange, FileSum, SumOf, Validators, beginning, decimal};
use crate::cause::Cause;
use crate::sum::SumKind;

/// Most bytes of a head. Servers send a few hundred.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Fields that there is room for at first: servers send some dozen.
const FIELDS: usize = 128;
/// Most fields of a head: each has a character, a colon and the end of its line.
const MAX_FIELDS: usize = MAX_HEAD_BYTES / 3;

/// A parsed head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Status of the response (RFC 9110 15).
    pub status: u16,
    /// Its text.
    pub reason: String,
    /// Whether the connection may carry another response.
    pub is_persistent: bool,
    /// The length of the body (Content-Length).
    pub length: Option<u64>,
    /// Whether the body comes in chunks (RFC 9112 7.1).
    pub is_chunked: bool,
    /// The range of the body; `None` also if the field makes no sense.
    pub range: Option<ContentRange>,
    /// The place that a redirect names, its bytes outside of ASCII percent-encoded.
    pub(crate) location: Option<String>,
    pub(crate) validators: Validators,
    /// How long the server asks to wait (Retry-After).
    pub retry_after: Option<Duration>,
    retry_at: Option<String>,
    /// The server's time, in seconds.
    date: Option<u64>,
    /// The checksum of what was asked for: of several the one that is compared.
    pub sum: Option<FileSum>,
    /// Whether checksums of Amazon's fields are of those of parts, if the server says.
    is_composite: Option<bool>,
    /// What a hub says about an error.
    pub(crate) error_message: Option<String>,
    /// The region of an S3 bucket, if the request was for another one.
    pub(crate) region: Option<String>,
}

/// Why bytes are not the head of a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A line is none of HTTP.
    #[error("its head is not HTTP: {error}, in the line {line:?}")]
    Syntax {
        /// What is wrong with it.
        error: httparse::Error,
        /// The line.
        line: String,
    },
    /// The bytes are a record of TLS.
    #[error("its answer is one of TLS")]
    Tls,
    /// There is no end of the head.
    #[error("its head has more than {MAX_HEAD_BYTES} bytes")]
    TooLong,
    /// A field makes no sense.
    #[error("its field {0} is {1:?}")]
    Field(&'static str, String),
    /// The bytes would have to be decoded.
    #[error("its body has the coding {0:?}, which was not asked for")]
    Coding(String),
}

impl From<HeadError> for Cause {
    fn from(error: HeadError) -> Self {
        let remedy = match &error {
            HeadError::Tls => {
                "write https:// for this port, or the port of plain HTTP: 80 on most servers"
            }
            HeadError::Coding(_) => {
                "store the file without this coding, or ask a server that sends it as it is stored"
            }
            _ => return error.to_string().into(),
        };
        Self::from(error.to_string()).with_remedy(remedy)
    }
}

/// First bytes of records of TLS: an alert, or a handshake (RFC 8446 5.1).
const TLS_RECORDS: [u8; 2] = [21, 22];

/// Parses a head, if it is complete; returns it with its length in bytes.
///
/// # Errors
/// The bytes are not the beginning of a response.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, HeadError> {
    if bytes
        .first()
        .is_some_and(|first| TLS_RECORDS.contains(first))
    {
        return Err(HeadError::Tls);
    }
    let mut room = [httparse::EMPTY_HEADER; FIELDS];
    let parsed = match parse_into(&mut room, bytes) {
        Err(httparse::Error::TooManyHeaders) => {
            parse_into(&mut vec![httparse::EMPTY_HEADER; MAX_FIELDS], bytes)
        }
        parsed => parsed,
    };
    match parsed.map_err(|error| syntax(error, bytes))? {
        Status::Complete((head, len)) if len <= MAX_HEAD_BYTES => Ok(Some((head?, len))),
        Status::Partial if bytes.len() < MAX_HEAD_BYTES => Ok(None),
        Status::Complete(_) | Status::Partial => Err(HeadError::TooLong),
    }
}

/// What is found of a head: its fields may make no sense, and its length.
type Found = Status<(Result<Head, HeadError>, usize)>;

/// Parses a head whose fields fit into `room`.
#[inline]
fn parse_into<'a>(
    room: &mut [httparse::Header<'a>],
    bytes: &'a [u8],
) -> Result<Found, httparse::Error> {
    let mut response = httparse::Response::new(room);
    let parsed = sloppy().parse_response(&mut response, bytes)?;
    Ok(match parsed {
        Status::Complete(len) => Status::Complete((Head::of(&response), len)),
        Status::Partial => Status::Partial,
    })
}

/// Takes what curl takes.
#[inline]
fn sloppy() -> ParserConfig {
    let mut config = ParserConfig::default();
    config
        .allow_spaces_after_header_name_in_responses(true)
        .allow_space_before_first_header_name(true)
        .allow_multiple_spaces_in_response_status_delimiters(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .ignore_invalid_headers_in_responses(true);
    config
}

/// Returns the error of bytes that are no head, with the line that is not: the first that is wrong by itself.
fn syntax(error: httparse::Error, bytes: &[u8]) -> HeadError {
    let is_wrong = |status: &[u8], field: &[u8]| {
        let head = [status, field, b"\r\n"].concat();
        let mut room = [httparse::EMPTY_HEADER];
        let mut response = httparse::Response::new(&mut room);
        sloppy().parse_response(&mut response, &head).is_err()
    };
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let status = lines.next().unwrap_or_default();
    let line = match is_wrong(status, b"") {
        true => None,
        false => lines.find(|line| is_wrong(status, line)),
    };
    let line = String::from_utf8_lossy(line.unwrap_or(status));
    HeadError::Syntax {
        error,
        line: beginning(line.trim_end()),
    }
}

impl Head {
    /// Returns what the fields of a response say.
    #[inline]
    fn of(response: &httparse::Response<'_, '_>) -> Result<Self, HeadError> {
        let mut head = Self {
            status: response.code.unwrap_or_default(),
            reason: printable(response.reason.unwrap_or_default()),
            is_persistent: response.version == Some(1),
            ..Self::default()
        };
        for field in response.headers.iter() {
            let name = field.name.to_ascii_lowercase();
            if name == "location" {
                head.location = Some(fields::ascii(field.value));
                continue;
            }
            let text = String::from_utf8_lossy(field.value);
            head.take(&name, text.trim())?;
        }
        head.retry_after = head.wait().map(Duration::from_secs);
        Ok(head)
    }

    #[inline]
    fn take(&mut self, name: &str, text: &str) -> Result<(), HeadError> {
        match name {
            "content-length" => self.take_length(text)?,
            "transfer-encoding" => self.take_transfer_coding(text)?,
            "content-encoding" if fields::changes_bytes(text) => {
                return Err(HeadError::Coding(beginning(text)));
            }
            // One that makes no sense is judged with the status: many servers send one with an empty file.
            "content-range" => self.range = fields::content_range(text),
            "connection" => {
                for option in text.split(',').map(str::trim) {
                    if option.eq_ignore_ascii_case("close") {
                        self.is_persistent = false;
                    }
                }
            }
            "etag" => self.validators.set_etag(text),
            "last-modified" => self.validators.modified = Some(text.to_owned()),
            // Of Google's storage, and of S3 for objects that were stored with it.
            "x-goog-hash" => {
                let sums = text.split(',').map(str::trim);
                for sum in sums.filter_map(|sum| sum.strip_prefix("crc32c=")) {
                    self.take_sum(SumKind::Crc32c, sum);
                }
            }
            "x-amz-checksum-type" => {
                self.is_composite = Some(!text.eq_ignore_ascii_case("FULL_OBJECT"));
            }
            "x-amz-bucket-region" => self.region = Some(beginning(text)),
            "x-error-message" => self.error_message = Some(beginning(text)),
            "date" => self.date = date::seconds(text),
            "retry-after" => self.retry_at = Some(text.to_owned()),
            name => {
                let kind = name.strip_prefix("x-amz-checksum-");
                if let Some(kind) = kind.and_then(fields::sum_kind) {
                    self.take_sum(kind, text);
                }
            }
        }
        Ok(())
    }

    /// Takes a checksum of the file, unless there is a better one; one that makes no sense is none.
    #[inline]
    fn take_sum(&mut self, kind: SumKind, text: &str) {
        if let Some(sum) = FileSum::parse(kind, text)
            && self
                .sum
                .as_ref()
                .is_none_or(|best| sum.rank() < best.rank())
        {
            self.sum = Some(sum);
        }
    }

    /// Takes a Transfer-Encoding: `chunked` alone, or `identity`, which old servers send for none.
    #[inline]
    fn take_transfer_coding(&mut self, text: &str) -> Result<(), HeadError> {
        for coding in text.split(',').map(str::trim) {
            if coding.eq_ignore_ascii_case("chunked") {
                self.is_chunked = true;
            } else if !coding.is_empty() && !coding.eq_ignore_ascii_case("identity") {
                return Err(HeadError::Coding(beginning(text)));
            }
        }
        Ok(())
    }

    /// Returns the seconds of Retry-After: a number, or a time by the clock of the server (RFC 9110 10.2.3).
    #[inline]
    fn wait(&self) -> Option<u64> {
        let text = self.retry_at.as_deref()?;
        decimal(text).or_else(|| Some(date::seconds(text)?.saturating_sub(self.date?)))
    }

    /// Takes a Content-Length; equal ones may be repeated, also in one field (RFC 9112 6.3).
    #[inline]
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

    /// Returns the checksum of a whole file. Some stores leave the number of parts out, and what it is of.
    pub fn sum_of_file(&self) -> Option<FileSum> {
        let mut sum = self.sum.clone()?;
        let is_composite = || self.is_composite.unwrap_or(self.validators.is_of_parts());
        if sum.of == SumOf::Bytes && is_composite() {
            sum.of = SumOf::Unknown;
        }
        Some(sum)
    }

    /// Returns whether the server asks to come back: it is busy, or its upstream is.
    #[inline]
    pub fn is_busy(&self) -> bool {
        matches!(self.status, 408 | 429 | 500..=599)
    }

    /// Returns whether the status says that the file is elsewhere (RFC 9110 15.4).
    #[inline]
    pub fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }
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
        assert_eq!(head.validators.etag.as_deref(), Some("\"v1\""));
        assert_eq!(head.validators.modified.as_deref(), Some("yesterday"));
        assert!(!head.is_persistent);
        assert_eq!(head.retry_after, Some(Duration::from_secs(3)));
        assert_eq!(head.location.as_deref(), Some("/b"));
    }

    #[test]
    fn the_checksums_of_object_stores_are_read() {
        let sum = |fields: &str| {
            let sum = head(fields).unwrap().sum_of_file()?;
            Some((sum.kind, sum.value.to_string(), sum.of))
        };
        let one = "00000001".to_owned();
        let of_parts =
            "ETag: \"d41d8cd98f00b204e9800998ecf8427e-2\"\r\nx-amz-checksum-crc32: AAAAAQ==";
        for (fields, kind, of) in [
            (
                "X-Goog-Hash: crc32c=AAAAAQ==\r\nX-Goog-Hash: md5=x",
                SumKind::Crc32c,
                SumOf::Bytes,
            ),
            (
                "x-goog-hash: md5=x, crc32c=AAAAAQ==",
                SumKind::Crc32c,
                SumOf::Bytes,
            ),
            (
                "x-amz-checksum-crc32c: AAAAAQ==",
                SumKind::Crc32c,
                SumOf::Bytes,
            ),
            (
                "x-amz-checksum-crc32: AAAAAQ==\r\nx-amz-checksum-type: FULL_OBJECT",
                SumKind::Crc32,
                SumOf::Bytes,
            ),
            (
                "x-amz-checksum-crc32: AAAAAQ==-7\r\nx-amz-checksum-type: COMPOSITE",
                SumKind::Crc32,
                SumOf::Parts(7),
            ),
            // One of the bytes before one of parts, and one that a GPU computes before others.
            (
                "x-amz-checksum-crc32c: AAAAAg==-7\r\nx-amz-checksum-crc32: AAAAAQ==",
                SumKind::Crc32,
                SumOf::Bytes,
            ),
            (
                "x-amz-checksum-crc32: AAAAAg==\r\nx-amz-checksum-crc32c: AAAAAQ==",
                SumKind::Crc32c,
                SumOf::Bytes,
            ),
            // moto leaves the number of parts out, and the type.
            (of_parts, SumKind::Crc32, SumOf::Unknown),
            (
                &format!("{of_parts}\r\nx-amz-checksum-type: FULL_OBJECT"),
                SumKind::Crc32,
                SumOf::Bytes,
            ),
            (&format!("{of_parts}-2"), SumKind::Crc32, SumOf::Parts(2)),
            (
                "x-amz-checksum-crc32: AAAAAQ==\r\nx-amz-checksum-type: COMPOSITE",
                SumKind::Crc32,
                SumOf::Unknown,
            ),
        ] {
            assert_eq!(sum(fields), Some((kind, one.clone(), of)), "{fields}");
        }
    }

    #[test]
    fn checksums_of_another_length_than_their_kind_are_none() {
        let sum = |fields: &str| head(fields).unwrap().sum_of_file();
        let nvme = sum("x-amz-checksum-crc64nvme: rosUhgp5mIg=").unwrap();
        assert_eq!(nvme.value.to_string(), "ae8b14860a799888");
        for nothing in [
            "X-Goog-Hash: crc32c=!",
            "x-amz-checksum-crc64nvme: AAAAAQ==",
            "x-amz-checksum-crc32: AAAAAQ==-",
            "x-amz-checksum-crc32: AAAAAQ==--1",
            "x-amz-checksum-crc32: AAAAAQ==-99999999999",
            "x-amz-checksum-md17: AAAAAQ==",
        ] {
            assert_eq!(sum(nothing), None, "{nothing}");
        }
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
    fn a_field_that_contradicts_itself_is_refused() {
        assert_eq!(head("Content-Length: 5, 5").unwrap().length, Some(5));
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: -5",
            "Content-Length: +5",
            "Content-Length: 18446744073709551616",
            "Content-Length:",
            "Transfer-Encoding: gzip, chunked",
            "Content-Encoding: gzip",
        ] {
            assert!(head(fields).is_err(), "{fields}");
        }
    }

    #[test]
    fn codings_that_mean_nothing_are_taken_and_those_that_change_bytes_refused() {
        for coding in [
            "",
            "identity",
            "aws-chunked",
            "aws-chunked,",
            "Identity , utf-8",
            "none",
        ] {
            assert!(
                head(&format!("Content-Encoding: {coding}")).is_ok(),
                "{coding}"
            );
        }
        for coding in [
            "gzip",
            "aws-chunked,gzip",
            "BR",
            "x-gzip",
            "zstd",
            "deflate",
            "compress",
        ] {
            let refused = head(&format!("Content-Encoding: {coding}")).unwrap_err();
            assert!(Cause::from(refused.clone()).remedy().is_some(), "{refused}");
        }
        assert!(!head("Transfer-Encoding: identity").unwrap().is_chunked);
        assert!(
            head("Transfer-Encoding: Identity, Chunked")
                .unwrap()
                .is_chunked
        );
    }

    #[test]
    fn sloppy_heads_are_read_as_curl_reads_them() {
        for sloppy in [
            "Accept-Ranges : bytes",
            "no colon in this line",
            "Folded: a\r\n b",
            ": no name",
            "X-\u{e9}: name outside of ASCII",
            "Two words: x",
        ] {
            let found = head(&format!("{sloppy}\r\nContent-Length : 5")).expect(sloppy);
            assert_eq!(found.length, Some(5), "{sloppy}");
        }
        for line in ["HTTP/1.1  200  OK", "HTTP/1.1 200", "HTTP/1.1 200 "] {
            let text = format!("{line}\nContent-Length: 5\n\n");
            let (found, _) = parse(text.as_bytes()).expect(line).expect("complete");
            assert_eq!((found.status, found.length), (200, Some(5)), "{line}");
        }
        let refused = parse(b"SSH-2.0-OpenSSH\r\n").unwrap_err().to_string();
        assert!(
            refused.ends_with("in the line \"SSH-2.0-OpenSSH\""),
            "{refused}"
        );
        let refused = head("Server: any\r\nX: a\rb\r\nY: z")
            .unwrap_err()
            .to_string();
        assert!(refused.ends_with(r#"in the line "X: a\rb""#), "{refused}");
        let many: String = (0..1000).map(|n| format!("X-{n}: y\r\n")).collect();
        let found = head(&format!("{many}Content-Length: 5")).expect("curl takes them");
        assert_eq!(found.length, Some(5));
    }

    #[test]
    fn a_location_keeps_its_bytes() {
        let text = b"HTTP/1.1 302 Found\r\nLocation: /mod\xe8le v1\r\n\r\n";
        let (found, _) = parse(text).unwrap().unwrap();
        assert_eq!(found.location.as_deref(), Some("/mod%E8le v1"));
        let text = "HTTP/1.1 302 Found\r\nLocation: /modèle\r\n\r\n";
        let (found, _) = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(found.location.as_deref(), Some("/mod%C3%A8le"));
    }

    #[test]
    fn garbage_and_endless_heads_are_refused() {
        assert!(matches!(
            parse(b"SSH-2.0-x\r\n"),
            Err(HeadError::Syntax { .. })
        ));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(MAX_HEAD_BYTES));
        assert_eq!(parse(endless.as_bytes()), Err(HeadError::TooLong));
    }
}
