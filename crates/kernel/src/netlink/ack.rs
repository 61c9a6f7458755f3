//! Acknowledgements and refusals: the errno, the kernel's message, and the attribute that it names.

use std::ffi::c_int;

use devmem_uapi::text::printable;
use rustix::io::Errno;

use super::attr::{Attributes, align};
use super::error::{BadAttribute, NetlinkError};
use super::message::{Header, NetlinkMessage, TYPE_ERROR, errno_of};
use super::request::Request;

/// `NLMSG_DONE`: the end of a dump.
const TYPE_DONE: u16 = 3;
/// `NLMSG_OVERRUN`: messages were lost.
const TYPE_OVERRUN: u16 = 4;
/// `NLM_F_ACK_TLVS`: the acknowledgement has attributes.
const F_ACK_TLVS: u16 = 0x200;
/// `NLM_F_CAPPED`: the acknowledgement has no copy of the request's body.
const F_CAPPED: u16 = 0x100;
/// `NLMSGERR_ATTR_MSG`, `_OFFS`, `_MISS_TYPE`, `_MISS_NEST`.
const ATTR_TEXT: u16 = 1;
const ATTR_OFFSET: u16 = 2;
const ATTR_MISSING: u16 = 5;
const ATTR_MISSING_NEST: u16 = 6;

/// Parses an acknowledgement or the end of a dump: `None` if `message` is neither. `what` names the request in errors.
pub(super) fn outcome(
    message: &NetlinkMessage<'_>,
    what: &str,
    sent: &Request,
) -> Option<Result<(), NetlinkError>> {
    match message.kind {
        TYPE_ERROR | TYPE_DONE => {}
        TYPE_OVERRUN => return Some(Err(NetlinkError::new(what, Errno::NOBUFS))),
        _ => return None,
    }
    // A damaged acknowledgement is an error: it could have been a refusal.
    let code = message.payload.first_chunk().copied();
    let refused = match code.map(c_int::from_ne_bytes) {
        Some(0) => return Some(Ok(())),
        Some(code) => errno_of(code),
        None => None,
    };
    let Some(errno) = refused else {
        return Some(Err(NetlinkError::new(what, Errno::BADMSG)));
    };
    let said = extended_ack(message).unwrap_or(Attributes::new(&[]));
    Some(Err(NetlinkError {
        text: said.text(ATTR_TEXT).map(printable),
        attribute: bad_attribute(said, sent),
        ..NetlinkError::new(what, errno)
    }))
}

/// Returns the attributes of a refusal. They follow the code, the header of the request and, unless capped, its body
/// (linux net/netlink/af_netlink.c netlink_ack).
fn extended_ack<'a>(message: &NetlinkMessage<'a>) -> Option<Attributes<'a>> {
    const CODE_LEN: usize = size_of::<c_int>();
    if message.flags & F_ACK_TLVS == 0 {
        return None;
    }
    let request_len = match message.kind {
        TYPE_DONE => 0,
        _ if message.flags & F_CAPPED != 0 => size_of::<Header>(),
        _ => {
            let len = message.payload.get(CODE_LEN..)?.first_chunk()?;
            usize::try_from(u32::from_ne_bytes(*len)).ok()?
        }
    };
    let request = message.payload.get(CODE_LEN..)?;
    let is_whole = request_len <= request.len();
    is_whole.then(|| Attributes::new(request.get(align(request_len)..).unwrap_or_default()))
}

