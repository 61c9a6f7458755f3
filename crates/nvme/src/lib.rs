//! NVMe over TCP as plain data: what a host and a controller send each other.
//!
//! Key types: [`pdu::FromController`] and [`pdu::FromHost`] (what one PDU says, without its data), [`command::Sqe`] (one
//! submission queue entry) and [`Status`] (how a command ended). In a load they are the step between received bytes and the
//! place of the payload behind them: see the crate `transfer`.
//!
//! Layouts and numbers are those of the NVM Express specifications (NVM Express TCP Transport 1.1, Base 2.1, NVM Command
//! Set 1.1); comments name the figure or section by its title. All fields are little-endian.
//!
//! Nothing here waits, receives or owns memory. A parser says how many bytes it still needs, so that its caller can read
//! exactly a header and receive the data behind it somewhere else.

#![forbid(unsafe_code)]

pub mod command;
pub mod discovery;
pub mod identify;
pub mod pdu;
pub mod property;
mod status;

pub use status::Status;

/// Port of an I/O controller (IANA: nvme).
pub const PORT: u16 = 4420;
/// Port of a discovery controller (IANA: nvme-disc).
pub const DISCOVERY_PORT: u16 = 8009;
/// Name of the discovery subsystem, the same everywhere (Base, "Discovery Service").
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NVMe Qualified Name, in bytes (Base, "NVMe Qualified Names").
pub const MAX_NQN_BYTES: usize = 223;

/// Returns the text of a field that is padded with zeros or spaces; bytes that are no UTF-8 are replaced.
pub(crate) fn text_of(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]);
    text.trim_end().to_owned()
}

/// Returns a field of `N` bytes with a text, which is cut if it is longer.
pub(crate) fn field_of<const N: usize>(text: &str, padding: u8) -> [u8; N] {
    let mut field = [padding; N];
    let len = text.len().min(N);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}
