//! Options of TCP, and what it measures.

pub use crate::tcp_info::{TcpInfo, TcpState};
pub use crate::tcp_options::{Congestion, Ecn, Keepalive, TcpOptions};
