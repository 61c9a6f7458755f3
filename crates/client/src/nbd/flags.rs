//! The flags that a server and its client agree on.

/// The client's 32-bit flags and the server's 16-bit ones: newstyle negotiation with option replies.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
/// No 124 zero bytes after the answer to `NBD_OPT_EXPORT_NAME`.
pub(super) const NO_ZEROES: u16 = 1 << 1;
/// Transmission flag (the section "Transmission flags"): the export cannot be written.
pub(super) const READ_ONLY: u16 = 1 << 1;
/// Transmission flag: the server takes `NBD_CMD_FLUSH`.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: it takes `NBD_CMD_FLAG_FUA`.
pub const SEND_FUA: u16 = 1 << 3;
/// Transmission flag: it takes `NBD_CMD_TRIM`.
pub const SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: it takes `NBD_CMD_WRITE_ZEROES`.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Several connections see the same data, and a flush on one covers what all have written.
pub(super) const CAN_MULTI_CONN: u16 = 1 << 8;
