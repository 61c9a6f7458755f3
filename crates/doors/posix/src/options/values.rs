//! Values of options, from bytes and to bytes.

use std::time::Duration;

use devmem_uapi::Errno;
use tcp::CongestionKind;

/// Bytes of a `struct timeval` on 64-bit machines.
const TIMEVAL_LEN: usize = 16;

/// Bytes of a congestion control's name with its terminator (linux `TCP_CA_NAME_MAX`).
pub(super) const TCP_CA_NAME_MAX: usize = 16;

pub(super) fn congestion(value: &[u8]) -> Result<CongestionKind, Errno> {
    if value.is_empty() {
        return Err(Errno::EINVAL);
    }
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    match name {
        b"cubic" => Ok(CongestionKind::Cubic),
        b"reno" => Ok(CongestionKind::NewReno),
        b"bbr" => Ok(CongestionKind::Bbr),
        b"dctcp" => Ok(CongestionKind::Dctcp),
        _ => Err(Errno::ENOENT),
    }
}

pub(super) const fn congestion_name(kind: CongestionKind) -> &'static str {
    match kind {
        CongestionKind::Cubic => "cubic",
        CongestionKind::NewReno => "reno",
        CongestionKind::Bbr => "bbr",
        CongestionKind::Dctcp => "dctcp",
    }
}

pub(super) fn shown(bytes: u32) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// Parses an int; further bytes are ignored, as in Linux.
pub(crate) fn int(value: &[u8]) -> Result<i32, Errno> {
    let bytes = value.first_chunk::<4>().ok_or(Errno::EINVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Parses a value of level `SOL_IP`, which may be a single byte (linux `do_ip_setsockopt`).
pub(super) fn byte_or_int(value: &[u8]) -> Result<i32, Errno> {
    match value {
        [] => Err(Errno::EINVAL),
        value if value.len() >= 4 => int(value),
        value => Ok(value[0].into()),
    }
}

/// Converts a number of seconds. The row of the option has checked that it is positive.
pub(super) fn seconds(number: i32) -> Duration {
    Duration::from_secs(number.unsigned_abs().into())
}

/// Returns a time in whole seconds, as getsockopt does.
pub(super) fn whole_seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

/// Returns the time in seconds that this number of timeouts of a SYN-ACK takes (linux `retrans_to_secs`).
pub(super) fn seconds_of(timeouts: u8) -> i32 {
    let limit = tcp::config::RTO_MAX.as_secs();
    let times = (0..u32::from(timeouts)).map(|doubled| 1u64.checked_shl(doubled).unwrap_or(limit));
    let sum: u64 = times
        .map(|time| if time == 0 { limit } else { time.min(limit) })
        .sum();
    i32::try_from(sum).unwrap_or(i32::MAX)
}

/// Returns the least number of timeouts of a SYN-ACK that takes at least this time in seconds (linux `secs_to_retrans`).
pub(super) fn timeouts_of(seconds: i32) -> u8 {
    (0..u8::MAX)
        .find(|timeouts| seconds_of(*timeouts) >= seconds)
        .unwrap_or(u8::MAX)
}

/// Parses a `struct timeval`; zero means no limit (linux `sock_set_timeout`).
pub(super) fn timeval(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let field = |at: usize| {
        let bytes = value.get(at..)?.first_chunk::<8>()?;
        Some(i64::from_ne_bytes(*bytes))
    };
    let (Some(secs), Some(micros)) = (field(0), field(8)) else {
        return Err(Errno::EINVAL);
    };
    let micros = u64::try_from(micros)
        .ok()
        .filter(|micros| *micros < 1_000_000);
    let micros = micros.ok_or(Errno(33))?;
    // A negative time means: do not wait.
    let time = match u64::try_from(secs) {
        Ok(secs) => Duration::from_secs(secs).saturating_add(Duration::from_micros(micros)),
        Err(_) => return Ok(Some(Duration::ZERO)),
    };
    Ok((!time.is_zero()).then_some(time))
}

pub(super) fn timeval_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let mut bytes = Vec::with_capacity(TIMEVAL_LEN);
    bytes.extend_from_slice(&time.as_secs().to_ne_bytes());
    bytes.extend_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
    bytes
}
