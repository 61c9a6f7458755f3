//! Requests for the bytes of an export.

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
/// Command flag: reply when the bytes are on storage.
pub(crate) const FLAG_FUA: u16 = 1 << 0;
/// Length of a request without its payload.
pub(crate) const REQUEST_BYTES: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// ESHUTDOWN: the server ends.
pub(crate) const SHUTDOWN: u32 = 108;

/// A request without its payload (the section "Request message").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) command: u16,
    /// Command flags.
    pub(crate) flags: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request {
    /// The request that ends a connection.
    pub(crate) const GOODBYE: Self = Self {
        command: CMD_DISC,
        flags: 0,
        cookie: 0,
        offset: 0,
        len: 0,
    };

    /// Appends the request.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let Self {
            command,
            flags,
            cookie,
            offset,
            len,
        } = self;
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&command.to_be_bytes());
        out.extend_from_slice(&cookie.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
    }
}
