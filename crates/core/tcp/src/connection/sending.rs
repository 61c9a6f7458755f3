//! The sending side of a connection: what its user has queued, and the segments that leave.

use netmem::Payload;
use thiserror::Error;
use wire::Instant;

use super::{Connection, ConnectionState};
use crate::context::Context;
use crate::segment::Segment;
use crate::sender::Sender;
use crate::settings::Settings;

/// Whether more payload follows at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Push {
    /// No: queued payload is sent without delay (PSH).
    #[default]
    Now,
    /// Yes: a small segment may wait for it (MSG_MORE).
    Later,
}

/// Reason why payload was not queued, with the payload.
#[derive(Debug, Error)]
pub enum SendError<P> {
    /// The connection is not open yet (EAGAIN or ENOTCONN).
    #[error("the connection is not established yet")]
    NotEstablished(P),
    /// This side has ended its half of the stream, or the connection is over (EPIPE).
    #[error("the connection sends no more")]
    Closed(P),
}

impl<P: Payload> Connection<P> {
    /// Returns how many bytes [`Connection::send`] takes.
    #[must_use]
    pub fn write_room(&self, settings: &Settings) -> usize {
        match &self.state {
            ConnectionState::Synchronized(synchronized) if synchronized.kind().can_send() => {
                synchronized.sender.queue.room(settings.snd_buf_max)
            }
            ConnectionState::SynSent(_) => self.early.as_ref().map_or(0, |early| early.room()),
            _ => 0,
        }
    }

    /// Returns how many of `wanted` bytes a write may queue now.
    ///
    /// At most [`Connection::write_room`] bytes, unless the stack
    /// [fills super-segments](crate::tuning::Tuning::fills_super_segments). No new super-segment begins while
    /// TCP_NOTSENT_LOWAT bytes are unsent.
    #[must_use]
    pub fn admit(&mut self, wanted: usize, settings: &Settings) -> usize {
        match &mut self.state {
            ConnectionState::Synchronized(synchronized) if synchronized.kind().can_send() => {
                synchronized
                    .sender
                    .admit(wanted, settings, &self.config.shared)
            }
            // The payload of a SYN: no sender exists yet, and nothing is sent but this.
            ConnectionState::SynSent(_) => wanted.min(self.write_room(settings)),
            _ => 0,
        }
    }

    /// Queues payload for sending; [`Connection::poll_send`] sends it as the windows allow. The send buffer is not checked:
    /// [`Connection::admit`] says how much of a write it takes.
    ///
    /// Returns the stream offset behind the payload: once [`Connection::acked_offset`] reaches it, all of the payload is
    /// released.
    ///
    /// # Errors
    ///
    /// There is no connection. The error returns the payload.
    pub fn send(&mut self, payload: P, push: Push) -> Result<u64, SendError<P>> {
        let synchronized = match &mut self.state {
            ConnectionState::SynSent(_) | ConnectionState::SynReceived(_) => {
                return self.send_early(payload, push);
            }
            ConnectionState::Synchronized(synchronized) if synchronized.kind().can_send() => {
                synchronized
            }
            _ => return Err(SendError::Closed(payload)),
        };
        Ok(synchronized.sender.queue.push(payload, push == Push::Later))
    }

    /// Queues payload for the SYN (RFC 7413).
    fn send_early(&mut self, payload: P, push: Push) -> Result<u64, SendError<P>> {
        let Some(early) = &mut self.early else {
            return Err(SendError::NotEstablished(payload));
        };
        let room = early.room();
        // The SYN is full: what follows leaves in other packets.
        let push = match payload.len() == room {
            true => Push::Now,
            false => push,
        };
        match &mut early.sender {
            Some(sender) if payload.len() <= room => {
                Ok(sender.queue.push(payload, push == Push::Later))
            }
            _ => Err(SendError::NotEstablished(payload)),
        }
    }

    /// Lets the next send start a new packet: host and device bytes do not share packets (MSG_EOR).
    pub fn push_boundary(&mut self) {
        if let ConnectionState::Synchronized(synchronized) = &mut self.state {
            synchronized.sender.queue.push_boundary();
        } else if let Some(sender) = self.early_sender_mut() {
            sender.queue.push_boundary();
        }
    }

