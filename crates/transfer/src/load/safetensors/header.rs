//! The header of a safetensors file: 8 bytes with the length of a JSON object that names the tensors and their bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use client::dial::CancelCheck;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::json::{self, JsonError};
use super::limits::MAX_DIMENSIONS;

/// Bytes of the length.
pub(crate) const LENGTH_BYTES: u32 = 8;
/// Longest header that the format's own library reads.
const MAX_HEADER_BYTES: u32 = 100_000_000;
/// Bytes that a kept text needs besides its characters.
const ENTRY_BYTES: usize = 64;
/// Bytes of a file of another kind that an error shows.
const BEGINNING_BYTES: usize = 60;
/// The beginning of a pointer (the file spec.md of the Git LFS project).
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// The only key that is not the name of a tensor.
const METADATA: &str = "__metadata__";

/// Most bytes of a file's own texts that are kept: a server chooses how much there is of it.
const MAX_METADATA_BYTES: usize = 1 << 20;

/// The tensors of a file, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) tensors: Vec<Described>,
    /// The texts that the file's writer has added, by their names; `None` if there are more than are kept.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
}

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    /// Its bytes, from the end of the header on.
    pub(crate) data: Range<u64>,
}

/// Why bytes are not the header of a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file ends before the header does.
    #[error("its header of {length} bytes does not fit into its {size} bytes")]
    TooShort {
        /// Length of the header.
        length: u64,
        /// Size of the file.
        size: u64,
    },
    /// The header is longer than the format allows.
    #[error("its header has {length} bytes, more than the 100 MB that the format allows")]
    TooLong {
        /// Length of the header.
        length: u64,
    },
    /// It is the pointer to a file in Git LFS, not the file.
    #[error("it is the pointer of Git LFS to a file")]
    LfsPointer,
    /// It is a text.
    #[error("it is a text, which begins with {beginning:?}")]
    Text {
        /// Its beginning.
        beginning: String,
    },
    /// The header is not the expected JSON.
    #[error("its header is invalid: {}", JsonError::text(.0))]
    Json(serde_json::Error),
    /// The bytes of a tensor lie outside of the file, leave a gap or overlap others.
    #[error(
        "tensor {name:?} has bytes {start} to {end}; {expected} to at most {size} were expected"
    )]
    Place {
        /// Name of the tensor.
        name: String,
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Where its bytes must start.
        expected: u64,
        /// Bytes of all tensors.
        size: u64,
    },
    /// The type of a tensor is not one of the format.
    #[error("tensor {name:?} has the type {dtype:?}, which the format does not have")]
    Type {
        /// Name of the tensor.
        name: String,
        /// The type.
        dtype: String,
    },
    /// The length of a tensor does not follow from its shape and type.
    #[error("tensor {name:?} of {dtype} has {bytes} bytes, which is not what its shape needs")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Type of its elements.
        dtype: String,
        /// Length of its bytes.
        bytes: u64,
    },
    /// The tensors end before the file does.
    #[error("its tensors end at byte {end} of {size}")]
    Unused {
        /// End of the last tensor.
        end: u64,
        /// Bytes after the header.
        size: u64,
    },
}

impl HeaderError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::LfsPointer => Some(
                "load from the URL that resolves it (\"resolve\" instead of \"raw\" at a hub), or run `git lfs pull` where the files are \
                 served",
            ),
            Self::Text { .. } => {
                Some("a page for people may be at this URL, or a login: check it in a browser")
            }
            _ => None,
        }
    }
}

/// Why a header was not parsed.
#[derive(Debug)]
pub(crate) enum HeaderFailure {
    Wrong(HeaderError),
    /// It has more tensors than were allowed.
    TooMany,
    /// The caller has cancelled it.
    Cancelled,
}

impl From<HeaderError> for HeaderFailure {
    fn from(error: HeaderError) -> Self {
        Self::Wrong(error)
    }
}

/// Checks that a file of `size` bytes has room for the length of its header.
///
/// # Errors
/// It has not.
pub(crate) fn check_size(size: u64) -> Result<(), HeaderError> {
    match size >= u64::from(LENGTH_BYTES) {
        true => Ok(()),
        false => Err(HeaderError::TooShort { length: 0, size }),
    }
}

