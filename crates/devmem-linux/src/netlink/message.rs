//! Messages: building requests, walking replies.

use std::ffi::c_int;

use super::attr::{self, Attributes, F_NESTED, align};
use super::error::{BadAttribute, NetlinkError};
use super::names::{Names, path_at};
use rustix::io::Errno;

/// `NLMSG_HDRLEN`: length, type, flags, sequence number, port id.
const HEADER_LEN: usize = 16;
/// `NLM_F_REQUEST` and `NLM_F_ACK`: every request of ours wants an answer.
const F_REQUEST_ACK: u16 = 0x1 | 0x4;
/// `NLM_F_ACK_TLVS`: an acknowledgement carries attributes.
const F_ACK_TLVS: u16 = 0x200;
/// `NLM_F_CAPPED`: an acknowledgement leaves out the request's body.
const F_CAPPED: u16 = 0x100;
/// `NLM_F_DUMP_INTR`: what is listed changed while it was being listed.
const F_DUMP_INTR: u16 = 0x10;
/// `NLM_F_DUMP` (`NLM_F_ROOT` and `NLM_F_MATCH`): a request for a list.
pub const F_DUMP: u16 = 0x300;
/// `NLMSG_ERROR`: an acknowledgement, or an error.
pub(super) const TYPE_ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(super) const TYPE_DONE: u16 = 3;
/// `NLMSG_OVERRUN`: messages were lost.
const TYPE_OVERRUN: u16 = 4;
/// `NLMSG_MIN_TYPE`: types below it are netlink's own.
const TYPE_FIRST_OF_FAMILIES: u16 = 16;
/// `NLMSGERR_ATTR_MSG`, `_OFFS`, `_MISS_TYPE`, `_MISS_NEST`.
const ERROR_ATTR_TEXT: u16 = 1;
const ERROR_ATTR_OFFSET: u16 = 2;
const ERROR_ATTR_MISSING: u16 = 5;
const ERROR_ATTR_MISSING_NEST: u16 = 6;

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
    body_len: usize,
    names: Names,
}

/// A request with its length and sequence number, as it was sent: error replies point into it.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) bytes: Vec<u8>,
    pub(super) sequence: u32,
    body_len: usize,
    names: Names,
}

impl SentRequest {
    /// Names the attribute at `offset` in the message; `extra` is one more below it.
    fn attribute_path(&self, offset: usize, extra: Option<u16>) -> Option<String> {
        let first = HEADER_LEN + align(self.body_len);
        path_at(&self.bytes, first, offset, extra, self.names)
    }

    /// Names an attribute of type `kind` that should be at the outermost level.
    fn top_level_path(&self, kind: u16) -> String {
        self.names.text(&[kind])
    }
}

