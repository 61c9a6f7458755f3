//! The sending half of a connection: interface only on this branch, bodies come with branch `tcpsend`.

use core::marker::PhantomData;
use core::time::Duration;

use netmem::Payload;
use wire::{Instant, SackBlocks};

use crate::config::Config;
use crate::error::TcpError;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::seqnum::SeqNum;

/// What the sender must know of an incoming segment with the ACK flag.
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
    /// The segment takes sequence space (payload, SYN or FIN): it is no duplicate ACK then.
    pub has_data: bool,
}

/// How an acknowledgement number lies to what was sent (RFC 9293 3.10.7.4, RFC 5961 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    /// SND.UNA < SEG.ACK =< SND.NXT: news.
    New,
    /// SEG.ACK = SND.UNA, or a little older: nothing new, windows and SACK blocks still count.
    Duplicate,
    /// Older than SND.UNA by more than the largest window seen: to be answered by a challenge ACK.
    TooOld,
    /// Acknowledges what was never sent: to be answered by an ACK and dropped.
    Future,
}

/// What an acknowledgement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AckOutcome {
    /// Where the number lies.
    pub kind: AckKind,
    /// Payload bytes that need not be kept any more.
    pub newly_acked: usize,
    /// The send queue went from full to having room.
    pub writable: bool,
}

/// One stretch of the send queue that may leave now.
#[derive(Debug)]
pub struct DataSegment<P> {
    /// Number of the first byte.
    pub seq: SeqNum,
    /// A share of the queue; empty for a FIN alone and for some probes.
    pub payload: P,
    /// The FIN goes behind the payload.
    pub fin: bool,
    /// The writer has nothing more at the moment.
    pub push: bool,
    /// A window probe or tail loss probe.
    pub probe: bool,
}

/// What a timer of the sender did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TimerOutcome {
    /// No timer was due, or it changed nothing that must be sent.
    Nothing,
    /// [`Sender::poll_data`] has something to say.
    Retransmit,
    /// The peer does not answer any more.
    Abort(TcpError),
}

/// What the handshake settled, as far as the sender is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Established {
    /// The negotiated options; [`Negotiated::snd_mss`] is what a packet may carry.
    pub negotiated: Negotiated,
    /// The peer's first window, scaled.
    pub window: u32,
    /// SEG.SEQ of the segment that brought it.
    pub seq: SeqNum,
    /// The clock whose values `ts_echo` returns.
    pub clock: TimestampClock,
    /// Round-trip time of the handshake, if the SYN went out only once (RFC 6298 3, Karn).
    pub handshake_rtt: Option<Duration>,
    /// The SYN or SYN-ACK was lost: RFC 6928 2 and RFC 6298 5.7 start slower then.
    pub handshake_timed_out: bool,
}

/// Owns the send queue, SND.UNA, SND.NXT, SND.WND and everything that decides what may leave.
#[derive(Debug)]
pub struct Sender<P> {
    payload: PhantomData<P>,
}

#[allow(unused_variables, clippy::unimplemented, missing_docs, dead_code)]
impl<P: Payload> Sender<P> {
    /// Returns a sender whose SYN takes `iss`; nothing is sent yet.
    pub fn new(config: &Config, iss: SeqNum) -> Self {
        Sender {
            payload: PhantomData,
        }
    }
    /// Takes over what the handshake settled: SND.UNA = ISS + 1.
    pub fn on_established(&mut self, established: &Established, now: Instant) {
        unimplemented!()
    }
    /// Returns how many bytes [`Sender::push`] takes.
    pub fn room(&self) -> usize {
        unimplemented!()
    }
    /// Queues payload; `more`: the writer will add to it at once (MSG_MORE, no PSH, no small segment yet).
    pub fn push(&mut self, payload: P, more: bool) {
        unimplemented!()
    }
    /// Bytes queued, sent or not.
    pub fn queued_len(&self) -> usize {
        unimplemented!()
    }
    /// Sequence numbers sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        unimplemented!()
    }
    /// Ends the stream behind what is queued.
    pub fn queue_fin(&mut self) {
        unimplemented!()
    }
    /// The FIN left at least once.
    pub fn fin_sent(&self) -> bool {
        unimplemented!()
    }
    /// The FIN is acknowledged.
    pub fn fin_acked(&self) -> bool {
        unimplemented!()
    }
    /// Everything sent is acknowledged and nothing is queued.
    pub fn all_acked(&self) -> bool {
        unimplemented!()
    }
    pub fn snd_una(&self) -> SeqNum {
        unimplemented!()
    }
    /// What an ACK, a RST or a keepalive is numbered with: SND.NXT (never lower after a timeout: SND.MAX).
    pub fn snd_nxt(&self) -> SeqNum {
        unimplemented!()
    }
    pub fn snd_wnd(&self) -> u32 {
        unimplemented!()
    }
    /// Payload bytes of a full packet.
    pub fn mss(&self) -> u16 {
        unimplemented!()
    }
    pub fn set_nodelay(&mut self, nodelay: bool) {
        unimplemented!()
    }
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        unimplemented!()
    }
    pub fn on_ack(&mut self, ack: &IncomingAck<'_>, now: Instant) -> AckOutcome {
        unimplemented!()
    }
    /// What the windows, Nagle and pacing let out now; retransmissions first. It counts as sent.
    pub fn poll_data(&mut self, now: Instant) -> Option<DataSegment<P>> {
        unimplemented!()
    }
    /// When [`Sender::on_timer`] or [`Sender::poll_data`] (pacing) has something to do.
    pub fn next_timer(&self) -> Option<Instant> {
        unimplemented!()
    }
    pub fn on_timer(&mut self, now: Instant) -> TimerOutcome {
        unimplemented!()
    }
    /// The path carries only packets with `mss` bytes of payload; what is larger and not acknowledged is cut anew.
    pub fn on_mtu(&mut self, mss: u16, now: Instant) {
        unimplemented!()
    }
    /// Drops everything queued (abort).
    pub fn clear(&mut self) {
        unimplemented!()
    }
    /// Fills in what the sender knows.
    pub fn info(&self, info: &mut Info) {
        unimplemented!()
    }
}
