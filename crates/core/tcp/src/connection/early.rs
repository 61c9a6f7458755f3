//! Payload in the SYN of an active open.

use netmem::Payload;

use crate::fast_open::start::{ClientFail, FastOpenStart, Learned};
use crate::segment::Segment;
use crate::sender::Sender;

/// Fast Open of one connection that opens actively.
#[derive(Debug)]
pub(crate) struct ClientOpen<P> {
    start: FastOpenStart,
    /// Takes the payload before the connection is open.
    pub(crate) sender: Option<Box<Sender<P>>>,
    /// Bytes of payload that the SYN had; `None` before it is sent.
    sent: Option<u16>,
    learned: Option<Learned>,
    pub(crate) fail: ClientFail,
    /// The SYN-ACK acknowledged all payload of the SYN.
    pub(crate) acked: bool,
}

impl<P: Payload> ClientOpen<P> {
    pub(crate) fn new(start: FastOpenStart, sender: Sender<P>) -> ClientOpen<P> {
        let requests = start.option.is_some_and(|option| option.cookie.is_none());
        let fail = match requests {
            true => ClientFail::CookieUnavailable,
            false => ClientFail::No,
        };
        ClientOpen {
            start,
            sender: Some(Box::new(sender)),
            sent: None,
            learned: None,
            fail,
            acked: false,
        }
    }

    /// Returns how much more payload the SYN takes.
    pub(crate) fn room(&self) -> usize {
        match (&self.sender, self.sent) {
            (Some(sender), None) => {
                usize::from(self.start.data_max).saturating_sub(sender.queue.len())
            }
            _ => 0,
        }
    }

    /// Returns whether a SYN with the option or payload was sent.
    pub(crate) fn is_used(&self) -> bool {
        self.sent.is_some()
    }

    /// Adds option and payload to a SYN, unless one was sent before; returns the bytes of payload.
    pub(crate) fn decorate(&mut self, syn: &mut Segment<P>) -> u16 {
        let (None, Some(sender)) = (self.sent, &self.sender) else {
            return 0;
        };
        let payload = sender.early_payload(self.start.data_max);
        // At most `data_max`.
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        self.sent = Some(len);
        syn.options.fast_open = self.start.option;
        syn.payload = payload;
        len
    }

    /// Takes the SYN-ACK: `acked` bytes of payload are acknowledged.
    pub(crate) fn on_syn_ack(&mut self, syn_ack: &Segment<P>, acked: u32, retransmitted: bool) {
        let sent = self.sent.unwrap_or(0);
        self.acked = acked > 0 && acked == u32::from(sent);
        if sent > 0 && acked < u32::from(sent) {
            self.fail = match retransmitted {
                true => ClientFail::SynRetransmitted,
                false => ClientFail::DataNotAcked,
            };
        }
        self.learned = Some(Learned {
            mss: syn_ack.options.mss,
            option: syn_ack.options.fast_open,
            sent: FastOpenStart {
                data_max: sent,
                ..self.start
            },
            retransmitted,
        });
    }

    pub(crate) fn take_learned(&mut self) -> Option<Learned> {
        self.learned.take()
    }
}
