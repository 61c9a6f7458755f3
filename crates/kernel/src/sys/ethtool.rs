// UNSAFETY: SIOCETHTOOL has no safe wrapper. The number of bytes that it accesses depends on fields of the caller's
// structure; this file computes that number and checks it before every call.

//! The ethtool ioctl, for requests that the netlink family does not have.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::tun::IFNAMSIZ;

/// Commands of this ioctl (linux include/uapi/linux/ethtool.h `ETHTOOL_G*`, `ETHTOOL_S*`).
pub(crate) mod command {
    /// `ETHTOOL_GDRVINFO`.
    pub(crate) const GET_DRIVER_INFO: u32 = 0x03;
    /// `ETHTOOL_GRXCLSRLCNT`: number of rules.
    pub(crate) const GET_RULE_COUNT: u32 = 0x2e;
    /// `ETHTOOL_GRXCLSRULE`: one rule.
    pub(crate) const GET_RULE: u32 = 0x2f;
    /// `ETHTOOL_GRXCLSRLALL`: the locations of all rules.
    pub(crate) const GET_RULE_LOCATIONS: u32 = 0x30;
    /// `ETHTOOL_SRXCLSRLDEL`.
    pub(crate) const DELETE_RULE: u32 = 0x31;
    /// `ETHTOOL_SRXCLSRLINS`.
    pub(crate) const INSERT_RULE: u32 = 0x32;
    /// `ETHTOOL_GRSSH`.
    pub(crate) const GET_RSS: u32 = 0x46;
    /// `ETHTOOL_SRSSH`.
    pub(crate) const SET_RSS: u32 = 0x47;
}

/// `sizeof(struct ethtool_drvinfo)`.
pub(crate) const DRVINFO_LEN: usize = 196;
/// `sizeof(struct ethtool_rxnfc)`.
pub(crate) const RXNFC_LEN: usize = 192;
/// `offsetof(struct ethtool_rxnfc, rule_cnt)` and `rule_locs`: the array starts in the padding.
pub(crate) const RXNFC_RULE_COUNT: usize = 184;
pub(crate) const RXNFC_RULE_LOCATIONS: usize = 188;
/// `sizeof(struct ethtool_rxfh)` without its array: `offsetof(rss_config)`.
pub(crate) const RXFH_LEN: usize = 24;
/// `offsetof(struct ethtool_rxfh, indir_size)` and `key_size`.
pub(crate) const RXFH_INDIR_SIZE: usize = 8;
pub(crate) const RXFH_KEY_SIZE: usize = 12;
/// `ETH_RXFH_INDIR_NO_CHANGE`: no table follows.
pub(crate) const RXFH_INDIR_NO_CHANGE: u32 = u32::MAX;

/// `SIOCETHTOOL` (linux include/uapi/linux/sockios.h).
const SIOCETHTOOL: u32 = 0x8946;

/// `struct ifreq` as the ioctl uses it: the interface's name and a pointer to the command.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    data: *mut u8,
    rest: [u8; size_of::<libc::ifreq>() - IFNAMSIZ - size_of::<*mut u8>()],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());
const _: () = assert!(align_of::<InterfaceRequest>() == align_of::<libc::ifreq>());
const _: () = assert!(std::mem::offset_of!(InterfaceRequest, data) == IFNAMSIZ);

/// Runs the command in `buffer` on the interface `name`; the kernel writes its reply to the same buffer.
/// `socket` is any socket of the interface's network namespace.
///
/// `EINVAL`, without a call of the kernel, for a command that is not in [`command`], or a buffer that is
/// shorter than the fields of its command require.
pub(crate) fn ethtool(
    socket: BorrowedFd<'_>,
    name: &[u8; IFNAMSIZ],
    buffer: &mut [u8],
) -> Result<(), Errno> {
    if touched_len(buffer).is_none_or(|touched| touched > buffer.len()) {
        return Err(Errno::INVAL);
    }
    let mut request = InterfaceRequest {
        name: *name,
        data: buffer.as_mut_ptr(),
        rest: [0; _],
    };
    let request = &raw mut request;
    // SAFETY: 1. `socket` is open for the call; 2. SIOCETHTOOL reads and writes one struct ifreq at
    // `request`, whose size and layout are asserted above; 3. through `data` it reads and writes at
    // most `touched_len` bytes, which are inside `buffer`, exclusively borrowed for the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, request) };
    let _: c_int = rc;
    if rc < 0 {
        return Err(super::last_errno());
    }
    Ok(())
}

