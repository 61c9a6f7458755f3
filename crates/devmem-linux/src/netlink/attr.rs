//! Attributes: type, length and value, padded to four bytes (linux include/uapi/linux/netlink.h).

/// `NLA_HDRLEN`: length and type, two bytes each.
pub const HEADER_LEN: usize = 4;
/// `NLA_ALIGNTO`.
const ALIGN: usize = 4;
/// `NLA_TYPE_MASK`: the type without the nested and byte-order flags.
const TYPE_MASK: u16 = 0x3fff;

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
    /// Returns the value as a number in host order, if it has that size.
    pub fn u32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Returns the value as text, up to the first NUL.
    pub fn text(&self) -> Option<&'a str> {
        let end = self
            .value
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.value.len());
        std::str::from_utf8(self.value.get(..end)?).ok()
    }
}

/// Walks attributes; stops at the first that does not fit.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Walks the attributes in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the first attribute of type `kind`.
    pub fn find(mut self, kind: u16) -> Option<Attribute<'a>> {
        Iterator::find(&mut self, |a| a.kind == kind)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let (header, _) = self.rest.split_first_chunk::<HEADER_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = self.rest.get(HEADER_LEN..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(Attribute { kind, value })
    }
}

/// Appends one attribute to a message, or to the value of an attribute around it.
///
/// # Panics
///
/// If the value is longer than an attribute can be (65,531 bytes).
pub(crate) fn append(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(HEADER_LEN + value.len())
        .expect("callers pass names, addresses and numbers, a few bytes each");
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(align(out.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out, kind, value);
        out
    }

    #[test]
    fn padding_between_attributes_is_skipped() {
        let bytes = [
            attribute(3, b"lo\0"),
            attribute(4 | 0x8000, &7u32.to_ne_bytes()),
        ]
        .concat();
        let found: Vec<_> = Attributes::new(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].text(), Some("lo"));
        assert_eq!((found[1].kind, found[1].u32()), (4, Some(7)));
    }

    #[test]
    fn a_length_past_the_end_or_below_the_header_ends_the_walk() {
        let mut bytes = attribute(1, &[1, 2, 3, 4]);
        bytes[0] = 200;
        assert_eq!(Attributes::new(&bytes).next(), None);
        bytes[0] = 3;
        assert_eq!(Attributes::new(&bytes).next(), None);
        bytes[0] = 0;
        assert_eq!(Attributes::new(&bytes).next(), None);
    }

    #[test]
    fn a_number_of_the_wrong_size_is_none() {
        let bytes = attribute(1, &[1, 2, 3]);
        assert_eq!(Attributes::new(&bytes).find(1).and_then(|a| a.u32()), None);
    }
}