/// Returns the length of the JSON of a file of `size` bytes that starts with `bytes`: at least the length.
///
/// # Errors
/// It does not fit into the file, is too long, or the file is another one.
pub(crate) fn text_len(bytes: &[u8], size: u64) -> Result<u32, HeaderError> {
    let first = bytes.first_chunk::<8>();
    let length = u64::from_le_bytes(*first.ok_or(HeaderError::TooShort { length: 0, size })?);
    let short = u32::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_HEADER_BYTES);
    let length = short.ok_or_else(|| no_header(bytes, length))?;
    match u64::from(LENGTH_BYTES) + u64::from(length) <= size {
        true => Ok(length),
        false => Err(HeaderError::TooShort {
            length: length.into(),
            size,
        }),
    }
}

/// Returns the error of a file that begins with `bytes`, and would have a header of `length` bytes.
fn no_header(bytes: &[u8], length: u64) -> HeaderError {
    let beginning = &bytes[..bytes.len().min(BEGINNING_BYTES)];
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if bytes.starts_with(LFS_POINTER) {
        HeaderError::LfsPointer
    } else if beginning.iter().all(is_plain) {
        let text = String::from_utf8_lossy(beginning);
        HeaderError::Text {
            beginning: text.trim().to_owned(),
        }
    } else {
        HeaderError::TooLong { length }
    }
}

impl Header {
    /// Parses the JSON of a file of at most `most` tensors, with `data_bytes` bytes after it, unless `cancel_check` cancels that.
    ///
    /// # Errors
    /// It is not the header of such a file: every byte must belong to exactly one tensor.
    pub(crate) fn parse(
        text: &[u8],
        data_bytes: u64,
        most: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, HeaderFailure> {
        let mut is_too_many = false;
        let mut metadata = Some(BTreeMap::new());
        let entries = Entries {
            most,
            is_too_many: &mut is_too_many,
            metadata: &mut metadata,
        };
        let parsed = json::parse_with(entries, text, cancel_check);
        let mut tensors = parsed.map_err(|error| match error {
            JsonError::Cancelled => HeaderFailure::Cancelled,
            JsonError::Invalid(_) if is_too_many => HeaderFailure::TooMany,
            JsonError::Invalid(error) => HeaderFailure::Wrong(HeaderError::Json(error)),
        })?;
        tensors.sort_by_key(|tensor| (tensor.data.start, tensor.data.end));
        let mut end = 0;
        for tensor in &tensors {
            let Range { start, end: last } = tensor.data;
            if start != end || last < start || last > data_bytes {
                return Err(HeaderFailure::Wrong(HeaderError::Place {
                    name: shortened(&tensor.name),
                    start,
                    end: last,
                    expected: end,
                    size: data_bytes,
                }));
            }
            let Some(bits) = bits_of(&tensor.dtype) else {
                return Err(HeaderFailure::Wrong(HeaderError::Type {
                    name: shortened(&tensor.name),
                    dtype: shortened(&tensor.dtype),
                }));
            };
            if bytes_of(bits, &tensor.shape) != Some(last - start) {
                return Err(HeaderFailure::Wrong(HeaderError::Shape {
                    name: shortened(&tensor.name),
                    dtype: shortened(&tensor.dtype),
                    bytes: last - start,
                }));
            }
            end = last;
        }
        match end == data_bytes {
            true => Ok(Self { tensors, metadata }),
            false => Err(HeaderFailure::Wrong(HeaderError::Unused {
                end,
                size: data_bytes,
            })),
        }
    }
}

/// Returns the beginning of a name for a message: a server chooses its length.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(100).collect()
}

/// Returns the number of bits of an element; `None` if the format has no such type.
fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Returns the length of a tensor in bytes; `None` if it is not a whole number of them.
fn bytes_of(bits: u64, shape: &[u64]) -> Option<u64> {
    // However large the other dimensions are.
    if shape.contains(&0) {
        return Some(0);
    }
    let multiply = |product: u64, dimension: &u64| product.checked_mul(*dimension);
    let bits = shape.iter().try_fold(bits, multiply)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Parses the tensors as they are listed, at most so many.
struct Entries<'a> {
    most: usize,
    is_too_many: &'a mut bool,
    /// Texts that are kept; `None` once there were too many.
    metadata: &'a mut Option<BTreeMap<String, String>>,
}

/// The value of one name.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// The dimensions of a tensor.
struct Shape(Vec<u64>);