/// Returns the number of bytes of a command that the kernel reads or writes (linux net/ethtool/ioctl.c:
/// ethtool_get_drvinfo, ethtool_get_rxnfc, ethtool_set_rxnfc, ethtool_get_rxfh, ethtool_set_rxfh);
/// `None` if the command is not in [`command`], or too short to tell.
fn touched_len(buffer: &[u8]) -> Option<usize> {
    let count = |offset| word(buffer, offset).and_then(|n| usize::try_from(n).ok());
    match word(buffer, 0)? {
        command::GET_DRIVER_INFO => Some(DRVINFO_LEN),
        command::GET_RULE_COUNT
        | command::GET_RULE
        | command::DELETE_RULE
        | command::INSERT_RULE => Some(RXNFC_LEN),
        // The structure, with `rule_cnt` numbers from `rule_locs` on.
        command::GET_RULE_LOCATIONS => {
            let locations = count(RXNFC_RULE_COUNT)?.checked_mul(4)?;
            let end = RXNFC_RULE_LOCATIONS.checked_add(locations)?;
            Some(end.max(RXNFC_LEN))
        }
        command::GET_RSS | command::SET_RSS => {
            let entries = match word(buffer, RXFH_INDIR_SIZE)? {
                RXFH_INDIR_NO_CHANGE => 0,
                _ => count(RXFH_INDIR_SIZE)?,
            };
            let table = entries.checked_mul(4)?;
            let key = count(RXFH_KEY_SIZE)?;
            RXFH_LEN.checked_add(table)?.checked_add(key)
        }
        _ => None,
    }
}

fn word(buffer: &[u8], offset: usize) -> Option<u32> {
    let bytes = buffer.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_words(len: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut buffer = vec![0; len];
        for (offset, word) in words {
            buffer[*offset..*offset + 4].copy_from_slice(&word.to_ne_bytes());
        }
        buffer
    }

    #[test]
    fn a_list_of_locations_must_fit_its_buffer() {
        let words = |count| [(0, command::GET_RULE_LOCATIONS), (RXNFC_RULE_COUNT, count)];
        assert_eq!(touched_len(&with_words(192, &words(0))), Some(192));
        assert_eq!(touched_len(&with_words(192, &words(1))), Some(192));
        assert_eq!(touched_len(&with_words(192, &words(2))), Some(196));
        let all = touched_len(&with_words(192, &words(u32::MAX)));
        assert_eq!(all, Some(188 + 4 * (u32::MAX as usize)));
    }

    #[test]
    fn a_table_and_a_key_must_fit_their_buffer() {
        let words = |indir, key| {
            [
                (0, command::GET_RSS),
                (RXFH_INDIR_SIZE, indir),
                (RXFH_KEY_SIZE, key),
            ]
        };
        assert_eq!(touched_len(&with_words(24, &words(0, 0))), Some(24));
        assert_eq!(
            touched_len(&with_words(24, &words(128, 40))),
            Some(24 + 512 + 40)
        );
        let unchanged = with_words(24, &words(RXFH_INDIR_NO_CHANGE, 0));
        assert_eq!(touched_len(&unchanged), Some(24));
    }

    #[test]
    fn an_unknown_command_is_refused_without_a_system_call() {
        // ETHTOOL_GEEPROM: its length field has another offset.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&socket);
        let mut name = [0; IFNAMSIZ];
        name[..2].copy_from_slice(b"lo");
        let mut eeprom = with_words(64, &[(0, 0x0b)]);
        assert_eq!(ethtool(fd, &name, &mut eeprom), Err(Errno::INVAL));
        let mut short = with_words(RXNFC_LEN - 1, &[(0, command::GET_RULE_COUNT)]);
        assert_eq!(ethtool(fd, &name, &mut short), Err(Errno::INVAL));
        for len in 0..4 {
            assert_eq!(ethtool(fd, &name, &mut vec![0; len]), Err(Errno::INVAL));
        }
    }
}
