//! What the live view shows: plain numbers, collected by [`Watch`](super::Watch).

use std::net::SocketAddr;
use std::time::Duration;

use devmem_tcp::stats::{QueueStats, TxStats};
use devmem_tcp::tcp::TcpInfo;

/// State of a transfer at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Command and addresses.
    pub title: String,
    /// Payload bytes so far.
    pub bytes: u64,
    /// Payload bytes to transfer, if known.
    pub total: Option<u64>,
    /// Time of the transfer up to now.
    pub elapsed: Duration,
    /// Time that the average rate refers to: up to the last byte.
    pub average: Duration,
    /// Rate of the last second, in bits per second.
    pub rate: f64,
    /// Earlier rates in Mbit/s, oldest first.
    pub history: Vec<u64>,
    /// The bound memory, when receiving.
    pub memory: Option<Memory>,
    /// Counters of the transmit side, when sending with a user-space NIC.
    pub tx: Option<TxStats>,
    /// RX queues, when receiving.
    pub queues: Vec<QueueSample>,
    /// Open connections.
    pub connections: Vec<ConnectionSample>,
    /// Dropped packets by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// The last lines that the program printed.
    pub messages: Vec<String>,
}

/// The bound memory and the frags lent from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Size of a net_iov.
    pub niov_bytes: u64,
    /// Number of net_iovs.
    pub total: u64,
    /// Net_iovs that are free: neither in a page pool, nor in a packet, nor lent.
    pub home: u64,
    /// Tokens lent now.
    pub tokens_lent: u64,
    /// Tokens returned since the start.
    pub tokens_returned: u64,
}

/// One RX queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueSample {
    /// Its counters.
    pub stats: QueueStats,
    /// Its rate, in bits per second.
    pub rate: f64,
}

impl QueueSample {
    /// Returns whether memory is bound to the queue: to all but queue 0, which receives into host memory.
    pub fn is_bound(&self) -> bool {
        self.stats.queue.0 != 0
    }
}

/// One open connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionSample {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// State, as in RFC 9293.
    pub state: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Rate, in bits per second.
    pub rate: f64,
    /// Window in bytes: the one that this side announces when receiving, the peer's when sending.
    pub window: u64,
    /// Congestion window in bytes, when sending.
    pub congestion_window: Option<u64>,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Retransmitted packets of this side.
    pub retransmitted: u64,
    /// Chunks with sends in flight, and all chunks, when sending.
    pub chunks: Option<(usize, usize)>,
}

impl ConnectionSample {
    /// Returns a connection that receives.
    pub fn receiving(peer: SocketAddr, bytes: u64, rate: f64, info: &TcpInfo) -> Self {
        Self {
            peer,
            state: info.state.to_string(),
            bytes,
            rate,
            window: info.rcv_wnd.into(),
            congestion_window: None,
            rtt: info.rtt,
            retransmitted: info.total_retrans,
            chunks: None,
        }
    }

    /// Returns a connection that sends.
    pub fn sending(
        peer: SocketAddr,
        bytes: u64,
        rate: f64,
        info: &TcpInfo,
        chunks: (usize, usize),
    ) -> Self {
        Self {
            window: info.snd_wnd.into(),
            congestion_window: Some(u64::from(info.snd_cwnd) * u64::from(info.snd_mss)),
            chunks: Some(chunks),
            ..Self::receiving(peer, bytes, rate, info)
        }
    }
}
