//! Descriptor numbers: each file of the stack has a real descriptor of the process under the same number.
//!
//! packetdrill closes what a script left open with libc's close(2), and ends with an error if the number is none of the
//! process. The real descriptors are duplicates of one empty memory file, which has an inode number of its own, so that
//! a number that was closed and given to another file is recognised.

use std::collections::HashMap;
use std::mem::forget;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use devmem_uapi::Errno;
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::process::{Resource, getrlimit};

/// First descriptor of the stack's files: above packetdrill's own, which start at 0.
const FIRST: i32 = 512;

/// Distance between the first descriptors of two instances.
const APART: i32 = 64;

/// Returns the first number of the files of a new instance.
///
/// A process that has several instances at once, as tests have, gets different ones, as long as its limit of open files
/// allows.
pub(crate) fn first() -> i32 {
    static INSTANCES: AtomicI32 = AtomicI32::new(0);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let first = FIRST.min(limit / 2);
    let places = ((limit - first) / APART).clamp(1, 256);
    let nth = INSTANCES.fetch_add(1, Ordering::Relaxed).rem_euclid(places);
    first + nth * APART
}

/// The real descriptors of an instance.
#[derive(Debug)]
pub(crate) struct Numbers {
    template: OwnedFd,
    inode: (u64, u64),
    reserved: Mutex<HashMap<i32, Reserved>>,
}

/// A real descriptor, and how many files have its number: two for a moment, when a number is used again while the call
/// that closed it returns.
#[derive(Debug)]
struct Reserved {
    fd: OwnedFd,
    users: usize,
}

impl Numbers {
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let template = memfd_create("devmem-packetdrill", MemfdFlags::CLOEXEC)?;
        let inode = inode(&template)?;
        Ok(Self {
            template,
            inode,
            reserved: Mutex::default(),
        })
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<i32, Reserved>> {
        // A panic cannot leave the map half changed.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `number` a real descriptor.
    ///
    /// # Errors
    /// EMFILE: the process has another file with this number, or may not have so many.
    pub(crate) fn reserve(&self, number: i32) -> Result<(), Errno> {
        let mut reserved = self.reserved();
        if let Some(entry) = reserved.get_mut(&number) {
            entry.users += 1;
            return Ok(());
        }
        let fd =
            rustix::io::fcntl_dupfd_cloexec(&self.template, number).map_err(|_| Errno::EMFILE)?;
        if fd.as_raw_fd() == number {
            reserved.insert(number, Reserved { fd, users: 1 });
            return Ok(());
        }
        // If this library is preloaded, `close` calls into it again.
        drop(reserved);
        drop(fd);
        Err(Errno::EMFILE)
    }

    /// Closes the real descriptor; nothing if there is none.
    pub(crate) fn release(&self, number: i32) {
        let mut reserved = self.reserved();
        let Some(entry) = reserved.get_mut(&number) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let last = reserved.remove(&number);
        drop(reserved);
        if let Some(Reserved { fd, .. }) = last {
            self.close(fd);
        }
    }

    /// Returns whether `number` is one of these.
    pub(crate) fn has(&self, number: i32) -> bool {
        self.reserved().contains_key(&number)
    }

    /// Closes a descriptor, unless libc's close(2) did.
    fn close(&self, fd: OwnedFd) {
        match inode(&fd) {
            Ok(inode) if inode == self.inode => drop(fd),
            _ => forget(fd),
        }
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let reserved = std::mem::take(&mut *self.reserved());
        for Reserved { fd, .. } in reserved.into_values() {
            self.close(fd);
        }
    }
}

fn inode(fd: &impl AsFd) -> rustix::io::Result<(u64, u64)> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(number: i32) -> bool {
        std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()
    }

    #[test]
    fn a_number_is_a_descriptor_of_the_process_until_it_is_released() {
        let numbers = Numbers::new().unwrap();
        assert_eq!(numbers.reserve(700), Ok(()));
        assert!(numbers.has(700) && is_open(700));
        numbers.release(700);
        assert!(!numbers.has(700) && !is_open(700));
        assert_eq!(numbers.reserve(710), Ok(()));
        drop(numbers);
        assert!(!is_open(710));
    }

    #[test]
    fn a_number_that_another_file_has_is_emfile() {
        let (ours, theirs) = (Numbers::new().unwrap(), Numbers::new().unwrap());
        assert_eq!(theirs.reserve(720), Ok(()));
        assert_eq!(ours.reserve(720), Err(Errno::EMFILE));
        assert!(is_open(720), "still theirs");
    }

    #[test]
    fn a_number_that_is_used_again_before_its_close_returned_stays() {
        let numbers = Numbers::new().unwrap();
        assert_eq!(
            (numbers.reserve(730), numbers.reserve(730)),
            (Ok(()), Ok(()))
        );
        numbers.release(730);
        assert!(is_open(730));
        numbers.release(730);
        assert!(!is_open(730));
    }
}
