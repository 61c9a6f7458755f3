//! Options of TCP in the user backend.

use clap::{Args, ValueEnum};

use tool::size::Size;

/// Buffers and pacing.
#[derive(Clone, Debug, Default, Args)]
pub struct BufferArgs {
    /// Send buffer of a connection of the user backend: maximum number of bytes in flight; to fill a path it must be at least the rate times the round-trip time
    /// [default: 8M]
    #[arg(long, value_name = "SIZE")]
    pub send_buffer: Option<Size>,
    /// Receive buffer: largest window that a connection of the user backend announces; the bound memory limits it, too [default: 32M]
    #[arg(long, value_name = "SIZE")]
    pub receive_buffer: Option<Size>,
    /// Space out sent packets over the round trip, instead of sending a window at once (user backend)
    #[arg(long)]
    pub pacing: bool,
}

/// All options.
#[derive(Clone, Debug, Default, Args)]
pub struct TcpArgs {
    #[command(flatten)]
    pub buffers: BufferArgs,
    /// Congestion control of what the user backend sends [default: cubic]
    #[arg(long, value_enum, value_name = "NAME")]
    pub congestion: Option<CongestionChoice>,
}

/// Values of `--congestion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CongestionChoice {
    /// CUBIC (RFC 9438)
    Cubic,
    /// NewReno (RFC 6582)
    Reno,
    /// BBR, version 3: for paths that lose packets without being full
    Bbr,
    /// DCTCP (RFC 8257), at both ends: for networks whose switches mark packets from a short queue on
    Dctcp,
}
