//! Messages: building requests, walking replies.

use std::ffi::c_int;

use super::attr::{self, Attributes, align};
use super::error::NetlinkError;
use rustix::io::Errno;

/// `NLMSG_HDRLEN`: length, type, flags, sequence number, port id.
const HEADER_LEN: usize = 16;
/// `NLM_F_REQUEST` and `NLM_F_ACK`: every request of ours wants an answer.
const F_REQUEST_ACK: u16 = 0x1 | 0x4;
/// `NLM_F_ACK_TLVS`: an acknowledgement carries attributes.
const F_ACK_TLVS: u16 = 0x200;
/// `NLM_F_CAPPED`: an acknowledgement leaves out the request's body.
const F_CAPPED: u16 = 0x100;
/// `NLMSG_ERROR`: an acknowledgement, or an error.
pub(super) const TYPE_ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(super) const TYPE_DONE: u16 = 3;
/// `NLMSGERR_ATTR_MSG`.
const ERROR_ATTR_TEXT: u16 = 1;

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
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
        Self { bytes }
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

    /// Fills in the length and the sequence number.
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).expect("a request is a few hundred bytes");
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
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

    /// Reads an acknowledgement or the end of a dump: `None` if this message is neither.
    pub(super) fn outcome(&self, what: &str) -> Option<Result<(), NetlinkError>> {
        if self.kind != TYPE_ERROR && self.kind != TYPE_DONE {
            return None;
        }
        let code = self
            .payload
            .first_chunk::<4>()
            .map_or(0, |b| c_int::from_ne_bytes(*b));
        if code == 0 {
            return Some(Ok(()));
        }
        let errno = Errno::from_raw_os_error(code.saturating_neg());
        let text = self.error_text().map(str::to_owned);
        Some(Err(NetlinkError {
            text,
            ..NetlinkError::new(what, errno)
        }))
    }

    /// Finds the extended acknowledgement's text: after the code and the request's header, and its
    /// body too unless that was capped (linux net/netlink/af_netlink.c netlink_ack).
    fn error_text(&self) -> Option<&'a str> {
        if self.flags & F_ACK_TLVS == 0 {
            return None;
        }
        let offset = if self.kind == TYPE_DONE {
            4
        } else if self.flags & F_CAPPED != 0 {
            4 + HEADER_LEN
        } else {
            let len = self
                .payload
                .get(4..8)?
                .try_into()
                .ok()
                .map(u32::from_ne_bytes)?;
            4 + align(usize::try_from(len).ok()?)
        };
        Attributes::new(self.payload.get(offset..)?)
            .find(ERROR_ATTR_TEXT)?
            .text()
    }
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
mod tests {
    use super::*;

    /// An acknowledgement as the kernel writes it with NETLINK_CAP_ACK and NETLINK_EXT_ACK.
    fn refusal(code: c_int, text: &str) -> Vec<u8> {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; HEADER_LEN]);
        let mut bytes = Request::new(TYPE_ERROR, F_CAPPED | F_ACK_TLVS, &body)
            .attribute(ERROR_ATTR_TEXT, format!("{text}\0").as_bytes())
            .finish(9);
        bytes[6..8].copy_from_slice(&(F_CAPPED | F_ACK_TLVS).to_ne_bytes());
        bytes
    }

    #[test]
    fn a_refusal_keeps_errno_and_the_kernels_words() {
        let bytes = refusal(-22, "Invalid prefix");
        let message = Messages::new(&bytes).next().unwrap();
        assert_eq!(message.sequence, 9);
        let error = message.outcome("set address of dm0").unwrap().unwrap_err();
        assert_eq!(error.errno, Errno::INVAL);
        assert_eq!(error.text.as_deref(), Some("Invalid prefix"));
        assert!(
            error.to_string().starts_with("set address of dm0: "),
            "{error}"
        );
        assert!(
            error.to_string().ends_with("(kernel: Invalid prefix)"),
            "{error}"
        );
    }

    #[test]
    fn an_acknowledgement_is_success_and_data_is_neither() {
        let ack = refusal(0, "");
        assert_eq!(
            Messages::new(&ack).next().unwrap().outcome("x"),
            Some(Ok(()))
        );
        let data = Request::new(16, 0, &[1, 2, 3, 4]).finish(1);
        assert_eq!(Messages::new(&data).next().unwrap().outcome("x"), None);
    }

    #[test]
    fn damaged_lengths_end_the_walk_without_a_panic() {
        let good = refusal(-1, "text");
        for cut in 0..good.len() {
            let mut walked = 0;
            for message in Messages::new(&good[..cut]) {
                let _ = message.outcome("x");
                walked += 1;
            }
            assert_eq!(walked, 0, "a message cut to {cut} bytes was taken");
        }
        for len in [0u32, 1, 15, 16, 17, 20, u32::MAX] {
            let mut bytes = good.clone();
            bytes[0..4].copy_from_slice(&len.to_ne_bytes());
            for message in Messages::new(&bytes).take(100) {
                let _ = message.outcome("x");
            }
        }
    }
}
