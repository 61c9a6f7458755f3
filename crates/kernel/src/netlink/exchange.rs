//! One request and its replies, without the socket, so that it can be tested with recorded datagrams.

use rustix::io::Errno;

use super::ack;
use super::error::NetlinkError;
use super::message::{NetlinkMessage, messages};
use super::request::Request;

/// Parses the replies to one request, datagram by datagram.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    what: &'a str,
    sent: &'a Request,
    interrupted: bool,
}

impl<'a> Exchange<'a> {
    /// Creates it for the request `sent`; nothing has been received yet. `what` names the request in errors.
    pub(super) fn new(what: &'a str, sent: &'a Request) -> Self {
        Self {
            what,
            sent,
            interrupted: false,
        }
    }

    /// As [`on_datagram`](Self::on_datagram), for a datagram of `len` bytes that was received into `buffer`. If the buffer was
    /// shorter, the rest is lost, which is an error, because the rest may contain the reply.
    pub(super) fn on_received(
        &mut self,
        buffer: &[u8],
        len: usize,
        on_reply: &mut impl FnMut(NetlinkMessage<'_>),
    ) -> Option<Result<(), NetlinkError>> {
        match buffer.get(..len) {
            Some(datagram) => self.on_datagram(datagram, on_reply),
            None => Some(Err(NetlinkError::new(self.what, Errno::MSGSIZE))),
        }
    }

    /// Passes each reply in `datagram` to `on_reply`. Returns the result of the request, or `None` if more
    /// datagrams follow. Messages that answer other requests (late replies, notifications) are
    /// skipped.
    pub(super) fn on_datagram(
        &mut self,
        datagram: &[u8],
        on_reply: &mut impl FnMut(NetlinkMessage<'_>),
    ) -> Option<Result<(), NetlinkError>> {
        for message in messages(datagram).filter(|m| m.sequence == self.sent.sequence) {
            self.interrupted |= message.was_interrupted();
            match ack::outcome(&message, self.what, self.sent) {
                Some(outcome) => return Some(outcome),
                None if message.is_of_a_family() => on_reply(message),
                None => {}
            }
        }
        None
    }

    /// Returns whether the listed objects changed during the dump, so that the list may be incomplete.
    pub(super) fn was_interrupted(&self) -> bool {
        self.interrupted
    }
}

/// The answers to a batch of requests.
#[derive(Debug)]
pub(super) struct BatchAnswers<'a> {
    what: &'a str,
    /// All messages of the batch. The first and the last are not acknowledged, but the kernel may refuse them.
    sent: Vec<Request>,
    unanswered: usize,
    refused: Option<NetlinkError>,
}

impl<'a> BatchAnswers<'a> {
    /// `what` names the batch in errors.
    pub(super) fn new(what: &'a str, sent: Vec<Request>) -> Self {
        Self {
            what,
            unanswered: sent.len().saturating_sub(2),
            sent,
            refused: None,
        }
    }

