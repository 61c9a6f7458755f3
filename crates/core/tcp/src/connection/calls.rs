//! Calls of a connection's user: reading, closing, options, and facts about the connection.

use netmem::Payload;

use super::{Connection, ConnectionState};
use crate::disposition::Next;
use crate::error::TcpError;
use crate::info::Info;
use crate::receiver::KeptPayload;
use crate::recv_queue::RecvQueue;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use crate::state::closing::TimeWait;
use crate::state::syn::EarlyClose;
use crate::state_kind::StateKind;

impl<P: Payload> Connection<P> {
    /// Makes a pending ACK due, because the stack has emptied the link; soon after an ACK of many bytes it waits for
    /// [`Connection::on_idle`], or for a timer.
    pub fn on_drained(&mut self) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.ack.on_drained();
        }
    }

    /// Makes a pending ACK due: the stack has found the link empty again, so waiting for more segments gains nothing.
    pub fn on_idle(&mut self) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.ack.on_idle();
        }
    }

    /// Returns whether an ACK is pending that leaves when the link is empty: by [`Connection::on_drained`] or
    /// [`Connection::on_idle`]. One that waits for an answer of the program is none.
    pub fn has_ack_for_link(&self) -> bool {
        self.synchronized()
            .is_some_and(|open| open.receiver.ack.waits_for_link())
    }

    /// Returns whether an ACK is due, whatever the time is. One that is due at a time has a timer.
    pub fn has_ack_due(&self) -> bool {
        self.synchronized()
            .is_some_and(|open| open.receiver.ack.is_due_at_once())
    }

    /// Sets the receive space: how many bytes may lie beyond RCV.NXT, those held out of order included. Data that arrives in
    /// order uses it up: only another call opens the window again.
    ///
    /// The right edge of the window never moves left, even if `bytes` is less than was promised (RFC 9293 3.8.6). If the
    /// window grows enough for an update, an ACK is due: call [`Connection::poll_send`].
    pub fn set_rcv_space(&mut self, bytes: u32, settings: &Settings) {
        match &mut self.state {
            ConnectionState::Closed | ConnectionState::TimeWait(_) => {}
            ConnectionState::SynSent(syn_sent) => syn_sent.set_space(bytes, settings, &self.config),
            ConnectionState::SynReceived(syn_received) => syn_received.set_space(bytes),
            ConnectionState::Synchronized(synchronized) => {
                synchronized.receiver.set_space(bytes, &self.queue)
            }
        }
    }

    /// Returns the number of the next byte in order (RCV.NXT), once the connection is synchronized.
    #[must_use]
    pub fn rcv_nxt(&self) -> Option<SeqNum> {
        self.synchronized().map(|open| open.receiver.rcv_nxt())
    }

    /// Returns how many bytes the peer may still send: promised, and not received yet.
    #[must_use]
    pub fn rcv_outstanding(&self) -> u32 {
        match &self.state {
            ConnectionState::Closed | ConnectionState::TimeWait(_) => 0,
            ConnectionState::SynSent(syn_sent) => u32::from(syn_sent.offer().syn_window),
            ConnectionState::SynReceived(syn_received) => {
                u32::from(syn_received.offer().syn_window)
            }
            ConnectionState::Synchronized(synchronized) => synchronized.receiver.outstanding(),
        }
    }

    /// Returns whether the peer cannot send anything new: the promise is used up, or is less than one unit of the window
    /// scale, which the window field cannot express (RFC 7323 2.4).
    #[must_use]
    pub fn is_rcv_window_shut(&self) -> bool {
        match self.synchronized() {
            Some(open) => open.receiver.is_shut(),
            None => self.rcv_outstanding() == 0,
        }
    }

    /// Returns the number of bytes held out of order.
    #[must_use]
    pub fn out_of_order_len(&self) -> usize {
        self.synchronized()
            .map_or(0, |open| open.receiver.out_of_order())
    }

    /// Returns the payloads held out of order, in the order of the stream.
    pub fn out_of_order(&self) -> impl Iterator<Item = &P> + '_ {
        self.synchronized()
            .into_iter()
            .flat_map(|open| open.receiver.held())
    }

    /// Calls `each` with every payload that is held, in order or out of order. It may move a payload to other memory and must
    /// not change its length.
    pub fn for_each_waiting(&mut self, mut each: impl FnMut(&mut P)) {
        let mut each = |payload: &mut P| {
            let len = payload.len();
            each(payload);
            debug_assert_eq!(payload.len(), len, "no byte comes or goes");
        };
        if let Some(open) = self.synchronized_mut() {
            open.receiver.held_mut().for_each(&mut each);
        }
        self.queue.iter_mut().for_each(each);
    }

    /// Removes and returns the out-of-order payload with the highest sequence numbers; the peer sends it again. Acknowledged
    /// payload is never removed.
    #[must_use = "the payload's memory is what is wanted"]
    pub fn prune(&mut self) -> Option<P> {
        self.synchronized_mut()?.receiver.prune()
    }

    /// Sets which arriving payload is kept.
    pub fn set_kept_payload(&mut self, kept: KeptPayload) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.set_kept_payload(kept);
        }
    }

    /// Advertises a window that [`Connection::on_unplaced`] has withdrawn: there is memory again.
    pub fn restore_rcv_window(&mut self) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.restore_window();
        }
    }

    /// Returns the number of bytes that can be read.
    #[must_use]
    pub fn readable_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the payloads that can be read, in order.
    pub fn unread(&self) -> impl Iterator<Item = &P> + '_ {
        self.queue.iter()
    }

    /// Returns the payload that can be read; it stays after the connection is closed.
    pub fn recv_queue(&mut self) -> &mut RecvQueue<P> {
        &mut self.queue
    }

    /// Notes that a write waits until the connection is open: its data can carry the ACK of the SYN-ACK.
    pub fn await_open(&mut self) {
        self.write_waits = true;
    }

    /// Returns the consecutive timeouts of the retransmission timer without an answer.
    #[must_use]
    pub fn retransmits(&self) -> u8 {
        self.synchronized()
            .map_or(0, |open| open.sender.retransmits())
    }

    /// Returns the timeouts in a row of a connection that opened with Fast Open (RFC 7413); `None` for another.
    #[must_use]
    pub fn early_timeouts(&self) -> Option<u8> {
        self.early.as_ref().filter(|early| early.is_used())?;
        match &self.state {
            ConnectionState::SynSent(syn_sent) => Some(syn_sent.retries()),
            ConnectionState::Synchronized(synchronized) => Some(synchronized.sender.retransmits()),
            _ => None,
        }
    }

    /// Returns whether Fast Open carried payload on this connection, which has ended without an error.
    #[must_use]
    pub fn is_early_success(&self) -> bool {
        let acked = self.early.as_ref().is_some_and(|early| early.acked);
        acked && self.error.is_none()
    }

    /// Notes that the program has shut down reading. What arrives can still be read, until this side's half has ended, too: from then
    /// on it is answered with a RST.
    pub fn shutdown_read(&mut self) {
        if let ConnectionState::Synchronized(synchronized) = &mut self.state {
            synchronized.shutdown_read();
        }
    }

    /// Ends this side's half of the stream behind what is queued; reading goes on.
    pub fn shutdown_write(&mut self) {
        match &mut self.state {
            ConnectionState::SynReceived(syn_received)
                if syn_received.closing == EarlyClose::No =>
            {
                syn_received.closing = EarlyClose::Write;
            }
            ConnectionState::SynSent(_) => {
                self.state = ConnectionState::Closed;
                self.drop_early();
            }
            ConnectionState::Synchronized(synchronized) => synchronized.shutdown_write(),
            _ => {}
        }
    }

    /// Ends both halves: the program will neither read nor write any more.
    ///
    /// Queued payload is still sent. If received payload was not read, a RST tells the peer that it is lost (RFC 9293 3.6.1,
    /// RFC 2525 2.17). The connection goes on until it is CLOSED, or in TIME-WAIT, where only [`Connection::time_wait`] must
    /// be kept.
    pub fn close(&mut self) {
        match &mut self.state {
            ConnectionState::SynReceived(syn_received) => syn_received.closing = EarlyClose::Both,
            ConnectionState::SynSent(_) => {
                self.state = ConnectionState::Closed;
                self.drop_early();
            }
            ConnectionState::Synchronized(synchronized) => {
                let lost = !self.queue.is_empty() || synchronized.receiver.out_of_order() > 0;
                if lost {
                    self.end(Next::Abort(None));
                } else {
                    synchronized.shutdown_write();
                    synchronized.drop_reader();
                }
            }
            ConnectionState::Closed | ConnectionState::TimeWait(_) => {}
        }
        self.queue.clear();
    }

    /// Aborts the connection and sends a RST.
    pub fn abort(&mut self) {
        self.fail(TcpError::Aborted);
    }

    /// Aborts the connection because of `error`, and sends a RST.
    pub fn fail(&mut self, error: TcpError) {
        self.end(Next::Abort(Some(error)));
        self.queue.clear();
    }

    /// Takes changes of the settings that have an effect at once: the congestion control (TCP_CONGESTION), whose window stays,
    /// probes of a silent peer (SO_KEEPALIVE and its three times), and TCP_CORK when it ends. The others count from the next
    /// event on.
    pub fn on_settings(&mut self, settings: &Settings) {
        if let Some(open) = self.synchronized_mut() {
            open.sender.on_settings(settings);
            open.keepalive.on_setting(settings.keepalive);
        }
    }

    /// Sends small segments that are held back, once, corked or not: TCP_NODELAY was set (linux `__tcp_sock_set_nodelay`).
    pub fn flush(&mut self) {
        if let Some(open) = self.synchronized_mut() {
            open.sender.flush();
        }
    }

    /// Notes that the user has read everything: an ACK that waited for it is due.
    pub fn on_read(&mut self) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.ack.on_read();
        }
    }

    /// Returns whether received data is acknowledged at once (TCP_QUICKACK).
    #[must_use]
    pub fn has_quick_acks(&self) -> bool {
        self.synchronized()
            .is_none_or(|open| open.receiver.ack.is_quick())
    }

    /// Switches immediate ACKs on or off (TCP_QUICKACK). As in linux, the connection may switch back by itself.
    pub fn set_quick_acks(&mut self, quick: bool) {
        if let Some(open) = self.synchronized_mut() {
            open.receiver.ack.set_quick(quick);
        }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> StateKind {
        match &self.state {
            ConnectionState::Closed => StateKind::Closed,
            ConnectionState::SynSent(_) => StateKind::SynSent,
            ConnectionState::SynReceived(_) => StateKind::SynReceived,
            ConnectionState::Synchronized(synchronized) => synchronized.kind(),
            ConnectionState::TimeWait(_) => StateKind::TimeWait,
        }
    }

    /// Returns the small remainder of a connection in TIME-WAIT, for a caller that drops the rest.
    #[must_use]
    pub fn time_wait(&self) -> Option<TimeWait> {
        match &self.state {
            ConnectionState::TimeWait(time_wait) => Some(time_wait.clone()),
            _ => None,
        }
    }

    /// Returns why the connection ended; `None` while it lives, and after an orderly end.
    #[must_use]
    pub fn error(&self) -> Option<TcpError> {
        self.error
    }

    /// Returns the facts of `TCP_INFO`.
    #[must_use]
    pub fn info(&self, settings: &Settings) -> Info {
        let mut info = Info {
            state: self.state(),
            ..Info::default()
        };
        if let Some(open) = self.synchronized() {
            open.info(&mut info);
            info.state = open.shown_kind();
        }
        info.adv_mss = self.config.mss(settings);
        info.syn_data_acked = self.opened_with_data;
        if let Some(early) = &self.early {
            info.syn_data_acked |= early.acked;
            info.fast_open_client_fail = early.fail;
        }
        info.readable = self.queue.len();
        info.segs_in = self.segs_in;
        info.segs_out = self.segs_out;
        info.data_segs_out = self.data_segs_out;
        info
    }
}
