//! Entries of the error queue (linux include/uapi/linux/errqueue.h).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cmsg::{Cmsg, CmsgWriter, NoSpace};
use crate::errno::Errno;
use crate::ids::ZerocopyId;
use crate::sockopt::{IP_RECVERR, IPV6_RECVERR, SOL_IP, SOL_IPV6};

/// `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_ORIGIN_TIMESTAMPING`.
const ORIGIN_TIMESTAMPING: u8 = 4;
/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;

/// Bytes of the data of [`SCM_TIMESTAMPING`](crate::sockopt::SCM_TIMESTAMPING): three timestamps of 16 bytes.
pub const SCM_TIMESTAMPING_LEN: usize = 48;

/// One entry of the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[doc(alias = "sock_extended_err")]
pub struct SockExtendedErr {
    /// Error number; 0 for a completion.
    pub errno: u32,
    /// Origin: 4 timestamping, 5 zero-copy.
    pub origin: u8,
    /// Type (of an ICMP message).
    pub kind: u8,
    /// Code; in a completion, 1 if the bytes were copied.
    pub code: u8,
    /// Unused.
    pub pad: u8,
    /// First id of a completed range.
    pub info: u32,
    /// Last id of a completed range.
    pub data: u32,
}
const _: () = assert!(size_of::<SockExtendedErr>() == 16);
const _: () = assert!(std::mem::offset_of!(SockExtendedErr, origin) == 4);
const _: () = assert!(std::mem::offset_of!(SockExtendedErr, code) == 6);
const _: () = assert!(std::mem::offset_of!(SockExtendedErr, info) == 8);
const _: () = assert!(std::mem::offset_of!(SockExtendedErr, data) == 12);

/// Address family of the socket. It determines level and type of the message and the size of the
/// address (all zero for a completion) that follows the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffenderFamily {
    /// An IPv4 socket; `sockaddr_in`, 16 bytes.
    Ip,
    /// An IPv6 socket; `sockaddr_in6`, 28 bytes.
    Ipv6,
}

impl SockExtendedErr {
    /// Returns the entry in a message of the error queue, `None` for a message of another type.
    pub fn parse(cmsg: &Cmsg<'_>) -> Option<Self> {
        match (cmsg.level, cmsg.ty) {
            (SOL_IP, IP_RECVERR) | (SOL_IPV6, IPV6_RECVERR) => Self::read_from_prefix(cmsg.data)
                .ok()
                .map(|(entry, _)| entry),
            _ => None,
        }
    }

    /// Writes the entry as the kernel's message for `family`.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing was written.
    pub fn push(&self, family: OffenderFamily, out: &mut CmsgWriter<'_>) -> Result<(), NoSpace> {
        let mut body = [0; size_of::<Self>() + 28];
        body[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        match family {
            OffenderFamily::Ip => out.push(SOL_IP, IP_RECVERR, &body[..size_of::<Self>() + 16]),
            OffenderFamily::Ipv6 => out.push(SOL_IPV6, IPV6_RECVERR, &body),
        }
    }
}

/// Event that a send timestamp records (linux `SCM_TSTAMP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StampKind {
    /// The send's last byte was handed to the NIC.
    Sent = 0,
    /// The send's last byte entered the packet scheduler.
    Scheduled = 1,
    /// The peer acknowledged the send's last byte.
    Acked = 2,
}

/// Timestamp of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxStamp {
    /// Event that the timestamp records.
    pub kind: StampKind,
    /// Offset of the send's last byte, modulo 2^32; 0 where sends are not numbered.
    pub id: u32,
    /// Nanoseconds, on the clock of the stack that recorded it.
    pub nanos: u64,
}

impl TxStamp {
    /// Returns the data of its control message: a `struct scm_timestamping` with the software timestamp.
    pub fn scm_timestamping(&self) -> [u8; SCM_TIMESTAMPING_LEN] {
        let mut body = [0; SCM_TIMESTAMPING_LEN];
        let (secs, nanos) = (self.nanos / 1_000_000_000, self.nanos % 1_000_000_000);
        body[..8].copy_from_slice(&secs.to_ne_bytes());
        body[8..16].copy_from_slice(&nanos.to_ne_bytes());
        body
    }
}

impl From<TxStamp> for SockExtendedErr {
    fn from(stamp: TxStamp) -> Self {
        Self {
            errno: Errno::ENOMSG.0.cast_unsigned(),
            origin: ORIGIN_TIMESTAMPING,
            kind: 0,
            code: 0,
            pad: 0,
            info: stamp.kind as u32,
            data: stamp.id,
        }
    }
}

/// Range of completed zero-copy sends; their memory may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZerocopyRange {
    /// First id.
    pub lo: ZerocopyId,
    /// Last id; smaller than `lo` only if the counter wrapped in between.
    pub hi: ZerocopyId,
    /// The bytes were copied: zero-copy gained nothing.
    pub copied: bool,
}

impl ZerocopyRange {
    /// Returns the range of one send.
    pub const fn one(id: ZerocopyId) -> Self {
        Self {
            lo: id,
            hi: id,
            copied: false,
        }
    }