    /// Returns the next segment to send, `None` if there is nothing to send now.
    ///
    /// A segment that is returned counts as sent; if it is lost, it is retransmitted as any other. A caller whose NIC is busy
    /// should not call this.
    pub fn poll_send(&mut self, settings: &Settings, now: Instant) -> Option<Segment<P>> {
        let cx = Context::new(settings, &self.config, now);
        let segment = match self.reset.take() {
            Some(reset) => Some(reset.segment(now)),
            None => match &mut self.state {
                ConnectionState::Closed => None,
                ConnectionState::SynSent(syn_sent) => {
                    let mut syn = syn_sent.poll_send(&cx);
                    if let (Some(syn), Some(early)) = (&mut syn, &mut self.early) {
                        let len = early.decorate(syn);
                        syn_sent.note_early(len);
                    }
                    syn
                }
                ConnectionState::SynReceived(syn_received) => syn_received.poll_send(&cx),
                ConnectionState::Synchronized(synchronized) => {
                    synchronized.poll_send(&self.queue, &cx)
                }
                ConnectionState::TimeWait(time_wait) => time_wait.poll_send(now),
            },
        };
        if let Some(segment) = &segment {
            let packets = segment.gso_segments() as u64;
            self.segs_out += packets;
            self.data_segs_out += match segment.payload.is_empty() {
                true => 0,
                false => packets,
            };
        }
        segment
    }

    /// Returns whether a caller that expects further sends soon may postpone [`poll_send`](Self::poll_send): it would send a
    /// part of a super-segment and nothing else, while a whole one is unacknowledged. Never with TCP_NODELAY.
    #[must_use]
    pub fn may_gather(&self, settings: &Settings, now: Instant) -> bool {
        let cx = Context::new(settings, &self.config, now);
        match &self.state {
            ConnectionState::Synchronized(synchronized) => {
                self.reset.is_none()
                    && !synchronized.receiver.ack.is_due(now)
                    && synchronized.sender.may_gather(&cx)
            }
            _ => false,
        }
    }

    /// Returns the stream offset up to which every byte is acknowledged; 0 without a stream: before one is open, and in CLOSED and
    /// TIME-WAIT, where everything is released.
    #[must_use]
    pub fn acked_offset(&self) -> u64 {
        self.synchronized()
            .map_or(0, |open| open.sender.acked_offset())
    }

    /// Returns the stream offset behind the last byte that was sent at least once; 0 without a stream.
    pub fn sent_offset(&self) -> u64 {
        self.synchronized()
            .map_or(0, |open| open.sender.sent_offset())
    }

    /// Returns the stream offset behind the last byte that was queued; 0 without a stream.
    pub fn pushed_offset(&self) -> u64 {
        match self.synchronized() {
            Some(open) => open.sender.queue.end(),
            None => self.early_sender().map_or(0, |sender| sender.queue.end()),
        }
    }

    /// Returns how many payload bytes are queued and not acknowledged (SIOCOUTQ).
    #[must_use]
    pub fn unacked_len(&self) -> usize {
        match self.synchronized() {
            Some(open) => open.sender.queue.len(),
            None => self.early_sender().map_or(0, |sender| sender.queue.len()),
        }
    }

    /// Returns how many bytes are queued and were never sent (SIOCOUTQNSD).
    #[must_use]
    pub fn unsent_len(&self) -> u64 {
        self.synchronized().map_or(0, |open| open.sender.unsent())
    }

    /// Returns whether `times` the unsent bytes are below TCP_NOTSENT_LOWAT (linux `__sk_stream_memory_free`).
    #[must_use]
    pub fn has_unsent_room(&self, times: u64, settings: &Settings) -> bool {
        let limit = self.config.shared.notsent_limit(settings);
        limit.is_none_or(|lowat| self.unsent_len().saturating_mul(times) < lowat.into())
    }

    fn early_sender(&self) -> Option<&Sender<P>> {
        self.early.as_ref()?.sender.as_deref()
    }

    fn early_sender_mut(&mut self) -> Option<&mut Sender<P>> {
        self.early.as_mut()?.sender.as_deref_mut()
    }
}
