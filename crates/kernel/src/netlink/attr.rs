//! Attributes: type, length and value, padded to four bytes (linux include/uapi/linux/netlink.h).

use zerocopy::{FromBytes, IntoBytes};

/// `struct nlattr`: length of header and value in bytes, without padding; type with flags.
type Header = [u16; 2];
/// `NLA_HDRLEN`.
pub(super) const HEADER_LEN: usize = size_of::<Header>();
/// Largest value of an attribute in bytes: the length field, which includes the header, has 16 bits.
pub(crate) const VALUE_BYTES_MAX: usize = u16::MAX as usize - HEADER_LEN;
/// `NLA_ALIGNTO`.
const ALIGN: usize = 4;
/// `NLA_TYPE_MASK`: the type without the nested and byte-order flags.
const TYPE_MASK: u16 = 0x3fff;
/// `NLA_F_NESTED`: the value is attributes.
pub(super) const F_NESTED: u16 = 0x8000;

/// Rounds a length up to the alignment of messages and attributes.
pub(super) const fn align(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// One attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The type, without flags.
    pub kind: u16,
    /// The value, without padding.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns the value as a number in host byte order; `None` if it does not have four bytes.
    pub fn u32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Returns the value as a byte; `None` if it does not have one byte.
    pub fn u8(&self) -> Option<u8> {
        match self.value {
            [byte] => Some(*byte),
            _ => None,
        }
    }

    /// Returns a number of four or eight bytes (`uint` in the kernel's specifications: the shorter form if the
    /// value fits).
    pub fn uint(&self) -> Option<u64> {
        match self.value.len() {
            4 => self.u32().map(u64::from),
            8 => self.value.try_into().ok().map(u64::from_ne_bytes),
            _ => None,
        }
    }

    /// Returns an array of u32 in host byte order; an incomplete last element is left out.
    pub fn u32_array(&self) -> Vec<u32> {
        let (whole, _) = self.value.as_chunks::<4>();
        whole.iter().map(|b| u32::from_ne_bytes(*b)).collect()
    }

    /// Returns the value as attributes.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    /// Returns the value as text, up to the first NUL.
    pub fn text(&self) -> Option<&'a str> {
        let text = self.value.split(|&b| b == 0).next()?;
        std::str::from_utf8(text).ok()
    }
}

/// The attributes of a message or of a nest, up to the first that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    bytes: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Creates it from the bytes of the attributes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns all attributes in order.
    pub fn iter(self) -> impl Iterator<Item = Attribute<'a>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (_, attribute, after) = split_first(rest)?;
            rest = after;
            Some(attribute)
        })
    }

    /// Returns the attributes of type `kind` in order.
    pub fn all(self, kind: u16) -> impl Iterator<Item = Attribute<'a>> {
        self.iter().filter(move |a| a.kind == kind)
    }

    /// Returns the first attribute of type `kind`.
    pub fn find(self, kind: u16) -> Option<Attribute<'a>> {
        self.all(kind).next()
    }

    /// Returns whether there is an attribute of type `kind`.
    pub fn has(self, kind: u16) -> bool {
        self.find(kind).is_some()
    }

    /// Returns the value of the first attribute of type `kind`, as [`Attribute::u8`].
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.find(kind)?.u8()
    }

    /// Returns the value of the first attribute of type `kind`, as [`Attribute::u32`].
    pub fn u32(self, kind: u16) -> Option<u32> {
        self.find(kind)?.u32()
    }

    /// Returns the value of the first attribute of type `kind`, as [`Attribute::uint`].
    pub fn uint(self, kind: u16) -> Option<u64> {
        self.find(kind)?.uint()
    }

    /// Returns the value of the first attribute of type `kind`, as [`Attribute::text`].
    pub fn text(self, kind: u16) -> Option<&'a str> {
        self.find(kind)?.text()
    }

    /// Returns the attributes in the first attribute of type `kind`.
    pub fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        Some(self.find(kind)?.nested())
    }
}

