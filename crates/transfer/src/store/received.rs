//! Received bytes of replies that a session has not taken yet.

use super::session::{Fault, Session};

/// The bytes of one receive, which has as many replies as have come.
#[derive(Debug, Default)]
pub(super) struct Received {
    text: Vec<u8>,
    /// How many the session has.
    given: usize,
}

impl Received {
    /// Returns room for the next receive, after the session has taken all bytes of the last one.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        self.text.resize(len, 0);
        self.given = 0;
        &mut self.text
    }

    /// Gives the session bytes, reply by reply, as far as it awaits replies. Returns whether that was any.
    ///
    /// # Errors
    /// Those of [`Session::on_text`].
    pub(super) fn give(&mut self, session: &mut dyn Session) -> Result<bool, Fault> {
        let before = self.given;
        while let rest @ [_, ..] = &self.text[self.given..] {
            let now = &rest[..rest.len().min(session.missing())];
            if now.is_empty() {
                break;
            }
            self.given += now.len();
            session.on_text(now)?;
        }
        Ok(self.given > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Operation;
    use crate::store::nbd::NbdSession;
    use crate::store::session::{Acknowledge, Write};
    use client::Piece;

    /// The length of a simple reply of NBD.
    const REPLY_BYTES: usize = 16;

    fn write(number: u64) -> Write {
        Write {
            operation: Operation::Write,
            piece: Piece {
                start: number * 512,
                end: number * 512 + 512,
            },
        }
    }

    fn reply(cookie: u64) -> Vec<u8> {
        let head = [0x6744_6698_u32, 0].map(u32::to_be_bytes).concat();
        [&head[..], &cookie.to_be_bytes()].concat()
    }

    fn receive(received: &mut Received, bytes: &[u8]) {
        received.room(bytes.len()).copy_from_slice(bytes);
    }

    fn completed(session: &mut NbdSession) -> Vec<Write> {
        let next = || session.completed().map(|(_, write)| write);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_reply_gets_what_it_misses_and_the_next_one_the_rest_wherever_receives_are_cut() {
        for first in 1..3 * REPLY_BYTES {
            let mut session = NbdSession::new("host", false, Acknowledge::Received, 3);
            let cookies = [0, 1, 2].map(|number| session.request(write(number)));
            let all = cookies.map(reply).concat();
            let mut received = Received::default();
            let (one, other) = all.split_at(first);
            receive(&mut received, one);
            assert!(received.give(&mut session).unwrap());
            assert_eq!(completed(&mut session).len(), first / REPLY_BYTES);
            receive(&mut received, other);
            assert!(received.give(&mut session).unwrap());
            assert!(!session.is_waiting(), "cut at {first}");
            assert!(!received.give(&mut session).unwrap(), "nothing is left");
        }
    }

    #[test]
    fn what_comes_before_its_request_waits_for_it() {
        let mut session = NbdSession::new("host", false, Acknowledge::Received, 2);
        let first = session.request(write(0));
        let mut received = Received::default();
        receive(&mut received, &[reply(first), reply(first + 1)].concat());
        assert!(received.give(&mut session).unwrap());
        assert_eq!(completed(&mut session), [write(0)]);
        assert!(!received.give(&mut session).unwrap());
        assert_eq!(session.request(write(1)), first + 1);
        assert!(received.give(&mut session).unwrap());
        assert_eq!(completed(&mut session), [write(1)]);
    }
}
