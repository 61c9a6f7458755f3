//! Types of elements: their names, and the ways in which DLPack, buffers and numpy write them.

use pyo3::prelude::*;

use crate::error::Error;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dtype(&'static Row);

/// One type.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// As numpy and torch name it.
    name: &'static str,
    /// As numpy's typestr; `None` if numpy has no such type.
    typestr: Option<&'static str>,
    /// As the module `struct`, with a NUL at the end; `None` if it has no such type.
    format: Option<&'static [u8]>,
    /// As DLPack (dlpack.h, DLDataTypeCode).
    code: u8,
    bits: u8,
}

const fn row(
    name: &'static str,
    typestr: Option<&'static str>,
    format: Option<&'static [u8]>,
    code: u8,
    bits: u8,
) -> Row {
    Row {
        name,
        typestr,
        format,
        code,
        bits,
    }
}

/// kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLComplex, kDLBool, kDLFloat8_e4m3fn, kDLFloat8_e4m3fnuz, kDLFloat8_e5m2,
/// kDLFloat8_e5m2fnuz, kDLFloat8_e8m0fnu.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;
const E4M3FN: u8 = 10;
const E4M3FNUZ: u8 = 11;
const E5M2: u8 = 12;
const E5M2FNUZ: u8 = 13;
const E8M0FNU: u8 = 14;

static ROWS: [Row; 20] = [
    row("uint8", Some("|u1"), Some(b"B\0"), UINT, 8),
    row("int8", Some("|i1"), Some(b"b\0"), INT, 8),
    row("uint16", Some("<u2"), Some(b"H\0"), UINT, 16),
    row("int16", Some("<i2"), Some(b"h\0"), INT, 16),
    row("uint32", Some("<u4"), Some(b"I\0"), UINT, 32),
    row("int32", Some("<i4"), Some(b"i\0"), INT, 32),
    row("uint64", Some("<u8"), Some(b"Q\0"), UINT, 64),
    row("int64", Some("<i8"), Some(b"q\0"), INT, 64),
    row("float16", Some("<f2"), Some(b"e\0"), FLOAT, 16),
    row("float32", Some("<f4"), Some(b"f\0"), FLOAT, 32),
    row("float64", Some("<f8"), Some(b"d\0"), FLOAT, 64),
    row("bfloat16", None, None, BFLOAT, 16),
    row("complex64", Some("<c8"), Some(b"Zf\0"), COMPLEX, 64),
    row("complex128", Some("<c16"), Some(b"Zd\0"), COMPLEX, 128),
    row("bool", Some("|b1"), Some(b"?\0"), BOOL, 8),
    row("float8_e4m3fn", None, None, E4M3FN, 8),
    row("float8_e4m3fnuz", None, None, E4M3FNUZ, 8),
    row("float8_e5m2", None, None, E5M2, 8),
    row("float8_e5m2fnuz", None, None, E5M2FNUZ, 8),
    row("float8_e8m0fnu", None, None, E8M0FNU, 8),
];

impl Dtype {
    /// Bytes.
    pub(crate) const BYTE: Self = Self(&ROWS[0]);

    /// Returns the type of that name.
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        let found = ROWS.iter().find(|row| row.name == name);
        found.map(Self).ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            Error::value(format!(
                "'{name}' is not a type of elements\n  one of {}",
                names.join(", ")
            ))
        })
    }

    /// Returns the type that `object` names: a text, a dtype of numpy or torch, or a type of numpy.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text = match object.extract::<String>() {
            Ok(text) => text,
            Err(_) => match named(object, "name")? {
                Some(name) => name,
                None => match named(object, "__name__")? {
                    Some(name) => name,
                    None => object.str()?.to_string(),
                },
            },
        };
        // torch writes torch.float32.
        let name = text.rsplit('.').next().unwrap_or(&text);
        Ok(Self::named(name)?)
    }

    /// Returns the type with this code and size of DLPack.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<Self> {
        let mut rows = ROWS.iter();
        rows.find(|row| (row.code, row.bits) == (code, bits))
            .map(Self)
    }

    pub(crate) fn name(self) -> &'static str {
        self.0.name
    }

    pub(crate) fn bytes(self) -> usize {
        usize::from(self.0.bits / 8)
    }

    pub(crate) fn code(self) -> u8 {
        self.0.code
    }

    pub(crate) fn bits(self) -> u8 {
        self.0.bits
    }

    pub(crate) fn typestr(self) -> Result<&'static str, Error> {
        self.0.typestr.ok_or_else(|| self.unknown_to("numpy"))
    }

    pub(crate) fn format(self) -> Result<&'static [u8], Error> {
        let format = self.0.format;
        format.ok_or_else(|| self.unknown_to("the buffer protocol"))
    }

    fn unknown_to(self, consumer: &str) -> Error {
        let name = self.0.name;
        Error::buffer(format!(
            "{consumer} has no type {name}\n  use DLPack (from_dlpack), or view the tensor as uint16 or uint8"
        ))
    }
}

/// Returns the text attribute of `object`, if it has one.
fn named(object: &Bound<'_, PyAny>, attribute: &str) -> PyResult<Option<String>> {
    let value = object.getattr_opt(attribute)?;
    Ok(value.and_then(|value| value.extract().ok()))
}