/// Splits `bytes` after the first attribute and its padding. Returns whether the attribute is flagged as nested, the
/// attribute, and the rest; `None` if the attribute is incomplete.
pub(super) fn split_first(bytes: &[u8]) -> Option<(bool, Attribute<'_>, &[u8])> {
    let ([len, kind], _) = Header::read_from_prefix(bytes).ok()?;
    let len = usize::from(len);
    let attribute = Attribute {
        kind: kind & TYPE_MASK,
        value: bytes.get(HEADER_LEN..len)?,
    };
    let rest = bytes.get(align(len)..).unwrap_or_default();
    Some((kind & F_NESTED != 0, attribute, rest))
}

/// Appends the header of an attribute and returns its position, for [`close`] after the value was appended.
pub(super) fn open(out: &mut Vec<u8>, kind: u16) -> usize {
    let start = out.len();
    out.extend_from_slice([0, kind].as_bytes());
    start
}

/// Ends the attribute that starts at `start`: all bytes after its header are its value. Returns `None` if the value is
/// longer than [`VALUE_BYTES_MAX`].
#[must_use]
pub(super) fn close(out: &mut Vec<u8>, start: usize) -> Option<()> {
    let len = u16::try_from(out.len() - start).ok()?;
    out[start..start + size_of_val(&len)].copy_from_slice(&len.to_ne_bytes());
    out.resize(align(out.len()), 0);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let start = open(&mut out, kind);
        out.extend_from_slice(value);
        close(&mut out, start).unwrap();
        out
    }

    #[test]
    fn padding_between_attributes_is_skipped() {
        let bytes = [
            attribute(3, b"lo\0"),
            attribute(4 | 0x8000, &7u32.to_ne_bytes()),
        ]
        .concat();
        let found: Vec<_> = Attributes::new(&bytes).iter().collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].text(), Some("lo"));
        assert_eq!((found[1].kind, found[1].u32()), (4, Some(7)));
    }

    #[test]
    fn a_length_past_the_end_or_below_the_header_ends_the_walk() {
        let mut bytes = attribute(1, &[1, 2, 3, 4]);
        bytes[0] = 200;
        assert_eq!(Attributes::new(&bytes).iter().next(), None);
        bytes[0] = 3;
        assert_eq!(Attributes::new(&bytes).iter().next(), None);
        bytes[0] = 0;
        assert_eq!(Attributes::new(&bytes).iter().next(), None);
    }

    #[test]
    fn a_number_of_the_wrong_size_is_none() {
        let bytes = attribute(1, &[1, 2, 3]);
        let attribute = Attributes::new(&bytes).find(1).unwrap();
        assert_eq!(attribute.u8(), None);
        assert_eq!(attribute.u32(), None);
        assert_eq!(attribute.uint(), None);
        assert!(attribute.u32_array().is_empty());
    }

    #[test]
    fn a_uint_is_read_in_both_of_its_sizes() {
        let bytes = [
            attribute(1, &7u32.to_ne_bytes()),
            attribute(2, &(1u64 << 40).to_ne_bytes()),
        ]
        .concat();
        let numbers: Vec<_> = Attributes::new(&bytes).iter().map(|a| a.uint()).collect();
        assert_eq!(numbers, [Some(7), Some(1 << 40)]);
    }

    #[test]
    fn nested_and_repeated_attributes_are_found() {
        let inner = [attribute(1, &[5]), attribute(1, &[6])].concat();
        let bytes = attribute(9 | F_NESTED, &inner);
        let outer = Attributes::new(&bytes).find(9).unwrap();
        let found: Vec<_> = outer.nested().all(1).map(|a| a.u8()).collect();
        assert_eq!(found, [Some(5), Some(6)]);
        assert_eq!(outer.nested().all(2).count(), 0);
    }
}
