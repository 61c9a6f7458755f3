//! Files of kinds that this crate does not have: their owner implements [`OtherFile`], the table gives them a number,
//! O_NONBLOCK, poll, epoll and what a call needs to wait for them.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use devmem_uapi::Errno;

use super::ready::News;
use super::{File, FileKind, Table};

/// A file that is neither a socket nor an epoll.
///
/// Every method is called with the table locked. `Err(EAGAIN)` of [`OtherFile::read`] and [`OtherFile::write`] means that
/// waiting may help: whatever ends the waiting calls [`Table::touch`].
pub trait OtherFile: Any + Debug + Send + Sync {
    /// Returns what it is ready for: bits of poll(2).
    fn events(&self) -> u32;

    /// Returns how it was opened: O_RDONLY, O_WRONLY or O_RDWR, as fcntl(F_GETFL) does.
    fn access_mode(&self) -> i32;

    /// Returns how many bytes can be read at once, as ioctl(FIONREAD) does.
    fn readable(&self) -> usize;

    /// read(2) without waiting: returns how many bytes it wrote to `out`; 0 at the end.
    ///
    /// # Errors
    /// As read(2); EAGAIN: nothing yet.
    fn read(&self, table: &mut Table, out: &mut [u8]) -> Result<usize, Errno>;

    /// write(2) without waiting: returns how many of the bytes it took.
    ///
    /// # Errors
    /// As write(2); EAGAIN: no room.
    fn write(&self, table: &mut Table, bytes: &[u8]) -> Result<usize, Errno>;

    /// The file was closed, and no call waits for it any more.
    fn closed(&self, table: &mut Table);
}

/// Names a file beyond its number's life: the number is given to another file, this is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    index: usize,
    serial: u64,
}

impl Table {
    /// Adds a file; `flags`: SOCK_NONBLOCK and SOCK_CLOEXEC. Returns its number and its name.
    ///
    /// # Errors
    /// EMFILE.
    pub fn add_other(
        &mut self,
        file: Arc<dyn OtherFile>,
        flags: i32,
    ) -> Result<(i32, FileId), Errno> {
        let fd = self.add_file(FileKind::Other(file), flags)?;
        let index = self.index_of(fd)?;
        let serial = self.file(fd)?.serial;
        Ok((fd, FileId { index, serial }))
    }

    /// Returns the file behind a number, if it is one of these.
    ///
    /// # Errors
    /// EBADF.
    pub fn other(&self, fd: i32) -> Result<Option<Arc<dyn OtherFile>>, Errno> {
        match &self.file(fd)?.kind {
            FileKind::Other(file) => Ok(Some(Arc::clone(file))),
            FileKind::Socket(_) | FileKind::Epoll(_) => Ok(None),
        }
    }

    /// Tells the epolls that watch a file what is new ([`crate::news`]). A file that is gone has no watchers.
    pub fn wake(&mut self, file: FileId, news: News) {
        let is_there = |it: &File| it.serial == file.serial;
        if self.files.get(file.index).is_some_and(is_there) {
            self.wake_watchers(file.index, news);
        }
    }

    pub(crate) fn read_other(&mut self, fd: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let file = self.other(fd)?.ok_or(Errno::EINVAL)?;
        file.read(self, out)
    }

    pub(crate) fn write_other(&mut self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let file = self.other(fd)?.ok_or(Errno::EINVAL)?;
        file.write(self, bytes)
    }
}