impl Request {
    /// Starts a request of type `kind` with `flags` (`NLM_F_*` beyond request and ack) and the
    /// family's fixed body.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | F_REQUEST_ACK).to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(align(bytes.len()), 0);
        Self {
            bytes,
            body_len: body.len(),
            names: Names::NONE,
        }
    }

    /// Says how the attributes are called, for errors that point at one.
    #[must_use]
    pub fn named(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Appends an attribute that holds the attributes which `build` appends.
    ///
    /// # Panics
    ///
    /// If they are longer than an attribute can be (65,531 bytes).
    #[must_use]
    pub fn nested(mut self, kind: u16, build: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; attr::HEADER_LEN]);
        self = build(self);
        let len = u16::try_from(self.bytes.len() - start)
            .expect("callers nest queue lists and feature lists, a few kilobytes each");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | F_NESTED).to_ne_bytes());
        self
    }

    /// Appends a number.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends text, with its terminating NUL.
    ///
    /// # Panics
    ///
    /// If it is longer than an attribute can be.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat())
    }

    /// Appends an attribute.
    ///
    /// # Panics
    ///
    /// If the value is longer than an attribute can be (65,531 bytes).
    #[must_use]
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        attr::append(&mut self.bytes, kind, value);
        self
    }

    /// Returns the attributes so far, as a reply would carry them.
    #[cfg(test)]
    pub(crate) fn attribute_bytes(&self) -> &[u8] {
        &self.bytes[HEADER_LEN + align(self.body_len)..]
    }

    /// Fills in the length and the sequence number.
    pub(super) fn finish(self, sequence: u32) -> SentRequest {
        let Self {
            mut bytes,
            body_len,
            names,
        } = self;
        let len = u32::try_from(bytes.len()).expect("a request is a few kilobytes");
        bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        SentRequest {
            bytes,
            sequence,
            body_len,
            names,
        }
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The message type.
    pub kind: u16,
    /// The sequence number of the request it answers.
    pub sequence: u32,
    flags: u16,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns what follows the header: a fixed body, then attributes.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the attributes after a fixed body of `body_len` bytes.
    pub fn attributes(&self, body_len: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(align(body_len)..).unwrap_or_default())
    }

    /// Tells whether this is an answer of the family, not one of netlink itself.
    pub(super) fn is_of_a_family(&self) -> bool {
        self.kind >= TYPE_FIRST_OF_FAMILIES
    }

    /// Tells whether the list that this message is part of changed while it was being read.
    pub(super) fn was_interrupted(&self) -> bool {
        self.flags & F_DUMP_INTR != 0
    }

    /// Reads an acknowledgement or the end of a dump: `None` if this message is neither.
    pub(super) fn outcome(
        &self,
        what: &str,
        sent: &SentRequest,
    ) -> Option<Result<(), NetlinkError>> {
        match self.kind {
            TYPE_ERROR | TYPE_DONE => {}
            TYPE_OVERRUN => return Some(Err(NetlinkError::new(what, Errno::NOBUFS))),
            _ => return None,
        }
        let Some(code) = self.payload.first_chunk::<4>() else {
            // Taking a damaged answer for "done" would be taking a refusal for consent.
            return Some(Err(NetlinkError::new(what, Errno::BADMSG)));
        };
        let code = c_int::from_ne_bytes(*code);
        if code == 0 {
            return Some(Ok(()));
        }
        let Some(errno) = errno_of(code) else {
            return Some(Err(NetlinkError::new(what, Errno::BADMSG)));
        };
        let (text, attribute) = self.extended_ack(sent).unwrap_or_default();
        Some(Err(NetlinkError {
            text,
            attribute,
            ..NetlinkError::new(what, errno)
        }))
    }

    /// Reads the extended acknowledgement: after the code and the request's header, and its body
    /// too unless that was capped (linux net/netlink/af_netlink.c netlink_ack).
    fn extended_ack(&self, sent: &SentRequest) -> Option<(Option<String>, Option<BadAttribute>)> {
        if self.flags & F_ACK_TLVS == 0 {
            return None;
        }
        let offset = if self.kind == TYPE_DONE {
            4
        } else if self.flags & F_CAPPED != 0 {
            4 + HEADER_LEN
        } else {
            let len = self.payload.get(4..8)?.try_into().ok();
            let len = len.map(u32::from_ne_bytes)?;
            4 + align(usize::try_from(len).ok()?)
        };
        let found = Attributes::new(self.payload.get(offset..)?);
        let number = |kind| found.clone().find(kind).and_then(|a| a.u32());
        let text = found.clone().find(ERROR_ATTR_TEXT);
        let text = text.and_then(|a| a.text()).map(str::to_owned);
        let missing = number(ERROR_ATTR_MISSING).and_then(|kind| u16::try_from(kind).ok());
        let attribute = match (missing, number(ERROR_ATTR_OFFSET)) {
            (Some(kind), _) => {
                let nest = number(ERROR_ATTR_MISSING_NEST).and_then(|o| usize::try_from(o).ok());
                let path = nest.and_then(|offset| sent.attribute_path(offset, Some(kind)));
                Some(BadAttribute {
                    path: path.unwrap_or_else(|| sent.top_level_path(kind)),
                    missing: true,
                })
            }
            (None, Some(offset)) => usize::try_from(offset)
                .ok()
                .and_then(|offset| sent.attribute_path(offset, None))
                .map(|path| BadAttribute {
                    path,
                    missing: false,
                }),
            (None, None) => None,
        };
        Some((text, attribute))
    }
}

/// Reads the code of a refusal; `None` if it is no negated errno (1 to 4,095: linux include/linux/err.h `MAX_ERRNO`),
/// which rustix's type cannot hold.
fn errno_of(code: c_int) -> Option<Errno> {
    let number = code.checked_neg()?;
    (1..=4095)
        .contains(&number)
        .then(|| Errno::from_raw_os_error(number))
}

