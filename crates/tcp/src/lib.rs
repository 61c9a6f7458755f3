//! TCP without input or output, over payload that it cannot read.

#![forbid(unsafe_code)]

pub mod config;
mod congestion;
mod error;
mod info;
mod options;
mod pacing;
mod rack;
mod rtt;
mod scoreboard;
mod segment;
mod send_queue;
mod sender;
mod seqnum;
mod state;
#[cfg(test)]
mod test_payload;
#[cfg(test)]
mod test_random;

pub use config::{Config, CongestionKind, Keepalive};
pub use error::TcpError;
pub use info::Info;
pub use options::{Negotiated, TimestampClock};
pub use segment::{Control, Segment};
pub use sender::{
    AckKind, AckOutcome, DataSegment, Established, IncomingAck, Sender, TimerOutcome,
};
pub use seqnum::SeqNum;
pub use state::StateKind;
