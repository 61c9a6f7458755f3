//! Requests: built attribute by attribute, and kept after sending, because refusals refer to offsets in them.

use zerocopy::IntoBytes;

use super::attr::{self, F_NESTED, align};
use super::message::Header;
use super::names::{Names, path_at};

/// `NLM_F_REQUEST` and `NLM_F_ACK`: all requests here ask for an acknowledgement.
const F_REQUEST_ACK: u16 = 0x1 | F_ACK;
const F_ACK: u16 = 0x4;
/// `NLM_F_DUMP` (`NLM_F_ROOT` and `NLM_F_MATCH`): a request for all objects.
pub const F_DUMP: u16 = 0x300;

/// A request under construction, or as it was sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// Header, the family's fixed body, attributes.
    pub(super) bytes: Vec<u8>,
    attributes_at: usize,
    names: Names,
    /// 0 until it is sent.
    pub(super) sequence: u32,
    /// An attribute was longer than its length field can express.
    too_long: bool,
}

impl Request {
    /// Starts a request of type `kind` with `flags` (`NLM_F_*` in addition to request and ack) and the
    /// fixed body of the family.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let header = Header::new(kind, flags | F_REQUEST_ACK);
        let mut bytes = [header.as_bytes(), body].concat();
        bytes.resize(align(bytes.len()), 0);
        Self {
            attributes_at: bytes.len(),
            bytes,
            names: Names::NONE,
            sequence: 0,
            too_long: false,
        }
    }

    /// Makes it a request that the kernel acknowledges only if it refuses it.
    #[must_use]
    pub(super) fn without_ack(mut self) -> Self {
        Header::clear_flags(&mut self.bytes, F_ACK);
        self
    }

    /// Appends a number as a u32 in network byte order, as netfilter has them.
    #[must_use]
    pub(crate) fn be32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// Sets the names of the attributes, for errors that name one.
    #[must_use]
    pub fn named(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Appends an attribute. A request with one of more than 65,531 bytes cannot be sent (`EMSGSIZE`).
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let start = attr::open(&mut self.bytes, kind);
        self.bytes.extend_from_slice(value);
        self.close(start)
    }

    /// Appends a flag: an attribute without a value.
    #[must_use]
    pub fn flag(self, kind: u16) -> Self {
        self.attribute(kind, &[])
    }

    /// Appends a number as a u8.
    #[must_use]
    pub fn u8(self, kind: u16, value: u8) -> Self {
        self.attribute(kind, &[value])
    }

    /// Appends a number as a u32.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends text, with its terminating NUL.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat())
    }

    /// Appends a nest with the attributes that `build` appends.
    #[must_use]
    pub fn nested(self, kind: u16, build: impl FnOnce(Self) -> Self) -> Self {
        self.nested_after(kind, &[], build)
    }

    /// As [`nested`](Self::nested), with a fixed body before the attributes.
    #[must_use]
    pub(crate) fn nested_after(
        mut self,
        kind: u16,
        body: &[u8],
        build: impl FnOnce(Self) -> Self,
    ) -> Self {
        let start = attr::open(&mut self.bytes, kind | F_NESTED);
        self.bytes.extend_from_slice(body);
        build(self).close(start)
    }

    fn close(mut self, attribute_start: usize) -> Self {
        self.too_long |= attr::close(&mut self.bytes, attribute_start).is_none();
        self
    }

    /// Calls `append` with the value, if there is one.
    #[must_use]
    pub(crate) fn with<T>(self, value: Option<T>, append: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => append(self, value),
            None => self,
        }
    }

    /// Returns the attributes so far, as in a reply.
    #[cfg(test)]
    pub(crate) fn reply(&self) -> attr::Attributes<'_> {
        attr::Attributes::new(&self.bytes[self.attributes_at..])
    }

    /// Fills in the length and the sequence number; `None` if an attribute or the message is too long.
    pub(super) fn finish(mut self, sequence: u32) -> Option<Self> {
        Header::complete(&mut self.bytes, sequence)?;
        self.sequence = sequence;
        (!self.too_long).then_some(self)
    }

    /// Returns the name of the attribute at `offset` of the message, or of its nested attribute `extra`.
    pub(super) fn attribute_path(&self, offset: u32, extra: Option<u16>) -> Option<String> {
        let offset = usize::try_from(offset).ok()?;
        let attributes = self.bytes.get(self.attributes_at..)?;
        let path = path_at(attributes, offset.checked_sub(self.attributes_at)?)?;
        Some(self.names.text(path.into_iter().chain(extra)))
    }

    /// Returns the name of an attribute of type `kind` at the outermost level.
    pub(super) fn top_level_path(&self, kind: u16) -> String {
        self.names.text([kind])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attr::VALUE_BYTES_MAX;

    #[test]
    fn a_request_with_an_attribute_that_is_too_long_cannot_be_sent() {
        let new = || Request::new(16, 0, &[]);
        let longest = new().attribute(1, &[0; VALUE_BYTES_MAX]);
        assert!(longest.finish(1).is_some());
        let longer = new().attribute(1, &[0; VALUE_BYTES_MAX + 1]);
        // It still cannot be sent after a short attribute was appended.
        assert!(longer.u32(2, 0).finish(1).is_none());
        let nest = new().nested(1, |r| (0..9_000).fold(r, |r, n| r.u32(2, n)));
        assert!(nest.finish(1).is_none());
    }
}