/// Walks the messages of one datagram; stops at the first that does not fit.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Walks the messages in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = self.rest.split_first_chunk::<HEADER_LEN>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let len = usize::try_from(len).ok()?;
        let payload = self.rest.get(HEADER_LEN..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            payload,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const NAMES: Names = Names(&[
        (1, "ifindex", Names::NONE),
        (2, "queues", Names(&[(1, "id", Names::NONE)])),
    ]);

    /// A request like bind-rx: a number, and a nest with a number in it.
    fn request() -> SentRequest {
        Request::new(16, 0, &[13, 1, 0, 0])
            .named(NAMES)
            .u32(1, 7)
            .nested(2, |r| r.u32(1, 9))
            .finish(9)
    }

    /// Offsets in `request()`: header, body, first attribute (4 + 4), nest header.
    const OFFSET_OF_NEST: u32 = 16 + 4 + 8;
    const OFFSET_OF_QUEUE_ID: u32 = OFFSET_OF_NEST + 4;

    /// An acknowledgement as the kernel writes it with NETLINK_CAP_ACK and NETLINK_EXT_ACK.
    pub(in crate::netlink) fn refusal(code: c_int, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER_LEN]);
        let mut request = Request::new(TYPE_ERROR, 0, &body);
        for (kind, value) in attributes {
            request = request.attribute(*kind, value);
        }
        let mut bytes = request.finish(9).bytes;
        bytes[6..8].copy_from_slice(&(F_CAPPED | F_ACK_TLVS).to_ne_bytes());
        bytes
    }

    fn error(bytes: &[u8]) -> NetlinkError {
        let message = Messages::new(bytes).next().unwrap();
        message.outcome("bind", &request()).unwrap().unwrap_err()
    }

    #[test]
    fn a_refusal_keeps_errno_and_the_kernels_words() {
        let error = error(&refusal(-22, &[(ERROR_ATTR_TEXT, b"Invalid prefix\0")]));
        assert_eq!(error.errno, Errno::INVAL);
        assert_eq!(error.text.as_deref(), Some("Invalid prefix"));
        assert!(error.to_string().starts_with("bind: "), "{error}");
        assert!(
            error.to_string().ends_with("(kernel: Invalid prefix)"),
            "{error}"
        );
    }

    #[test]
    fn the_attribute_that_a_refusal_points_at_is_named() {
        for (offset, path) in [
            (20, "ifindex"),
            (OFFSET_OF_NEST, "queues"),
            (OFFSET_OF_QUEUE_ID, "queues.id"),
        ] {
            let error = error(&refusal(-22, &[(ERROR_ATTR_OFFSET, &offset.to_ne_bytes())]));
            let bad = error.attribute.expect("an offset was given");
            assert_eq!((bad.path.as_str(), bad.missing), (path, false));
        }
        for nowhere in [0, 1, 21, 4096, u32::MAX] {
            let error = error(&refusal(
                -22,
                &[(ERROR_ATTR_OFFSET, &nowhere.to_ne_bytes())],
            ));
            assert_eq!(error.attribute, None, "offset {nowhere}");
        }
    }

    #[test]
    fn the_attribute_that_a_refusal_misses_is_named() {
        let kind = |kind: u32| kind.to_ne_bytes();
        let top = error(&refusal(-22, &[(ERROR_ATTR_MISSING, &kind(3))]));
        assert_eq!(
            top.to_string().split_once("(kernel: ").unwrap().1,
            "attribute #3 is missing)"
        );
        let nest = error(&refusal(
            -22,
            &[
                (ERROR_ATTR_MISSING, &kind(3)),
                (ERROR_ATTR_MISSING_NEST, &kind(OFFSET_OF_NEST)),
            ],
        ));
        let bad = nest.attribute.unwrap();
        assert_eq!((bad.path.as_str(), bad.missing), ("queues.#3", true));
    }

    #[test]
    fn an_acknowledgement_is_success_and_data_is_neither() {
        let ack = refusal(0, &[]);
        let first = |bytes| Messages::new(bytes).next().unwrap();
        assert_eq!(first(&ack).outcome("x", &request()), Some(Ok(())));
        let data = request();
        assert_eq!(first(&data.bytes).outcome("x", &data), None);
    }

    #[test]
    fn a_code_that_is_no_errno_is_a_damaged_answer() {
        for code in [1, 22, c_int::MAX, -4096, -65_536, c_int::MIN] {
            assert_eq!(error(&refusal(code, &[])).errno, Errno::BADMSG, "{code}");
        }
        assert_eq!(error(&refusal(-4095, &[])).errno.raw_os_error(), 4095);
    }

    #[test]
    fn an_acknowledgement_without_a_code_is_no_success() {
        let bytes = Request::new(TYPE_ERROR, 0, &[]).finish(9).bytes;
        assert_eq!(error(&bytes).errno, Errno::BADMSG);
    }

    #[test]
    fn damaged_lengths_end_the_walk_without_a_panic() {
        let good = refusal(-1, &[(ERROR_ATTR_TEXT, b"text\0")]);
        for cut in 0..good.len() {
            let walked = Messages::new(&good[..cut]).count();
            assert_eq!(walked, 0, "a message cut to {cut} bytes was taken");
        }
        for len in [0u32, 1, 15, 16, 17, 20, u32::MAX] {
            let mut bytes = good.clone();
            bytes[0..4].copy_from_slice(&len.to_ne_bytes());
            for message in Messages::new(&bytes).take(100) {
                let _ = message.outcome("x", &request());
            }
        }
    }
}
