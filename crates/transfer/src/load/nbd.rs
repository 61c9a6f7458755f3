//! The Network Block Device protocol (the file proto.md of the NBD project): reading an export, several requests at a time.

mod export;
mod handshake;
mod reply;
mod session;
mod url;

pub use export::NbdExport;
#[cfg(feature = "test-util")]
pub(crate) use session::NbdSession;
pub use url::NbdUrl;

/// The client's 32-bit flags and the server's 16-bit ones: newstyle negotiation with option replies.
const FIXED_NEWSTYLE: u16 = 1 << 0;
/// No 124 zero bytes after the answer to `NBD_OPT_EXPORT_NAME`.
const NO_ZEROES: u16 = 1 << 1;
/// Transmission flag: several connections see the same data.
const CAN_MULTI_CONN: u16 = 1 << 8;
const CMD_READ: u16 = 0;
const CMD_DISC: u16 = 2;
const REQUEST_MAGIC: u32 = 0x2560_9513;

/// Appends a request (the section "Request message").
fn write_request(command: u16, cookie: u64, offset: u64, len: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    // No command flags.
    out.extend_from_slice(&0u16.to_be_bytes());
    out.extend_from_slice(&command.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}
