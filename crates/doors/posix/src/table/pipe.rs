//! Pipes: bounded bytes between two files of a table (pipe(7)).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_uapi::Errno;

use super::ready::{ANYTHING, ChangedBits, READABLE, WRITABLE};
use super::{File, FileKind, Table};
use crate::abi::{SOCK_CLOEXEC, SOCK_NONBLOCK, ev, fcntl};

/// Bytes that a pipe holds (linux `PIPE_DEF_BUFFERS` pages of 4 KiB).
const PIPE_SIZE: usize = 65_536;

/// Longest write that is queued in whole or not at all (linux `PIPE_BUF`).
const PIPE_BUF: usize = 4096;

/// Identifies a file even after its number was given to another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    index: usize,
    serial: u64,
}

/// A pipe.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// The read end, while it is open.
    reader: Option<FileId>,
    /// The write end, while it is open.
    writer: Option<FileId>,
}

impl Pipe {
    fn room(&self) -> usize {
        PIPE_SIZE.saturating_sub(self.bytes.len())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Read,
    Write,
}

/// One end of a pipe. Lock order: the table's lock, then the pipe's, which is never held across a call into the table.
#[derive(Debug, Clone)]
pub(crate) struct PipeEnd {
    side: Side,
    pipe: Arc<Mutex<Pipe>>,
}

impl Table {
    /// pipe2(2): returns the read end and the write end. A pipe holds 64 KiB.
    ///
    /// # Errors
    /// EINVAL (flags beside O_NONBLOCK and O_CLOEXEC), EMFILE.
    pub fn pipe(&mut self, flags: i32) -> Result<(i32, i32), Errno> {
        // O_NONBLOCK and O_CLOEXEC have the same values as socket(2)'s SOCK_NONBLOCK and SOCK_CLOEXEC.
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let read = PipeEnd {
            side: Side::Read,
            pipe: Arc::default(),
        };
        let write = PipeEnd {
            side: Side::Write,
            pipe: Arc::clone(&read.pipe),
        };
        let (reader, reader_id) = self.add_pipe_end(read.clone(), flags)?;
        let (writer, writer_id) = match self.add_pipe_end(write, flags) {
            Ok(added) => added,
            Err(errno) => {
                self.close(reader)?;
                return Err(errno);
            }
        };
        let mut pipe = read.lock();
        (pipe.reader, pipe.writer) = (Some(reader_id), Some(writer_id));
        drop(pipe);
        Ok((reader, writer))
    }

    fn add_pipe_end(&mut self, end: PipeEnd, flags: i32) -> Result<(i32, FileId), Errno> {
        let fd = self.add_file(FileKind::Pipe(end), flags)?;
        let index = self.index_of(fd)?;
        let serial = self.file(fd)?.serial;
        Ok((fd, FileId { index, serial }))
    }

    /// Returns the pipe end that `fd` refers to, if it refers to one.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn pipe_end(&self, fd: i32) -> Result<Option<PipeEnd>, Errno> {
        match &self.file(fd)?.kind {
            FileKind::Pipe(end) => Ok(Some(end.clone())),
            FileKind::Socket(_) | FileKind::Epoll(_) => Ok(None),
        }
    }

    /// Tells the epolls that watch a pipe's end what changed. A closed end has no watchers.
    fn wake_pipe_end(&mut self, end: FileId, news: ChangedBits) {
        let is_open = |file: &File| file.serial == end.serial;
        if self.files.get(end.index).is_some_and(is_open) {
            self.wake_watchers(end.index, news);
        }
    }
}

impl PipeEnd {
    fn lock(&self) -> MutexGuard<'_, Pipe> {
        // A panic cannot leave the pipe half changed.
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_of_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Checks that this is the read end.
    ///
    /// # Errors
    /// EBADF: it is the write end.
    pub(crate) fn to_read(&self) -> Result<&Self, Errno> {
        match self.side {
            Side::Read => Ok(self),
            Side::Write => Err(Errno::EBADF),
        }
    }

    /// Checks that this is the write end.
    ///
    /// # Errors
    /// EBADF: it is the read end.
    pub(crate) fn to_write(&self) -> Result<&Self, Errno> {
        match self.side {
            Side::Write => Ok(self),
            Side::Read => Err(Errno::EBADF),
        }
    }

    /// Returns how many bytes the pipe holds; 0 if it is empty and its write end is closed.
    ///
    /// # Errors
    /// EAGAIN: it is empty and its write end is open.
    pub(crate) fn waiting(&self) -> Result<usize, Errno> {
        let pipe = self.lock();
        match pipe.bytes.len() {
            0 if pipe.writer.is_some() => Err(Errno::EAGAIN),
            waiting => Ok(waiting),
        }
    }