    /// Returns the result of the batch, or `None` if more datagrams follow. The first refusal is the result.
    pub(super) fn on_datagram(&mut self, datagram: &[u8]) -> Option<Result<(), NetlinkError>> {
        for message in messages(datagram) {
            let sent = &self.sent;
            let Some(at) = sent.iter().position(|r| r.sequence == message.sequence) else {
                continue;
            };
            let Some(outcome) = ack::outcome(&message, self.what, &sent[at]) else {
                continue;
            };
            let is_edge = at == 0 || at + 1 == sent.len();
            if let Err(error) = outcome {
                let refused = self.refused.get_or_insert(error);
                if is_edge {
                    // The kernel has not looked at the others.
                    return Some(Err(refused.clone()));
                }
            }
            self.unanswered -= usize::from(!is_edge && self.unanswered > 0);
        }
        (self.unanswered == 0).then(|| self.refused.take().map_or(Ok(()), Err))
    }
}

/// Parses `bytes` as the datagrams that answer a dump request, for fuzzing. The first byte of each datagram is its length in
/// words, the second has the flags `MEND` and `CUT`. Errors are formatted as text, too.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_exchange(mut bytes: &[u8], on_reply: &mut impl FnMut(NetlinkMessage<'_>)) {
    use super::{F_DUMP, Request};
    /// Corrects the length and the sequence number of the first message, which random bytes seldom have.
    const MEND: u8 = 1;
    /// Makes the datagram longer than the buffer.
    const CUT: u8 = 2;
    let names = super::Names(&[(1, "ifindex", super::Names::NONE)]);
    let request = Request::new(0x21, F_DUMP, &[10, 1, 0, 0]).named(names);
    let sent = request.u32(1, 1).nested(2, |r| r.u32(1, 1)).finish(1);
    let sent = sent.expect("it is a few bytes");
    let mut exchange = Exchange::new("fuzz", &sent);
    while let [words, switches, rest @ ..] = bytes {
        let (datagram, rest) = rest.split_at(rest.len().min(usize::from(*words) * 4));
        let mut datagram = datagram.to_vec();
        if switches & MEND != 0
            && let Some(header) = datagram.first_chunk_mut::<12>()
        {
            header[0..4].copy_from_slice(&(u32::from(*words) * 4).to_ne_bytes());
            header[8..12].copy_from_slice(&sent.sequence.to_ne_bytes());
        }
        let len = datagram.len() + usize::from(switches & CUT != 0);
        if let Some(Err(error)) = exchange.on_received(&datagram, len, on_reply) {
            assert!(error.to_string().starts_with("fuzz: "));
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ack::tests::refusal;
    use super::super::{F_DUMP, Request};
    use super::*;

    const FAMILY: u16 = 0x21;

    fn sent() -> Request {
        Request::new(FAMILY, F_DUMP, &[10, 1, 0, 0])
            .finish(9)
            .unwrap()
    }

    fn reply(kind: u16, sequence: u32, flags: u16) -> Vec<u8> {
        let request = Request::new(kind, 0, &[10, 1, 0, 0]).u32(1, sequence);
        let mut bytes = request.finish(sequence).unwrap().bytes;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    fn done(code: i32) -> Vec<u8> {
        Request::new(3, 0, &code.to_ne_bytes())
            .finish(9)
            .unwrap()
            .bytes
    }

    #[test]
    fn a_dump_of_several_datagrams_is_read_to_its_end() {
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let mut seen = 0;
        let mut count = |_: NetlinkMessage<'_>| seen += 1;
        let two = [reply(FAMILY, 9, 2), reply(FAMILY, 9, 2)].concat();
        assert_eq!(exchange.on_datagram(&two, &mut count), None);
        let last = [reply(FAMILY, 9, 2), done(0)].concat();
        assert_eq!(exchange.on_datagram(&last, &mut count), Some(Ok(())));
        assert_eq!(seen, 3);
        assert!(!exchange.was_interrupted());
    }

    #[test]
    fn a_dump_that_was_interrupted_is_marked() {
        const F_DUMP_INTR: u16 = 0x10;
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let datagram = [reply(FAMILY, 9, F_DUMP_INTR), done(0)].concat();
        assert_eq!(exchange.on_datagram(&datagram, &mut |_| {}), Some(Ok(())));
        assert!(exchange.was_interrupted());
    }

    #[test]
    fn a_dump_can_fail_in_the_middle() {
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let datagram = [reply(FAMILY, 9, 2), done(-19)].concat();
        let error = exchange.on_datagram(&datagram, &mut |_| {}).unwrap();
        assert_eq!(error.unwrap_err().errno, Errno::NODEV);
    }

    #[test]
    fn replies_to_other_requests_and_control_messages_of_netlink_are_skipped() {
        const NOOP: u16 = 1;
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let mut foreign_ack = refusal(-1, &[]);
        foreign_ack[8..12].copy_from_slice(&8u32.to_ne_bytes());
        let datagram = [reply(FAMILY, 8, 2), foreign_ack, reply(NOOP, 9, 0)].concat();
        let mut seen = 0;
        let outcome = exchange.on_datagram(&datagram, &mut |_| seen += 1);
        assert_eq!((outcome, seen), (None, 0));
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_is_an_error() {
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let buffer = [reply(FAMILY, 9, 2), done(0)].concat();
        let mut seen = 0;
        let cut = exchange.on_received(&buffer, buffer.len() + 1, &mut |_| seen += 1);
        let error = cut.expect("it ends").expect_err("a part is lost");
        assert_eq!((error.errno, seen), (Errno::MSGSIZE, 0));
        assert!(error.to_string().starts_with("list: EMSGSIZE"), "{error}");
        let whole = exchange.on_received(&buffer, buffer.len(), &mut |_| seen += 1);
        assert_eq!((whole, seen), (Some(Ok(())), 1));
    }

    #[test]
    fn an_overrun_is_an_error() {
        const OVERRUN: u16 = 4;
        let sent = sent();
        let mut exchange = Exchange::new("list", &sent);
        let outcome = exchange.on_datagram(&reply(OVERRUN, 9, 0), &mut |_| {});
        assert_eq!(outcome.unwrap().unwrap_err().errno, Errno::NOBUFS);
    }
}
