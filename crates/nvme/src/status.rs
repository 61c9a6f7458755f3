//! How a command ended.

use std::fmt;

/// The status of a completion: the upper 15 bits of its last field, without the phase (Base, "Completion Queue Entry: Status Field").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Do not retry: the same command will fail again.
const DO_NOT_RETRY: u16 = 1 << 14;
/// Status code type and status code.
const CODE: u16 = 0x7ff;

impl Status {
    /// The command succeeded.
    pub const SUCCESS: Self = Self(0);
    /// Generic: the opcode is not supported.
    pub const INVALID_OPCODE: Self = Self(0x001);
    /// Generic: a field of the command has a value that is not supported.
    pub const INVALID_FIELD: Self = Self(0x002);
    /// Generic: data could not be transferred.
    pub const DATA_TRANSFER_ERROR: Self = Self(0x004);
    /// Generic: an error inside of the controller.
    pub const INTERNAL: Self = Self(0x006);
    /// Generic: the command was aborted, because its queue was deleted.
    pub const ABORTED_QUEUE_DELETED: Self = Self(0x008);
    /// Generic: there is no such namespace, or it is not active.
    pub const INVALID_NAMESPACE: Self = Self(0x00b);
    /// Generic: a command came out of its sequence.
    pub const SEQUENCE_ERROR: Self = Self(0x00c);
    /// Generic: the length of the data does not match the command.
    pub const INVALID_SGL_LENGTH: Self = Self(0x00f);
    /// Generic: the namespace is write protected.
    pub const WRITE_PROTECTED: Self = Self(0x020);
    /// Generic, of the NVM command set: a block is behind the end of the namespace.
    pub const LBA_OUT_OF_RANGE: Self = Self(0x080);
    /// Generic, of the NVM command set: the namespace is full.
    pub const CAPACITY_EXCEEDED: Self = Self(0x081);
    /// Generic, of the NVM command set: the namespace is not ready.
    pub const NAMESPACE_NOT_READY: Self = Self(0x082);
    /// Command specific, of Connect: format of the data not supported.
    pub const CONNECT_FORMAT: Self = Self(0x180);
    /// Command specific, of Connect: the controller has a host already.
    pub const CONNECT_BUSY: Self = Self(0x181);
    /// Command specific, of Connect: a parameter is invalid.
    pub const CONNECT_INVALID: Self = Self(0x182);
    /// Command specific, of Connect: restart the discovery.
    pub const CONNECT_RESTART: Self = Self(0x183);
    /// Command specific, of Connect: this host may not connect.
    pub const CONNECT_HOST: Self = Self(0x184);
    /// Command specific, of Connect: in-band authentication is required.
    pub const AUTHENTICATION_REQUIRED: Self = Self(0x191);
    /// Command specific, of the NVM command set: the range is read-only.
    pub const READ_ONLY_RANGE: Self = Self(0x182);
    /// Media: a write failed.
    pub const WRITE_FAULT: Self = Self(0x280);
    /// Media: a read failed, and the data cannot be recovered.
    pub const UNRECOVERED_READ: Self = Self(0x281);

    /// Returns the status of the last field of a completion.
    pub fn of_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// Returns the last field of a completion, with a phase of 0, which a transport does not use.
    pub fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Returns the same status with the bit that says that a repetition fails, too.
    #[must_use]
    pub fn do_not_retry(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// Returns whether the command succeeded.
    pub fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// Returns whether it is `other`, whatever they say about repetitions.
    pub fn is(self, other: Self) -> bool {
        self.0 & CODE == other.0 & CODE
    }

    /// Returns whether the path or the queue failed, and not the command: it may be issued again on another connection.
    pub fn is_of_the_path(self) -> bool {
        // Status code type 3: path related (Base, "Path Related Status").
        (self.0 >> 8) & 0x7 == 3
            || self.is(Self::ABORTED_QUEUE_DELETED)
            || (self.is(Self::NAMESPACE_NOT_READY) && self.0 & DO_NOT_RETRY == 0)
    }

    fn meaning(self) -> Option<&'static str> {
        Some(match self.0 & CODE {
            0x000 => "success",
            0x001 => "invalid opcode",
            0x002 => "invalid field in the command",
            0x003 => "command ID conflict",
            0x004 => "data transfer error",
            0x005 => "aborted, because power is lost",
            0x006 => "internal error",
            0x007 => "aborted by request",
            0x008 => "aborted, because its queue was deleted",
            0x00b => "invalid namespace: it does not exist, or is not active",
            0x00c => "command sequence error",
            0x00f => "the length of the data does not match the command",
            0x015 => "operation denied",
            0x020 => "the namespace is write protected",
            0x080 => "a block is behind the end of the namespace",
            0x081 => "the capacity is exceeded",
            0x082 => "the namespace is not ready",
            0x083 => "reservation conflict: another host has reserved the namespace",
            0x180 => "the format of Connect is not supported",
            0x181 => "the controller has a host already",
            0x182 => "invalid parameter, or the range is read-only",
            0x183 => "restart the discovery",
            0x184 => "this host may not connect",
            0x191 => "authentication required",
            0x280 => "write fault",
            0x281 => "unrecovered read error",
            0x282..=0x284 => "protection information does not match",
            0x286 => "access denied",
            0x287 => "a block is deallocated or was never written",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = ((self.0 >> 8) & 0x7, self.0 & 0xff);
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} (NVMe status {kind}/{code:#04x})"),
            None => write!(f, "NVMe status {kind}/{code:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_and_the_retry_bit_are_no_part_of_the_code() {
        let status = Status::of_field(0x8163);
        assert!(!status.is_success());
        let refused = Status::LBA_OUT_OF_RANGE.do_not_retry();
        assert!(refused.is(Status::LBA_OUT_OF_RANGE) && !refused.is_success());
        assert_eq!(Status::of_field(refused.to_field()), refused);
        assert!(Status::of_field(1).is_success());
        // Of each type of codes.
        let first_codes = (1..8).map(|kind| Status::of_field(kind << 9));
        assert!(first_codes.into_iter().all(|status| !status.is_success()));
    }

    #[test]
    fn a_path_that_failed_is_told_from_a_command_that_failed() {
        assert!(Status::of_field(0x301 << 1).is_of_the_path());
        assert!(Status::ABORTED_QUEUE_DELETED.is_of_the_path());
        assert!(Status::NAMESPACE_NOT_READY.is_of_the_path());
        assert!(!Status::NAMESPACE_NOT_READY.do_not_retry().is_of_the_path());
        assert!(!Status::UNRECOVERED_READ.is_of_the_path());
        let text = Status::UNRECOVERED_READ.to_string();
        assert_eq!(text, "unrecovered read error (NVMe status 2/0x81)");
        assert_eq!(
            Status::of_field(0x7ff << 1).to_string(),
            "NVMe status 7/0xff"
        );
    }
}