    /// Returns how many bytes the pipe has room for, at least one.
    ///
    /// # Errors
    /// EPIPE: its read end is closed; EAGAIN: it is full.
    pub(crate) fn room(&self) -> Result<usize, Errno> {
        let pipe = self.lock();
        match pipe.room() {
            _ if pipe.reader.is_none() => Err(Errno::EPIPE),
            0 => Err(Errno::EAGAIN),
            room => Ok(room),
        }
    }

    /// Returns a copy of the first `n` bytes, no more than there are.
    pub(crate) fn peek(&self, n: usize) -> Vec<u8> {
        self.lock().bytes.iter().take(n).copied().collect()
    }

    /// Removes the first `n` bytes, no more than there are, and returns them.
    pub(crate) fn take(&self, table: &mut Table, n: usize) -> Vec<u8> {
        let mut pipe = self.lock();
        let could_write = pipe.room() >= PIPE_BUF;
        let n = n.min(pipe.bytes.len());
        let taken = pipe.bytes.drain(..n).collect();
        let has_room_again = pipe.room() >= PIPE_BUF && !could_write;
        let writer = pipe.writer.filter(|_| has_room_again);
        drop(pipe);
        table.touch();
        if let Some(writer) = writer {
            table.wake_pipe_end(writer, WRITABLE);
        }
        taken
    }

    /// Appends bytes; the caller has checked that there is room.
    pub(crate) fn put(&self, table: &mut Table, bytes: &[u8]) {
        let mut pipe = self.lock();
        debug_assert!(bytes.len() <= pipe.room(), "there is room");
        pipe.bytes.extend(bytes);
        let reader = pipe.reader;
        drop(pipe);
        table.touch();
        if let Some(reader) = reader {
            table.wake_pipe_end(reader, READABLE);
        }
    }
}

/// What the table asks of a file. Called with the table locked.
impl PipeEnd {
    /// Returns what the end is ready for, bits of poll(2) (linux fs/pipe.c `pipe_poll`).
    pub(super) fn events(&self) -> u32 {
        let pipe = self.lock();
        let when = |condition: bool, bits: u32| if condition { bits } else { 0 };
        match self.side {
            Side::Read => {
                when(!pipe.bytes.is_empty(), ev::IN | ev::RDNORM)
                    | when(pipe.writer.is_none(), ev::HUP)
            }
            Side::Write => {
                when(pipe.room() >= PIPE_BUF, ev::OUT | ev::WRNORM)
                    | when(pipe.reader.is_none(), ev::ERR)
            }
        }
    }

    /// Returns the access mode that fcntl(F_GETFL) reports: O_RDONLY or O_WRONLY.
    pub(super) fn access_mode(&self) -> i32 {
        match self.side {
            Side::Read => fcntl::O_RDONLY,
            Side::Write => fcntl::O_WRONLY,
        }
    }

    /// Returns how many bytes ioctl(FIONREAD) reports.
    pub(super) fn readable(&self) -> usize {
        self.lock().bytes.len()
    }

    /// read(2) without waiting: returns how many bytes it wrote to `out`; 0 once the write end is closed and nothing is left.
    ///
    /// # Errors
    /// EBADF: this is the write end; EAGAIN: nothing to read yet.
    pub(crate) fn read(&self, table: &mut Table, out: &mut [u8]) -> Result<usize, Errno> {
        self.to_read()?;
        if out.is_empty() {
            return Ok(0);
        }
        let n = self.waiting()?.min(out.len());
        let taken = self.take(table, n);
        out.iter_mut()
            .zip(&taken)
            .for_each(|(out, byte)| *out = *byte);
        Ok(n)
    }

    /// write(2) without waiting: returns how many bytes it took, as many as there is room for; of [`PIPE_BUF`] bytes and
    /// fewer all or none.
    ///
    /// # Errors
    /// EBADF: this is the read end; EPIPE, without a signal: the read end is closed; EAGAIN: no room.
    pub(crate) fn write(&self, table: &mut Table, bytes: &[u8]) -> Result<usize, Errno> {
        self.to_write()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = self.room()?;
        if bytes.len() <= PIPE_BUF && bytes.len() > room {
            return Err(Errno::EAGAIN);
        }
        let n = bytes.len().min(room);
        self.put(table, bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    /// Records that this end was closed, and that no call waits for it any more.
    pub(super) fn closed(&self, table: &mut Table) {
        let mut pipe = self.lock();
        match self.side {
            Side::Read => pipe.reader = None,
            Side::Write => pipe.writer = None,
        }
        let other = pipe.reader.or(pipe.writer);
        drop(pipe);
        if let Some(other) = other {
            table.wake_pipe_end(other, ANYTHING);
        }
    }
}
