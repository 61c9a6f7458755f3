//! Files that calls wait for stay until those calls return, closed or not: as Linux's do, whose calls hold a reference.
//! Only the number goes with close(2).

use devmem_uapi::Errno;

use super::Table;

/// The files of a call that waits.
#[derive(Debug, Default)]
#[must_use = "files that are not released are never closed"]
pub(crate) struct Hold {
    /// By index and serial number.
    files: Vec<(usize, u64)>,
}

impl Table {
    /// Returns how many files are held by calls that wait, each counted once for each call.
    pub fn held_files(&self) -> usize {
        self.files.iter().map(|(_, file)| file.holders).sum()
    }

    /// Holds what `fds` stand for; those that are not open are passed over.
    pub(crate) fn hold(&mut self, fds: &[i32]) -> Hold {
        let mut hold = Hold::default();
        for fd in fds {
            if let Ok(index) = self.index_of(*fd)
                && let Some(file) = self.files.get_mut(index)
            {
                file.holders += 1;
                hold.files.push((index, file.serial));
            }
        }
        hold
    }

    /// Returns whether these numbers stand for the files with these serial numbers.
    pub(crate) fn are(&self, files: &[(i32, u64)]) -> bool {
        let is =
            |(fd, serial): &(i32, u64)| self.file(*fd).is_ok_and(|file| file.serial == *serial);
        files.iter().all(is)
    }

    /// Makes an attempt at a call that holds files.
    ///
    /// # Errors
    /// As `attempt`; EBADF if one of the files was taken away (the whole table closed).
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

    /// The call returns; what was closed meanwhile goes now, if nobody else holds it.
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
