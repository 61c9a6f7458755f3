//! TCP of the user backend.

use std::ops::RangeInclusive;

use devmem_tcp::tcp::{Congestion, TcpOptions};

use crate::args::{BufferArgs, CongestionChoice, TcpArgs};
use tool::output::Failure;
use tool::size::Size;

/// Sizes of buffers: at least two packets; at most the largest window (RFC 7323 2.3).
const BUFFERS: RangeInclusive<u64> = 4096..=1 << 30;

/// Validates the options.
///
/// # Errors
///
/// A usage error that names the option.
pub(super) fn tcp_options(args: &TcpArgs) -> Result<TcpOptions, Failure> {
    let mut tcp = with_buffers(&args.buffers)?;
    tcp.congestion = match args.congestion {
        Some(CongestionChoice::Reno) => Congestion::Reno,
        Some(CongestionChoice::Bbr) => Congestion::Bbr,
        Some(CongestionChoice::Dctcp) => Congestion::Dctcp,
        Some(CongestionChoice::Cubic) | None => Congestion::Cubic,
    };
    Ok(tcp)
}

/// Validates the options of buffers.
///
/// # Errors
///
/// As [`tcp_options`].
pub(super) fn with_buffers(args: &BufferArgs) -> Result<TcpOptions, Failure> {
    let mut tcp = TcpOptions::default();
    tcp.pacing = args.pacing;
    if let Some(bytes) = check("--send-buffer", args.send_buffer)? {
        tcp.send_buffer = bytes as usize;
    }
    if let Some(bytes) = check("--receive-buffer", args.receive_buffer)? {
        tcp.receive_buffer = bytes;
    }
    Ok(tcp)
}

fn check(option: &str, size: Option<Size>) -> Result<Option<u32>, Failure> {
    let Some(size) = size else { return Ok(None) };
    match u32::try_from(size.0) {
        Ok(bytes) if BUFFERS.contains(&size.0) => Ok(Some(bytes)),
        _ => Err(Failure::usage(format!("{option} {size}: 4 KiB to 1 GiB"))),
    }
}

/// Returns the first given option.
pub(super) fn given(args: &TcpArgs) -> Option<&'static str> {
    let all = [
        ("--send-buffer", args.buffers.send_buffer.is_some()),
        ("--receive-buffer", args.buffers.receive_buffer.is_some()),
        ("--pacing", args.buffers.pacing),
        ("--congestion", args.congestion.is_some()),
    ];
    all.iter()
        .find(|(_, given)| *given)
        .map(|(option, _)| *option)
}
