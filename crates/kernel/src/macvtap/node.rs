//! The device of a macvtap interface: its number, and a file to open it by.
//!
//! `/dev/tapN`, with the index of the interface, has the right number only where a daemon or devtmpfs makes it and no other
//! network namespace has an interface of that index. In a container it is usually missing. So the number is read from a sysfs of
//! the namespace, and the file is made in a file system in memory, which is never attached to a folder.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    CWD, Dev, FileType, Mode, OFlags, fstat, makedev, mknodat, open as open_path, openat,
};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::MacvtapError;

/// Returns the device number of the macvtap interface `name`, with that index, of the calling thread's network namespace.
pub(super) fn device_of(name: &str, index: u32) -> Result<Dev, MacvtapError> {
    let path = format!("class/net/{name}/tap{index}/dev");
    let failed = |errno| MacvtapError::Node {
        what: "read the device number of a macvtap interface from sysfs",
        errno,
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match mounted(c"sysfs") {
        Ok(sysfs) => openat(&sysfs, &path, flags, Mode::empty()),
        // A process that may not mount is in the namespace of /sys, or cannot use the interface.
        Err(_) => openat(CWD, format!("/sys/{path}"), flags, Mode::empty()),
    };
    let mut text = [0; 32];
    let len = rustix::io::read(file.map_err(failed)?, &mut text).map_err(failed)?;
    parse(&text[..len]).ok_or_else(|| failed(Errno::INVAL))
}

/// Parses `MAJOR:MINOR` and a newline.
fn parse(text: &[u8]) -> Option<Dev> {
    let text = std::str::from_utf8(text).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Opens the device, non-blocking; the calling thread must be in the network namespace of its interface, which has the index.
pub(super) fn open(device: Dev, index: u32) -> Result<OwnedFd, MacvtapError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let existing = rustix::fs::stat(format!("/dev/tap{index}"));
    if existing.is_ok_and(|found| found.st_rdev == device)
        && let Ok(opened) = open_path(format!("/dev/tap{index}"), flags, Mode::empty())
        && fstat(&opened).is_ok_and(|found| found.st_rdev == device)
    {
        return Ok(opened);
    }
    let failed = |what| move |errno| MacvtapError::Node { what, errno };
    let folder = mounted(c"tmpfs").map_err(failed("make a file system for a device file"))?;
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(&folder, c"tap", FileType::CharacterDevice, mode, device)
        .map_err(failed("make a device file"))?;
    openat(&folder, c"tap", flags, Mode::empty()).map_err(failed("open a macvtap device"))
}

/// Makes a file system that is attached to no folder; it ends with its descriptor.
fn mounted(kind: &CStr) -> Result<OwnedFd, Errno> {
    let new = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(new.as_fd())?;
    let attributes = MountAttrFlags::empty();
    fsmount(new.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_is_two_decimal_numbers_and_a_newline() {
        assert_eq!(parse(b"246:17\n"), Some(makedev(246, 17)));
        for text in [
            &b""[..],
            b"246",
            b"246:",
            b":1\n",
            b"a:b\n",
            b"1:2:3\n",
            b"\xff:1",
        ] {
            assert_eq!(parse(text), None);
        }
    }
}
