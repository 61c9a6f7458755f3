//! Options of TCP, and what it measures.

pub use crate::congestion::Congestion;
pub use crate::tcp_info::{TcpInfo, TcpState};
pub use crate::tcp_options::{Ecn, Keepalive, TcpOptions};
