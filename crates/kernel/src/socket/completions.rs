//! The error queue: completions of zero-copy sends.

use std::os::fd::BorrowedFd;

use devmem_uapi::{CmsgIter, Errno, MsgFlags, SockExtendedErr, ZerocopyRange};

use crate::sys;

/// Room for one entry with the larger of its two addresses, and for other control messages.
const CONTROL_BYTES: usize = 512;

/// Why the error queue could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the error queue: {errno} ({})", errno.describe())]
pub struct CompletionError {
    /// The errno of recvmsg.
    pub errno: Errno,
}

/// Entries read from the error queue of a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorQueue {
    /// Complete zero-copy sends: their memory may be changed. Ranges that touch are merged; they are in the order of
    /// completion.
    pub completions: Vec<ZerocopyRange>,
    /// Other entries, such as ICMP errors.
    pub others: Vec<SockExtendedErr>,
}

impl ErrorQueue {
    /// Reads all entries of the error queue of `socket`, without waiting; poll(2) reports new ones with `POLLERR`. Returns
    /// the number of entries.
    ///
    /// # Errors
    ///
    /// The errno of recvmsg; `EPROTO` if the kernel dropped control messages for lack of room, so that a completion may be
    /// lost. Entries read before the error are kept.
    pub fn drain(&mut self, socket: BorrowedFd<'_>) -> Result<usize, CompletionError> {
        let flags = MsgFlags::ERRQUEUE | MsgFlags::DONTWAIT;
        let mut control = [0; CONTROL_BYTES];
        let mut entries = 0;
        loop {
            match sys::message::recvmsg(socket, &mut [], &mut control, flags.bits()) {
                Ok(raw) => {
                    entries += 1;
                    let flags = MsgFlags::from_bits_retain(raw.flags);
                    self.take(control.get(..raw.control_len).unwrap_or_default(), flags)?;
                }
                Err(Errno::EAGAIN) => return Ok(entries),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(CompletionError { errno }),
            }
        }
    }

    /// Adds the result of one read.
    fn take(&mut self, control: &[u8], flags: MsgFlags) -> Result<(), CompletionError> {
        self.parse(control);
        match flags.contains(MsgFlags::CTRUNC) {
            true => Err(CompletionError {
                errno: Errno::EPROTO,
            }),
            false => Ok(()),
        }
    }

    /// Adds the control messages of one read.
    pub fn parse(&mut self, control: &[u8]) {
        for entry in CmsgIter::new(control).filter_map(|message| SockExtendedErr::parse(&message)) {
            match ZerocopyRange::try_from(entry) {
                Ok(range) => {
                    let last = self.completions.last_mut();
                    if !last.is_some_and(|last| last.try_merge(range)) {
                        self.completions.push(range);
                    }
                }
                Err(other) => self.others.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::{CmsgWriter, OffenderFamily, ZerocopyId};
    use proptest::prelude::*;

    use super::*;

    fn range(lo: u32, hi: u32) -> ZerocopyRange {
        ZerocopyRange {
            lo: ZerocopyId(lo),
            hi: ZerocopyId(hi),
            copied: false,
        }
    }

    fn control(entry: SockExtendedErr, family: OffenderFamily) -> Vec<u8> {
        let mut buffer = vec![0; CONTROL_BYTES];
        let mut writer = CmsgWriter::new(&mut buffer);
        entry.push(family, &mut writer).unwrap();
        let written = writer.written();
        buffer.truncate(written);
        buffer
    }

    #[test]
    fn completions_that_touch_are_merged_for_both_ip_versions() {
        let mut queue = ErrorQueue::default();
        queue.parse(&control(range(0, 3).into(), OffenderFamily::Ip));
        queue.parse(&control(range(4, 4).into(), OffenderFamily::Ipv6));
        queue.parse(&control(range(6, 6).into(), OffenderFamily::Ipv6));
        assert_eq!(queue.completions, [range(0, 4), range(6, 6)]);
        assert_eq!(queue.others, []);
    }

    #[test]
    fn dropped_control_messages_are_an_error_and_entries_read_before_are_kept() {
        let mut queue = ErrorQueue::default();
        let control = control(range(0, 3).into(), OffenderFamily::Ip);
        assert_eq!(queue.take(&control, MsgFlags::ERRQUEUE), Ok(()));
        let cut = queue.take(&[], MsgFlags::ERRQUEUE | MsgFlags::CTRUNC);
        let error = cut.expect_err("a completion may be lost");
        assert_eq!(error.errno, Errno::EPROTO);
        assert_eq!(queue.completions, [range(0, 3)]);
    }

    #[test]
    fn an_icmp_error_is_not_a_completion() {
        let icmp = SockExtendedErr {
            errno: 113,
            origin: 2,
            kind: 3,
            code: 1,
            pad: 0,
            info: 0,
            data: 0,
        };
        let mut queue = ErrorQueue::default();
        queue.parse(&control(icmp, OffenderFamily::Ip));
        assert_eq!((queue.completions, queue.others), (vec![], vec![icmp]));
    }

    proptest! {
        #[test]
        fn no_control_bytes_panic(control in prop::collection::vec(any::<u8>(), 0..300)) {
            ErrorQueue::default().parse(&control);
        }
    }
}