    /// Returns how many sends the range holds.
    pub const fn count(&self) -> u64 {
        self.hi.0.wrapping_sub(self.lo.0) as u64 + 1
    }

    /// True if the range holds `id`.
    pub const fn contains(&self, id: ZerocopyId) -> bool {
        id.0.wrapping_sub(self.lo.0) <= self.hi.0.wrapping_sub(self.lo.0)
    }

    /// Appends `later` if it directly follows this range and has the same `copied`; returns whether it
    /// does (linux net/core/skbuff.c `skb_zerocopy_notify_extend`).
    pub fn try_merge(&mut self, later: Self) -> bool {
        let fits = self.count() + later.count() <= 1 << 32;
        let merges = fits && self.hi.next() == later.lo && self.copied == later.copied;
        if merges {
            self.hi = later.hi;
        }
        merges
    }
}

impl From<ZerocopyRange> for SockExtendedErr {
    fn from(range: ZerocopyRange) -> Self {
        let ZerocopyRange { lo, hi, copied } = range;
        Self {
            errno: 0,
            origin: ORIGIN_ZEROCOPY,
            kind: 0,
            code: if copied { CODE_COPIED } else { 0 },
            pad: 0,
            info: lo.0,
            data: hi.0,
        }
    }
}

/// Fails, and returns the entry, if it is not a zero-copy completion.
impl TryFrom<SockExtendedErr> for ZerocopyRange {
    type Error = SockExtendedErr;

    fn try_from(entry: SockExtendedErr) -> Result<Self, SockExtendedErr> {
        let SockExtendedErr {
            errno,
            origin,
            kind: _,
            code,
            pad: _,
            info,
            data,
        } = entry;
        if errno != 0 || origin != ORIGIN_ZEROCOPY {
            return Err(entry);
        }
        Ok(Self {
            lo: ZerocopyId(info),
            hi: ZerocopyId(data),
            copied: code & CODE_COPIED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CmsgIter, cmsg_space};

    fn range(lo: u32, hi: u32) -> ZerocopyRange {
        ZerocopyRange {
            lo: ZerocopyId(lo),
            hi: ZerocopyId(hi),
            copied: false,
        }
    }

    #[test]
    fn a_completion_survives_the_control_buffer() {
        for (family, body) in [(OffenderFamily::Ip, 32), (OffenderFamily::Ipv6, 44)] {
            let sent = ZerocopyRange {
                copied: true,
                ..range(3, 9)
            };
            let mut buf = [0; 128];
            let mut writer = CmsgWriter::new(&mut buf);
            SockExtendedErr::from(sent)
                .push(family, &mut writer)
                .unwrap();
            let len = writer.written();
            assert_eq!(len, cmsg_space(body));
            let cmsg = CmsgIter::new(&buf[..len]).next().unwrap();
            assert_eq!(cmsg.data.len(), body);
            let entry = SockExtendedErr::parse(&cmsg).unwrap();
            assert_eq!(ZerocopyRange::try_from(entry), Ok(sent));
        }
    }

    #[test]
    fn an_icmp_error_is_no_completion() {
        let entry = SockExtendedErr {
            errno: 111,
            origin: 2,
            ..range(0, 0).into()
        };
        assert_eq!(ZerocopyRange::try_from(entry), Err(entry));
    }

    #[test]
    fn a_short_entry_is_not_parsed() {
        let cmsg = Cmsg {
            level: SOL_IP,
            ty: IP_RECVERR,
            data: &[0; 15],
        };
        assert_eq!(SockExtendedErr::parse(&cmsg), None);
        let other = Cmsg {
            level: SOL_IP,
            ty: IPV6_RECVERR,
            data: &[0; 16],
        };
        assert_eq!(SockExtendedErr::parse(&other), None);
    }

    #[test]
    fn only_adjacent_ranges_of_one_kind_merge() {
        let mut merged = range(0, 3);
        assert!(merged.try_merge(range(4, 4)));
        assert_eq!(merged, range(0, 4));
        assert!(!merged.try_merge(range(6, 7)), "a gap");
        assert!(!merged.try_merge(range(4, 5)), "an overlap");
        assert!(!merged.try_merge(ZerocopyRange {
            copied: true,
            ..range(5, 5)
        }));
    }

    #[test]
    fn ranges_merge_across_the_wrap_of_the_counter() {
        let mut merged = range(u32::MAX - 1, u32::MAX);
        assert!(merged.try_merge(range(0, 1)));
        assert_eq!(merged.count(), 4);
        assert!(merged.contains(ZerocopyId(u32::MAX)) && merged.contains(ZerocopyId(1)));
        assert!(!merged.contains(ZerocopyId(2)) && !merged.contains(ZerocopyId(u32::MAX - 2)));
    }

    #[test]
    fn a_range_never_grows_past_all_ids() {
        let mut all = range(0, u32::MAX);
        assert_eq!(all.count(), 1 << 32);
        assert!(!all.try_merge(range(0, 0)));
    }
}
