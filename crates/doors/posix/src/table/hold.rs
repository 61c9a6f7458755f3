//! Holds: a file that a call waits for exists until the call returns, even if it is closed meanwhile (in Linux the call
//! holds a reference). close(2) frees only the descriptor.

use devmem_uapi::Errno;

use super::Table;

/// The files that a waiting call uses.
#[derive(Debug, Default)]
#[must_use = "files that are not released are never closed"]
pub(crate) struct Hold {
    /// By index and serial number.
    files: Vec<(usize, u64)>,
}

impl Table {
    /// Returns the number of holds: files used by waiting calls, counted once for each call.
    pub fn held_files(&self) -> usize {
        self.files.iter().map(|(_, file)| file.holders).sum()
    }

    /// Holds the files of `fds`; descriptors that are not open are skipped.
    pub(crate) fn hold(&mut self, fds: impl Iterator<Item = i32>) -> Hold {
        let mut hold = Hold::default();
        for fd in fds {
            if let Ok(index) = self.index_of(fd)
                && let Some(file) = self.files.get_mut(index)
            {
                file.holders += 1;
                hold.files.push((index, file.serial));
            }
        }
        hold
    }

    /// Returns whether each descriptor still refers to the file with the given serial number.
    pub(crate) fn are(&self, files: &[(i32, u64)]) -> bool {
        let is =
            |(fd, serial): &(i32, u64)| self.file(*fd).is_ok_and(|file| file.serial == *serial);
        files.iter().all(is)
    }

    /// Runs one attempt of a call that holds files.
    ///
    /// # Errors
    /// As `attempt`; EBADF if one of the files no longer exists (the whole table was closed).
    pub(crate) fn holding<T>(
        &mut self,
        hold: &Hold,
        attempt: impl FnOnce(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let is_there = |(index, serial): &(usize, u64)| {
            let file = self.files.get(*index);
            file.is_some_and(|file| file.serial == *serial)
        };
        if !hold.files.iter().all(is_there) {
            return Err(Errno::EBADF);
        }
        self.held = hold.files.iter().map(|(index, _)| *index).collect();
        let result = attempt(self);
        self.held.clear();
        result
    }

    /// Ends a hold. Files that were closed in the meantime are destroyed if no other call holds them.
    pub(crate) fn release(&mut self, hold: Hold) {
        for (index, serial) in hold.files {
            let Some(file) = self.files.get_mut(index) else {
                continue;
            };
            if file.serial != serial {
                continue;
            }
            file.holders = file.holders.saturating_sub(1);
            if file.is_closed && file.holders == 0 {
                self.destroy(index);
            }
        }
    }
}
