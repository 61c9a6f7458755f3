//! SO_TIMESTAMP, SO_TIMESTAMPNS and SO_TIMESTAMPING, with their old and their new numbers. On 64-bit machines both have
//! the same bytes, and only the numbers of the control messages differ.

use std::time::Duration;

use devmem_uapi::{CmsgWriter, Errno, NoSpace, SCM_TIMESTAMPING_LEN, StampKind, TxStamp, sockopt};
use stack::{StampIds, Timestamping};

use crate::abi::{so, sof};

/// The timestamps that a program has requested, and their format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    /// Flags of SO_TIMESTAMPING.
    flags: u32,
    /// SO_TIMESTAMP or SO_TIMESTAMPNS is on (linux `SOCK_RCVTSTAMP`).
    received: bool,
    /// The last of the two that was set is SO_TIMESTAMPNS (linux `SOCK_RCVTSTAMPNS`).
    in_nanos: bool,
    /// The last of the three options that was set had its new number (linux `SOCK_TSTAMP_NEW`).
    is_new: bool,
}

impl Times {
    /// Sets SO_TIMESTAMP or SO_TIMESTAMPNS, which are on or off.
    pub(super) fn set_timestamp(&mut self, name: i32, on: bool) {
        self.is_new = matches!(name, so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW);
        self.in_nanos = matches!(name, so::TIMESTAMPNS | so::TIMESTAMPNS_NEW);
        self.received = on;
    }

    /// Returns whether one of those is on.
    pub(super) fn is_timestamp(&self, name: i32) -> bool {
        let is_new = matches!(name, so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW);
        let in_nanos = matches!(name, so::TIMESTAMPNS | so::TIMESTAMPNS_NEW);
        self.received && self.in_nanos == in_nanos && self.is_new == is_new
    }

    /// Checks flags of SO_TIMESTAMPING.
    ///
    /// # Errors
    /// EINVAL: unknown flags, or OPT_ID_TCP without OPT_ID.
    pub(super) fn check_flags(flags: i32) -> Result<(), Errno> {
        let flags = flags.cast_unsigned();
        let numbers = flags & (sof::OPT_ID | sof::OPT_ID_TCP);
        match flags & !sof::ALL != 0 || numbers == sof::OPT_ID_TCP {
            true => Err(Errno::EINVAL),
            false => Ok(()),
        }
    }

    /// Sets flags that [`Times::check_flags`] has accepted.
    pub(super) fn set_timestamping(&mut self, name: i32, flags: i32) {
        self.flags = flags.cast_unsigned();
        self.is_new = name == so::TIMESTAMPING_NEW;
    }

    /// Returns the bytes of SO_TIMESTAMPING; with the new number, flags that were set with the old one read as 0.
    pub(super) fn timestamping_bytes(&self, name: i32) -> Vec<u8> {
        let told = name == so::TIMESTAMPING || self.is_new;
        let flags = if told { self.flags } else { 0 };
        // The second word is a hardware clock (PHC): none.
        [flags.to_ne_bytes(), [0; 4]].concat()
    }

    /// Returns whether all of `flags` are set.
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Returns the timestamps to request from the stack.
    pub(super) fn asked(&self) -> Timestamping {
        Timestamping {
            scheduled: self.has(sof::TX_SCHED),
            sent: self.has(sof::TX_SOFTWARE),
            acked: self.has(sof::TX_ACK),
            ids: match (self.has(sof::OPT_ID), self.has(sof::OPT_ID_TCP)) {
                (false, _) => StampIds::None,
                (true, false) => StampIds::FromAcked,
                (true, true) => StampIds::FromQueued,
            },
            received: self.received || self.has(sof::RX_SOFTWARE),
        }
    }

    /// Returns the type of the control message with a time of SO_TIMESTAMPING.
    pub(crate) fn message(&self) -> i32 {
        match self.is_new {
            true => so::TIMESTAMPING_NEW,
            false => so::TIMESTAMPING,
        }
    }

    /// Writes the control messages with the time at which the last byte of a receive arrived, one for each option that
    /// requests it (linux net/ipv4/tcp.c `tcp_recv_timestamp`).
    ///
    /// # Errors
    /// [`NoSpace`]: not all messages fit.
    pub(crate) fn tell(&self, at: Duration, out: &mut CmsgWriter<'_>) -> Result<(), NoSpace> {
        let mut told = Ok(());
        if self.received {
            let (ty, fraction) = match (self.in_nanos, self.is_new) {
                (false, false) => (so::TIMESTAMP, at.subsec_micros()),
                (false, true) => (so::TIMESTAMP_NEW, at.subsec_micros()),
                (true, false) => (so::TIMESTAMPNS, at.subsec_nanos()),
                (true, true) => (so::TIMESTAMPNS_NEW, at.subsec_nanos()),
            };
            let body = [at.as_secs(), fraction.into()].map(u64::to_ne_bytes);
            told = out.push(sockopt::SOL_SOCKET, ty, &body.concat());
        }
        let wanted = self.has(sof::RX_SOFTWARE) || !self.has(sof::OPT_RX_FILTER);
        if self.has(sof::SOFTWARE) && wanted {
            let body: [u8; SCM_TIMESTAMPING_LEN] = TxStamp {
                kind: StampKind::Sent,
                id: 0,
                nanos: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            }
            .scm_timestamping();
            told = told.and(out.push(sockopt::SOL_SOCKET, self.message(), &body));
        }
        told
    }
}