/// Returns the attribute of the request that a refusal names as missing or as wrong.
fn bad_attribute(said: Attributes<'_>, sent: &Request) -> Option<BadAttribute> {
    let missing = said.u32(ATTR_MISSING).and_then(|kind| kind.try_into().ok());
    let path = match missing {
        Some(kind) => said
            .u32(ATTR_MISSING_NEST)
            .and_then(|nest| sent.attribute_path(nest, Some(kind)))
            .unwrap_or_else(|| sent.top_level_path(kind)),
        None => sent.attribute_path(said.u32(ATTR_OFFSET)?, None)?,
    };
    Some(BadAttribute {
        path,
        missing: missing.is_some(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::netlink::Names;
    use crate::netlink::message::messages;

    const NAMES: Names = Names(&[
        (1, "ifindex", Names::NONE),
        (2, "queues", Names(&[(1, "id", Names::NONE)])),
    ]);

    /// A request like bind-rx: a number, and a nest with a number in it.
    fn request() -> Request {
        Request::new(16, 0, &[13, 1, 0, 0])
            .named(NAMES)
            .u32(1, 7)
            .nested(2, |r| r.u32(1, 9))
            .finish(9)
            .unwrap()
    }

    /// Offsets in `request()`: header, body, first attribute (4 + 4), nest header.
    const OFFSET_OF_NEST: u32 = 16 + 4 + 8;
    const OFFSET_OF_QUEUE_ID: u32 = OFFSET_OF_NEST + 4;

    /// A refusal as the kernel writes it with NETLINK_CAP_ACK and NETLINK_EXT_ACK.
    pub(in crate::netlink) fn refusal(code: c_int, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend_from_slice(&[0; size_of::<Header>()]);
        let mut request = Request::new(TYPE_ERROR, 0, &body);
        for (kind, value) in attributes {
            request = request.attribute(*kind, value);
        }
        let mut bytes = request.finish(9).unwrap().bytes;
        bytes[6..8].copy_from_slice(&(F_CAPPED | F_ACK_TLVS).to_ne_bytes());
        bytes
    }

    fn error(bytes: &[u8]) -> NetlinkError {
        let message = messages(bytes).next().unwrap();
        outcome(&message, "bind", &request()).unwrap().unwrap_err()
    }

    #[test]
    fn a_refusal_keeps_errno_and_the_kernels_message() {
        let error = error(&refusal(-22, &[(ATTR_TEXT, b"Invalid prefix\0")]));
        assert_eq!(error.errno, Errno::INVAL);
        assert_eq!(error.text.as_deref(), Some("Invalid prefix"));
        assert!(error.to_string().starts_with("bind: "), "{error}");
        assert!(
            error.to_string().ends_with("(kernel: Invalid prefix)"),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_attribute_is_named() {
        for (offset, path) in [
            (20, "ifindex"),
            (OFFSET_OF_NEST, "queues"),
            (OFFSET_OF_QUEUE_ID, "queues.id"),
        ] {
            let error = error(&refusal(-22, &[(ATTR_OFFSET, &offset.to_ne_bytes())]));
            let bad = error.attribute.expect("an offset was given");
            assert_eq!((bad.path.as_str(), bad.missing), (path, false));
        }
        for nowhere in [0, 1, 21, 4096, u32::MAX] {
            let error = error(&refusal(-22, &[(ATTR_OFFSET, &nowhere.to_ne_bytes())]));
            assert_eq!(error.attribute, None, "offset {nowhere}");
        }
    }

    #[test]
    fn a_missing_attribute_is_named() {
        let kind = |kind: u32| kind.to_ne_bytes();
        let top = error(&refusal(-22, &[(ATTR_MISSING, &kind(3))]));
        assert_eq!(
            top.to_string().split_once("(kernel: ").unwrap().1,
            "attribute #3 is missing)"
        );
        let nest = error(&refusal(
            -22,
            &[
                (ATTR_MISSING, &kind(3)),
                (ATTR_MISSING_NEST, &kind(OFFSET_OF_NEST)),
            ],
        ));
        let bad = nest.attribute.unwrap();
        assert_eq!((bad.path.as_str(), bad.missing), ("queues.#3", true));
    }

    #[test]
    fn an_acknowledgement_is_success_and_data_is_neither() {
        let ack = refusal(0, &[]);
        let first = |bytes| messages(bytes).next().unwrap();
        assert_eq!(outcome(&first(&ack), "x", &request()), Some(Ok(())));
        let data = request();
        assert_eq!(outcome(&first(&data.bytes), "x", &data), None);
    }

    #[test]
    fn a_code_that_is_not_an_errno_is_a_damaged_reply() {
        for code in [1, 22, c_int::MAX, -4096, -65_536, c_int::MIN] {
            assert_eq!(error(&refusal(code, &[])).errno, Errno::BADMSG, "{code}");
        }
        assert_eq!(error(&refusal(-4095, &[])).errno.raw_os_error(), 4095);
    }

    #[test]
    fn an_acknowledgement_without_a_code_is_an_error() {
        let bytes = Request::new(TYPE_ERROR, 0, &[]).finish(9).unwrap().bytes;
        assert_eq!(error(&bytes).errno, Errno::BADMSG);
    }

    #[test]
    fn damaged_lengths_end_the_walk_without_a_panic() {
        let good = refusal(-1, &[(ATTR_TEXT, b"text\0")]);
        for cut in 0..good.len() {
            let walked = messages(&good[..cut]).count();
            assert_eq!(walked, 0, "a message cut to {cut} bytes was taken");
        }
        for len in [0u32, 1, 15, 16, 17, 20, u32::MAX] {
            let mut bytes = good.clone();
            bytes[0..4].copy_from_slice(&len.to_ne_bytes());
            for message in messages(&bytes).take(100) {
                let _ = outcome(&message, "x", &request());
            }
        }
    }
}