/// Texts: at most [`MAX_METADATA_BYTES`] are kept, and `None` of them if there are more.
struct Metadata(Option<BTreeMap<String, String>>);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = Vec<Described>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Vec<Described>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Described>, A::Error> {
        let mut has_metadata = false;
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(twice(METADATA));
                }
                // Some writers have none: null.
                let texts = map.next_value::<Option<Metadata>>()?;
                *self.metadata = texts.map_or_else(|| Some(BTreeMap::new()), |Metadata(it)| it);
                continue;
            }
            if tensors.len() >= self.most {
                *self.is_too_many = true;
                return Err(A::Error::custom("too many tensors"));
            }
            let entry: Entry = map.next_value()?;
            tensors.push(Described {
                name,
                dtype: entry.dtype,
                shape: entry.shape.0,
                data: entry.data_offsets.0..entry.data_offsets.1,
            });
        }
        let mut names: Vec<_> = tensors.iter().map(|tensor| &tensor.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(twice(pair[0])),
            None => Ok(tensors),
        }
    }
}

fn twice<E: serde::de::Error>(name: &str) -> E {
    let name = shortened(name);
    E::custom(format!("{name:?} is there twice"))
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;

        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_DIMENSIONS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
                    }
                    shape.push(dimension);
                }
                // Most are kept for the whole load.
                shape.shrink_to_fit();
                Ok(Shape(shape))
            }
        }

        deserializer.deserialize_seq(Dimensions)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let (mut kept, mut room) = (Some(BTreeMap::new()), MAX_METADATA_BYTES);
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    // Also what each entry costs without its text.
                    let bytes = name.len() + text.len() + ENTRY_BYTES;
                    match (room.checked_sub(bytes), &mut kept) {
                        (Some(left), Some(kept)) => {
                            room = left;
                            kept.insert(name, text);
                        }
                        _ => (kept, room) = (None, 0),
                    }
                }
                Ok(Metadata(kept))
            }
        }

        deserializer.deserialize_map(Texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::dial::never_cancelled;

    fn parse(text: &str, data_bytes: u64) -> Result<Vec<String>, String> {
        let header = Header::parse(text.as_bytes(), data_bytes, 4, &mut never_cancelled);
        let header = header.map_err(|stopped| match stopped {
            HeaderFailure::Wrong(error) => error.to_string(),
            HeaderFailure::TooMany => "it has too many tensors".to_owned(),
            HeaderFailure::Cancelled => "it was cancelled".to_owned(),
        })?;
        Ok(header
            .tensors
            .into_iter()
            .map(|tensor| tensor.name)
            .collect())
    }

    #[test]
    fn tensors_are_listed_in_the_order_of_their_bytes() {
        let text = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"BF16","shape":[3,2],"data_offsets":[4,16]},
            "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
            "empty":{"dtype":"I64","shape":[0,9],"data_offsets":[16,16]},
            "half":{"dtype":"F4","shape":[4],"data_offsets":[16,18]}}   "#;
        assert_eq!(parse(text, 18).unwrap(), ["a", "b", "empty", "half"]);
        assert_eq!(parse("{}", 0).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            let text = format!(
                r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
            );
            parse(&text, 8).unwrap_err()
        };
        for (dtype, shape, offsets, expected) in [
            ("F32", "[2]", "[0,9]", "has bytes 0 to 9"),
            ("F32", "[2]", "[1,8]", "has bytes 1 to 8"),
            ("F32", "[2]", "[8,0]", "has bytes 8 to 0"),
            ("F32", "[3]", "[0,8]", "not what its shape needs"),
            (
                "F32",
                "[4611686018427387904,4]",
                "[0,8]",
                "not what its shape needs",
            ),
            (
                "X9",
                "[8]",
                "[0,8]",
                "has the type \"X9\", which the format does not have",
            ),
            ("f32", "[2]", "[0,8]", "has the type \"f32\""),
            ("F4", "[1]", "[0,0]", "not what its shape needs"),
            ("F32", "[1]", "[0,4]", "end at byte 4 of 8"),
            ("F32", "[-2]", "[0,8]", "invalid"),
            ("F32", "[2]", "[0,18446744073709551616]", "invalid"),
            ("F32", "[2]", "[0]", "invalid"),
        ] {
            let error = one(dtype, shape, offsets);
            assert!(
                error.contains(expected),
                "{dtype} {shape} {offsets}: {error}"
            );
        }
        let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
            "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert!(parse(twice, 2).unwrap_err().contains("there twice"));
        let overlap = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
            "b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert!(parse(overlap, 2).unwrap_err().contains("2 to at most 2"));
        for text in ["", "[]", "{", "{\"a\":1}", &"[".repeat(10_000)] {
            assert!(parse(text, 0).is_err());
        }
    }

    #[test]
    fn what_the_formats_own_library_reads_is_read() {
        for (dtype, shape, bytes) in [
            ("F8_E4M3FNUZ", "[4,4]", 16),
            ("F8_E5M2FNUZ", "[16]", 16),
            ("F8_E8M0", "[3]", 3),
            ("F32", "[4611686018427387904,4,0]", 0),
            ("F32", "[0,18446744073709551615,2]", 0),
            ("F4", "[0,3]", 0),
        ] {
            let text = format!(
                r#"{{"__metadata__":null,"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#
            );
            assert_eq!(
                parse(&text, bytes).as_deref(),
                Ok(&["a".to_owned()][..]),
                "{text}"
            );
        }
        for refused in [
            "1",
            "[]",
            "\"x\"",
            r#"{"a":1}"#,
            r#"{"a":null}"#,
            r#"{"a":{}}"#,
        ] {
            let text = format!(r#"{{"__metadata__":{refused}}}"#);
            assert!(parse(&text, 0).is_err(), "{text}");
        }
    }

    #[test]
    fn the_writers_texts_are_kept_up_to_a_limit() {
        let metadata = |text: &str| {
            let text = format!(r#"{{"__metadata__":{text}}}"#);
            Header::parse(text.as_bytes(), 0, 4, &mut never_cancelled)
                .unwrap()
                .metadata
        };
        let expected =
            [("format", "pt"), ("a", "b")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(
            metadata(r#"{"format":"pt","a":"b"}"#),
            Some(expected.into())
        );
        assert_eq!(metadata("null"), Some(BTreeMap::new()));
        let long = "x".repeat(MAX_METADATA_BYTES);
        assert_eq!(
            metadata(&format!(r#"{{"a":"b","long":"{long}","c":"d"}}"#)),
            None
        );
    }

    #[test]
    fn a_file_of_another_kind_is_recognised() {
        let refused = |bytes: &[u8]| text_len(bytes, 10_000).unwrap_err().to_string();
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
        assert!(refused(pointer).contains("Git LFS"));
        let page = refused(b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head>");
        assert!(page.contains("begins with \"<!DOCTYPE html>"), "{page}");
        let zip = refused(b"PK\x03\x04\xff\xff\xff\xff\xff\xff\xff\xff");
        assert!(zip.contains("more than the 100 MB"), "{zip}");
    }

    #[test]
    fn a_header_has_limits_that_no_text_is_kept_beyond() {
        let one = |shape: &str| {
            format!(r#"{{"a":{{"dtype":"U8","shape":[{shape}1],"data_offsets":[0,1]}}}}"#)
        };
        assert_eq!(parse(&one(&"1,".repeat(63)), 1).unwrap(), ["a"]);
        let refused = parse(&one(&"1,".repeat(64)), 1).unwrap_err();
        assert!(refused.contains("at most 64 dimensions"), "{refused}");
        let empty =
            |n: usize| format!(r#""{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        let many = |n| format!("{{{}}}", (0..n).map(empty).collect::<Vec<_>>().join(","));
        assert_eq!(parse(&many(4), 0).unwrap().len(), 4);
        assert_eq!(parse(&many(5), 0).unwrap_err(), "it has too many tensors");
        // The text of an error is short, however long the text of the server is, and quoted.
        let long = format!(r#"{{"a":"\u009b{}"}}"#, "x".repeat(100_000));
        let refused = parse(&long, 0).unwrap_err();
        assert!(
            refused.len() < 300 && refused.contains("\\u{9b}xx"),
            "{refused}"
        );
    }

    #[test]
    fn the_length_is_checked_before_the_header_is_read() {
        let found = |length: u64, size| text_len(&length.to_le_bytes(), size);
        assert_eq!(found(100, 108).unwrap(), 100);
        assert!(matches!(found(100, 107), Err(HeaderError::TooShort { .. })));
        assert!(matches!(
            found(u64::MAX, u64::MAX),
            Err(HeaderError::TooLong { .. })
        ));
        assert!(matches!(
            found(100_000_001, u64::MAX),
            Err(HeaderError::TooLong { .. })
        ));
        assert!(matches!(
            text_len(&[0; 7], 7),
            Err(HeaderError::TooShort { .. })
        ));
        assert!(check_size(7).is_err());
        assert!(check_size(8).is_ok());
    }
}
