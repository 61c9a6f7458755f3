//! Pipes: bounded bytes between two files of a socket table (pipe(7)).

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_posix::abi::{SOCK_CLOEXEC, SOCK_NONBLOCK, ev, fcntl};
use devmem_posix::{FileId, OtherFile, Table, news};
use devmem_uapi::Errno;

/// Bytes that a pipe holds (linux `PIPE_DEF_BUFFERS` pages of 4 KiB).
const PIPE_SIZE: usize = 65_536;

/// A write of no more goes in whole or not at all (linux `PIPE_BUF`).
const PIPE_BUF: usize = 4096;

/// A pipe.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// The end that is read, while it is open.
    reader: Option<FileId>,
    /// The end that is written, while it is open.
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
pub(crate) struct End {
    side: Side,
    pipe: Arc<Mutex<Pipe>>,
}

/// pipe2(2): returns the end that is read and the end that is written. A pipe holds 64 KiB.
///
/// # Errors
/// EINVAL (flags beside O_NONBLOCK and O_CLOEXEC), EMFILE.
pub fn pipe(table: &mut Table, flags: i32) -> Result<(i32, i32), Errno> {
    // O_NONBLOCK and O_CLOEXEC are the numbers that socket(2) has for them.
    if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let read = End {
        side: Side::Read,
        pipe: Arc::default(),
    };
    let write = End {
        side: Side::Write,
        pipe: Arc::clone(&read.pipe),
    };
    let (reader, reader_id) = table.add_other(Arc::new(read.clone()), flags)?;
    let (writer, writer_id) = match table.add_other(Arc::new(write), flags) {
        Ok(added) => added,
        Err(errno) => {
            table.close(reader)?;
            return Err(errno);
        }
    };
    let mut pipe = read.lock();
    (pipe.reader, pipe.writer) = (Some(reader_id), Some(writer_id));
    drop(pipe);
    Ok((reader, writer))
}

impl End {
    /// Returns the end of a pipe that a number stands for, if it is one.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn of(table: &Table, fd: i32) -> Result<Option<Self>, Errno> {
        let file = table.other(fd)?;
        let end = file.as_deref().map(|file| file as &dyn Any);
        Ok(end.and_then(|file| file.downcast_ref::<Self>()).cloned())
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        // Between any two statements the pipe is whole.
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_of_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Checks that this is the end that is read.
    ///
    /// # Errors
    /// EBADF: it is the other one.
    pub(crate) fn to_read(&self) -> Result<&Self, Errno> {
        match self.side {
            Side::Read => Ok(self),
            Side::Write => Err(Errno::EBADF),
        }
    }

    /// Checks that this is the end that is written.
    ///
    /// # Errors
    /// EBADF: it is the other one.
    pub(crate) fn to_write(&self) -> Result<&Self, Errno> {
        match self.side {
            Side::Write => Ok(self),
            Side::Read => Err(Errno::EBADF),
        }
    }

    /// Returns how many bytes wait in the pipe; 0 at its end, when no writer is left.
    ///
    /// # Errors
    /// EAGAIN: none yet.
    pub(crate) fn waiting(&self) -> Result<usize, Errno> {
        let pipe = self.lock();
        match pipe.bytes.len() {
            0 if pipe.writer.is_some() => Err(Errno::EAGAIN),
            waiting => Ok(waiting),
        }
    }

    /// Returns for how many bytes the pipe has room, at least one.
    ///
    /// # Errors
    /// EPIPE: no reader is left; EAGAIN: it is full.
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

    /// Takes the first `n` bytes out, no more than there are.
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
            table.wake(writer, news::WRITABLE);
        }
        taken
    }

    /// Puts bytes in; the caller has looked whether there is room.
    pub(crate) fn put(&self, table: &mut Table, bytes: &[u8]) {
        let mut pipe = self.lock();
        debug_assert!(bytes.len() <= pipe.room(), "there is room");
        pipe.bytes.extend(bytes);
        let reader = pipe.reader;
        drop(pipe);
        table.touch();
        if let Some(reader) = reader {
            table.wake(reader, news::READABLE);
        }
    }
}

impl OtherFile for End {
    /// As linux fs/pipe.c `pipe_poll`.
    fn events(&self) -> u32 {
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

    fn access_mode(&self) -> i32 {
        match self.side {
            Side::Read => fcntl::O_RDONLY,
            Side::Write => fcntl::O_WRONLY,
        }
    }

    fn readable(&self) -> usize {
        self.lock().bytes.len()
    }

    /// What there is; 0 bytes at the pipe's end. EBADF of the end that is written.
    fn read(&self, table: &mut Table, out: &mut [u8]) -> Result<usize, Errno> {
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

    /// As much as there is room for, but all or nothing of [`PIPE_BUF`] bytes and less. EBADF of the end that is read;
    /// EPIPE comes without a signal.
    fn write(&self, table: &mut Table, bytes: &[u8]) -> Result<usize, Errno> {
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

    fn closed(&self, table: &mut Table) {
        let mut pipe = self.lock();
        match self.side {
            Side::Read => pipe.reader = None,
            Side::Write => pipe.writer = None,
        }
        let other = pipe.reader.or(pipe.writer);
        drop(pipe);
        if let Some(other) = other {
            table.wake(other, news::ANYTHING);
        }
    }
}
