//! Segments of a synchronized connection, and its timers.

use netmem::Payload;
use wire::Instant;

use super::{SegmentVerdict, Synchronized};
use crate::context::Context;
use crate::disposition::{Disposition, Next};
use crate::ecn::echo::EarlierAck;
use crate::options::{TsRecent, ack_options};
use crate::recv_queue::RecvQueue;
use crate::segment::{Control, Segment};
use crate::sender::DataSegment;
use crate::state_kind::StateKind;

impl<P: Payload> Synchronized<P> {
    /// Returns the next segment to send now. An ACK with SACK blocks is sent without data, so that data segments need no room
    /// for SACK blocks; any other ACK is sent with data, if there is some.
    pub(crate) fn poll_send(
        &mut self,
        queue: &RecvQueue<P>,
        cx: &Context<'_>,
    ) -> Option<Segment<P>> {
        let now = cx.now;
        if self.is_reader_gone() && self.kind == StateKind::FinWait2 && self.linger.is_none() {
            // The program has closed: the peer has limited time to send its FIN (linux
            // `tcp_fin_timeout`).
            self.linger = Some(now + cx.settings.fin_wait_2_timeout);
        }
        if let Some(syn_ack) = self.poll_syn_ack(queue, cx) {
            return Some(syn_ack);
        }
        if let Some((earlier, window)) = self.receiver.take_earlier_ack() {
            return Some(self.earlier_ack(earlier, window, now));
        }
        if self.receiver.ack.is_due(now) && self.receiver.has_sack() {
            return Some(self.bare_ack(queue, now));
        }
        self.choose_bundling();
        if let Some(data) = self.sender.poll_data(cx) {
            let mut segment = self.data_segment(data, queue, now);
            segment.push |= segment.gso_size > 0 && cx.shared().tuning.pushes_super_segments;
            return Some(segment);
        }
        if self.receiver.ack.is_due(now) {
            return Some(self.bare_ack(queue, now));
        }
        if self.keepalive.poll_send() {
            // The peer answers an old sequence number with an ACK (RFC 9293 3.8.4).
            let probe = self.bare_ack(queue, now);
            return Some(Segment {
                seq: probe.seq - 1,
                ..probe
            });
        }
        None
    }

    /// Returns the SYN-ACK of a connection that its peer's SYN opened, when it is due. It acknowledges the payload, too.
    fn poll_syn_ack(&mut self, queue: &RecvQueue<P>, cx: &Context<'_>) -> Option<Segment<P>> {
        let opening = self.opening.as_mut()?;
        let mut syn_ack: Segment<P> = opening.half_open.poll_send(cx)?;
        syn_ack.options.fast_open = opening.option.take();
        syn_ack.ack = self.receiver.announce(queue, self.clock, 0, cx.now).ack;
        // Of a SYN the field is not scaled.
        let promised = self.receiver.window().promised(self.receiver.rcv_nxt());
        syn_ack.window = u16::try_from(promised).unwrap_or(u16::MAX);
        Some(syn_ack)
    }

    /// Returns the ACK of data whose marks differ from those of the newest: the ACK of that follows.
    fn earlier_ack(&self, earlier: EarlierAck, window: u16, now: Instant) -> Segment<P> {
        Segment {
            seq: self.sender.snd_nxt(),
            ack: Some(earlier.ack),
            ece: earlier.ece,
            ecn: self.codepoint(),
            window,
            options: ack_options(
                self.receiver.ts_recent().map(TsRecent::value),
                self.clock.value(now),
            ),
            ..Segment::default()
        }
    }

    fn bare_ack(&mut self, queue: &RecvQueue<P>, now: Instant) -> Segment<P> {
        let blocks = self.receiver.max_sack_blocks();
        let dsack = self.receiver.pending_dsack();
        let mut ack = Segment {
            seq: self.sender.snd_nxt(),
            ecn: self.codepoint(),
            ..self.receiver.announce(queue, self.clock, blocks, now)
        };
        self.tell_marks(&mut ack, dsack);
        ack
    }

    fn data_segment(
        &mut self,
        data: DataSegment<P>,
        queue: &RecvQueue<P>,
        now: Instant,
    ) -> Segment<P> {
        let DataSegment {
            seq,
            payload,
            fin,
            push,
            probe: _,
            ecn,
            cwr,
        } = data;
        let mss = self.sender.mss();
        if !payload.is_empty() {
            self.receiver.ack.on_data_sent(now);
        }
        let mut segment = Segment {
            seq,
            control: if fin { Control::Fin } else { Control::None },
            push,
            cwr,
            ecn,
            gso_size: if payload.len() > usize::from(mss) {
                mss
            } else {
                0
            },
            payload,
            ..self.receiver.announce(queue, self.clock, 0, now)
        };
        self.tell_marks(&mut segment, None);
        segment
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let send = match &self.opening {
            // Nothing but the SYN-ACK is repeated until it is acknowledged (linux `tcp_retransmit_timer`).
            Some(opening) => opening.half_open.next_timer(),
            None => self.sender.next_timer(),
        };
        let (ack, probe) = (self.receiver.ack.next_timer(), self.keepalive.next_timer());
        [send, ack, probe, self.linger].into_iter().flatten().min()
    }

    pub(crate) fn on_timer(&mut self, cx: &Context<'_>) -> SegmentVerdict {
        let now = cx.now;
        let over = Disposition::CLOSED;
        if self.linger.is_some_and(|linger| linger <= now) {
            return (over, Next::Closed(None));
        }
        let answered = match &mut self.opening {
            Some(opening) => opening.half_open.on_timer(cx),
            None => self.sender.on_timer(cx),
        };
        if let Err(error) = answered {
            return (over, Next::Closed(Some(error)));
        }
        let is_busy = self.sender.queue.len() > 0 || self.sender.in_flight() > 0;
        if let Err(error) = self.keepalive.on_timer(is_busy, cx.settings, now) {
            let reset = Disposition {
                reply: true,
                ..over
            };
            return (reset, Next::Abort(Some(error)));
        }
        (Disposition::REPLY, Next::Stay)
    }
}
