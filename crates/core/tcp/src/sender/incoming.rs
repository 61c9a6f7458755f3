//! What an incoming segment tells the sender.

use wire::{AccEcn, SackBlocks};

use crate::seqnum::SeqNum;

/// Fields of an incoming segment with the ACK flag, as far as the sender needs them.
#[derive(Debug, Clone, Copy)]
pub struct IncomingAck<'a> {
    /// SEG.ACK.
    pub ack: SeqNum,
    /// SEG.SEQ, for the window update rule (SND.WL1).
    pub seq: SeqNum,
    /// SEG.WND, already scaled.
    pub window: u32,
    /// SACK blocks, D-SACK included.
    pub sack: &'a SackBlocks,
    /// TSecr, where timestamps were negotiated.
    pub ts_echo: Option<u32>,
    /// The segment takes sequence space (payload, SYN or FIN), so it is no duplicate ACK.
    pub has_data: bool,
    /// The ECE flag.
    pub ece: bool,
    /// The ACE field, where AccECN is used and it is a count.
    pub ace: Option<u8>,
    /// AccECN's option.
    pub accecn: Option<&'a AccEcn>,
    /// Its timestamp is newer than any before.
    pub ts_progress: bool,
}

/// An acknowledgement number, compared with what was sent (RFC 9293 3.10.7.4, RFC 5961 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum AckKind {
    /// SND.UNA < SEG.ACK =< SND.NXT: it acknowledges something new.
    New,
    /// SEG.ACK = SND.UNA, or a little older: it acknowledges nothing new; its window and SACK blocks count.
    Duplicate,
    /// Older than SND.UNA by more than the largest window seen: a challenge ACK answers it.
    TooOld,
    /// It acknowledges what was never sent: an ACK answers it, and it is dropped.
    Future,
}
