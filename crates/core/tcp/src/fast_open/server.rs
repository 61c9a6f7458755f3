//! What a listener does with the Fast Open option of a SYN.

use netmem::Payload;
use wire::{FastOpen, FastOpenCookie, Instant};

use super::config::FastOpenModes;
use super::keys::{FastOpenKeys, KeyAge};
use super::pending::{PendingOpens, PendingSlot};
use crate::isn::Endpoints;
use crate::segment::Segment;

/// Settings of a listener for Fast Open.
#[derive(Debug, Clone)]
pub struct FastOpenListener {
    /// Most pending opens (the value of TCP_FASTOPEN); `None`: it was not set.
    pub queue_len: Option<usize>,
    /// Accepts payload without a cookie (TCP_FASTOPEN_NO_COOKIE).
    pub no_cookie: bool,
    /// Keys of its cookies (TCP_FASTOPEN_KEY).
    pub keys: FastOpenKeys,
    pending: PendingOpens,
}

/// What a listener does with a SYN.
#[derive(Debug)]
pub(crate) enum Judgement {
    /// An ordinary handshake, with this option in the SYN-ACK.
    Handshake(Option<FastOpen>),
    /// The connection opens now; the SYN-ACK has this option.
    Open(PendingSlot, Option<FastOpen>),
}

impl FastOpenListener {
    /// Returns the settings of a listener that was told nothing.
    #[must_use]
    pub fn new(keys: FastOpenKeys) -> FastOpenListener {
        FastOpenListener {
            queue_len: None,
            no_cookie: false,
            keys,
            pending: PendingOpens::default(),
        }
    }

    /// Judges a SYN (linux `tcp_try_fastopen`); `backlog` is the listener's.
    pub(crate) fn judge<P: Payload>(
        &self,
        endpoints: &Endpoints,
        syn: &Segment<P>,
        modes: FastOpenModes,
        backlog: usize,
        now: Instant,
    ) -> Judgement {
        let all = modes.contains(FastOpenModes::ALL_LISTENERS);
        let most = self.queue_len.or(all.then_some(backlog)).unwrap_or(0);
        let option = syn.options.fast_open;
        let concerns = option.is_some() || !syn.payload.is_empty();
        if most == 0 || !concerns || !modes.contains(FastOpenModes::SERVER) {
            return Judgement::Handshake(None);
        }
        let Some(slot) = self.pending.admit(most, now) else {
            return Judgement::Handshake(None);
        };
        if self.no_cookie || modes.contains(FastOpenModes::SERVER_NO_COOKIE) {
            return Judgement::Open(slot, None);
        }
        let Some(option) = option else {
            return Judgement::Handshake(None);
        };
        let fresh = self.fresh(endpoints, option);
        match option
            .cookie
            .and_then(|cookie| self.keys.check(endpoints, cookie))
        {
            Some(KeyAge::Current) => Judgement::Open(slot, None),
            Some(KeyAge::Previous) => Judgement::Open(slot, fresh),
            None => Judgement::Handshake(fresh),
        }
    }

    /// Returns the option that gives the peer its cookie, in the form that the peer uses.
    fn fresh(&self, endpoints: &Endpoints, option: FastOpen) -> Option<FastOpen> {
        let cookie: FastOpenCookie = self.keys.cookie(endpoints)?;
        Some(FastOpen {
            cookie: Some(cookie),
            form: option.form,
        })
    }
}
