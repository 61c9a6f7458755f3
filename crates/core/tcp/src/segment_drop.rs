//! Reasons why segments are dropped.

wire::drop_reasons! {
    /// Reason why a segment, or a part of its payload, was dropped.
    SegmentDrop {
        /// The connection is closed.
        Closed => "tcp_closed",
        /// All of it was received before.
        Duplicate => "tcp_duplicate",
        /// It lies outside the receive window.
        OutOfWindow => "tcp_out_of_window",
        /// It lies beyond a window that is full or closed.
        NoSpace => "tcp_no_space",
        /// The receive queue holds as many segments as one connection may have, however small.
        TooManySegments => "tcp_too_many_segments",
        /// There are as many gaps or segments out of order as one connection may have.
        ReassemblyFull => "tcp_reassembly_full",
        /// It was held out of order until its memory was needed for payload in order (linux
        /// `SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE`). Counted once for each payload; the peer sends it again.
        OfoQueuePrune => "tcp_ofo_queue_prune",
        /// It came out of order while memory was reserved for payload in order (linux `TCPOFODrop`).
        OfoNoMemory => "tcp_ofo_no_memory",
        /// It carries bytes behind the peer's FIN.
        AfterFin => "tcp_after_fin",
        /// Its timestamp is older than one already seen (RFC 7323 5.3).
        Paws => "tcp_paws",
        /// It has no ACK flag, in a state in which all segments must have it.
        NoAck => "tcp_no_ack",
        /// It acknowledges what was never sent.
        FutureAck => "tcp_future_ack",
        /// Its acknowledgement is older than that of any segment that may be in flight (RFC 5961 5.2).
        OldAck => "tcp_old_ack",
        /// A SYN in a synchronized state (RFC 5961 4.2).
        UnexpectedSyn => "tcp_unexpected_syn",
        /// A SYN with FIN to a listener (linux `SKB_DROP_REASON_TCP_FLAGS`).
        SynFin => "tcp_syn_fin",
        /// A RST in the window whose sequence number is not RCV.NXT (RFC 5961 3.2).
        InexactRst => "tcp_inexact_rst",
        /// A RST outside the window.
        BlindRst => "tcp_blind_rst",
        /// It required a challenge ACK, and the limit of challenge ACKs was reached.
        ChallengeAckLimited => "tcp_challenge_ack_limited",
        /// It has payload although the program has closed the connection; the connection is reset (RFC 9293 3.6.1, RFC
        /// 2525 2.17).
        ReaderGone => "tcp_reader_gone",
        /// A RST in TIME-WAIT (RFC 1337).
        TimeWaitRst => "tcp_time_wait_rst",
        /// A late segment of the old connection, in TIME-WAIT.
        TimeWait => "tcp_time_wait",
        /// Neither SYN nor RST, in SYN-SENT.
        NoSyn => "tcp_no_syn",
        /// There is no connection for it.
        NoConnection => "tcp_no_connection",
        /// A RST that ends a handshake. This is no error, but counted.
        Withdrawn => "tcp_withdrawn",
        /// The accept queue is full.
        AcceptQueueFull => "tcp_accept_queue_full",
        /// The backlog of half-open connections is full, and SYN cookies are off.
        SynBacklogFull => "tcp_syn_backlog_full",
        /// The listener waits for data (TCP_DEFER_ACCEPT), and the last ACK of the handshake had none.
        AcceptDeferred => "tcp_accept_deferred",
        /// Its SYN cookie is wrong or too old.
        BadCookie => "tcp_bad_cookie",
    }
}
