//! Pipes: bounded bytes between two files (pipe(7)).

use std::collections::VecDeque;

use devmem_uapi::Errno;

use super::ready::{ANYTHING, READABLE, WRITABLE};
use super::{FileKind, Table};
use crate::abi::{SOCK_CLOEXEC, SOCK_NONBLOCK, ev, fcntl};

/// Bytes that a pipe holds (linux `PIPE_DEF_BUFFERS` pages of 4 KiB).
pub(crate) const PIPE_SIZE: usize = 65_536;

/// A write of no more goes in whole or not at all (linux `PIPE_BUF`).
pub(crate) const PIPE_BUF: usize = 4096;

/// A pipe, as long as one of its ends is open.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    /// The end that is read, by its file's index.
    reader: Option<usize>,
    /// The end that is written.
    writer: Option<usize>,
}

impl Pipe {
    pub(super) fn room(&self) -> usize {
        PIPE_SIZE.saturating_sub(self.bytes.len())
    }
}

/// Which end of which pipe a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Read(usize),
    Write(usize),
}

impl End {
    /// Returns what fcntl says of how it was opened.
    pub(super) fn access_mode(self) -> i32 {
        match self {
            Self::Read(_) => fcntl::O_RDONLY,
            Self::Write(_) => fcntl::O_WRONLY,
        }
    }

    pub(super) fn pipe(self) -> usize {
        match self {
            Self::Read(pipe) | Self::Write(pipe) => pipe,
        }
    }
}

impl Table {
    /// pipe2(2): returns the end that is read and the end that is written. A pipe holds 64 KiB.
    ///
    /// # Errors
    /// EINVAL (flags beside O_NONBLOCK and O_CLOEXEC), EMFILE.
    pub fn pipe(&mut self, flags: i32) -> Result<(i32, i32), Errno> {
        // O_NONBLOCK and O_CLOEXEC are the numbers that socket(2) has for them.
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let pipe = self.pipes.insert(Pipe {
            bytes: VecDeque::new(),
            reader: None,
            writer: None,
        });
        let ends = self.add_pipe_files(pipe, flags);
        if ends.is_err() {
            self.pipes.remove(pipe);
        }
        ends
    }

    fn add_pipe_files(&mut self, pipe: usize, flags: i32) -> Result<(i32, i32), Errno> {
        let reader = self.add_file(FileKind::Pipe(End::Read(pipe)), flags)?;
        let reader_index = self.index_of(reader)?;
        let writer = match self.add_file(FileKind::Pipe(End::Write(pipe)), flags) {
            Ok(writer) => writer,
            Err(errno) => {
                self.files.remove(reader_index);
                return Err(errno);
            }
        };
        let writer_index = self.index_of(writer)?;
        if let Some(pipe) = self.pipes.get_mut(pipe) {
            (pipe.reader, pipe.writer) = (Some(reader_index), Some(writer_index));
        }
        Ok((reader, writer))
    }

    /// Returns whether `fd` is an end of a pipe.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn is_pipe(&self, fd: i32) -> Result<bool, Errno> {
        Ok(matches!(self.file(fd)?.kind, FileKind::Pipe(_)))
    }

    /// Returns the pipe that `fd` is the reading end of.
    ///
    /// # Errors
    /// EBADF, also of the other end; EINVAL of what is no pipe.
    pub(super) fn pipe_to_read(&self, fd: i32) -> Result<usize, Errno> {
        match self.file(fd)?.kind {
            FileKind::Pipe(End::Read(pipe)) => Ok(pipe),
            FileKind::Pipe(End::Write(_)) => Err(Errno::EBADF),
            FileKind::Socket(_) | FileKind::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    /// Returns the pipe that `fd` is the writing end of.
    ///
    /// # Errors
    /// EBADF, also of the other end; EINVAL of what is no pipe.
    pub(super) fn pipe_to_write(&self, fd: i32) -> Result<usize, Errno> {
        match self.file(fd)?.kind {
            FileKind::Pipe(End::Write(pipe)) => Ok(pipe),
            FileKind::Pipe(End::Read(_)) => Err(Errno::EBADF),
            FileKind::Socket(_) | FileKind::Epoll(_) => Err(Errno::EINVAL),
        }
    }

    pub(super) fn pipe_at(&self, pipe: usize) -> Result<&Pipe, Errno> {
        self.pipes.get(pipe).ok_or(Errno::EBADF)
    }

    /// Returns how many bytes a pipe holds.
    pub(super) fn pipe_len(&self, end: End) -> usize {
        let pipe = self.pipes.get(end.pipe());
        pipe.map_or(0, |pipe| pipe.bytes.len())
    }

    /// Returns how many bytes wait in the pipe; 0 at its end, when nobody writes any more.
    ///
    /// # Errors
    /// As [`Table::pipe_to_read`]; EAGAIN: none yet.
    pub(crate) fn pipe_waiting(&self, fd: i32) -> Result<usize, Errno> {
        let pipe = self.pipe_at(self.pipe_to_read(fd)?)?;
        match pipe.bytes.len() {
            0 if pipe.writer.is_some() => Err(Errno::EAGAIN),
            waiting => Ok(waiting),
        }
    }

    /// Returns for how many bytes the pipe has room, at least one.
    ///
    /// # Errors
    /// As [`Table::pipe_to_write`]; EPIPE: nobody reads any more; EAGAIN: it is full.
    pub(crate) fn pipe_room(&self, fd: i32) -> Result<usize, Errno> {
        let pipe = self.pipe_at(self.pipe_to_write(fd)?)?;
        match pipe.room() {
            _ if pipe.reader.is_none() => Err(Errno::EPIPE),
            0 => Err(Errno::EAGAIN),
            room => Ok(room),
        }
    }

    /// read(2) of a pipe: what there is; 0 bytes at its end.
    ///
    /// # Errors
    /// EBADF, EAGAIN.
    pub(crate) fn pipe_read(&mut self, fd: i32, out: &mut [u8]) -> Result<usize, Errno> {
        if out.is_empty() {
            return self.pipe_to_read(fd).map(|_| 0);
        }
        let n = self.pipe_waiting(fd)?.min(out.len());
        let pipe = self.pipe_to_read(fd)?;
        let taken = self.pipe_take(pipe, n);
        out.iter_mut()
            .zip(&taken)
            .for_each(|(out, byte)| *out = *byte);
        Ok(n)
    }

    /// write(2) to a pipe: as much as there is room for, but all or nothing of [`PIPE_BUF`] bytes and less.
    ///
    /// # Errors
    /// EBADF, EAGAIN, EPIPE (which comes without a signal).
    pub(crate) fn pipe_write(&mut self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let pipe = self.pipe_to_write(fd)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = self.pipe_room(fd)?;
        if bytes.len() <= PIPE_BUF && bytes.len() > room {
            return Err(Errno::EAGAIN);
        }
        let n = bytes.len().min(room);
        self.pipe_put(pipe, bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    /// Takes the first `n` bytes out, no more than there are.
    pub(super) fn pipe_take(&mut self, pipe: usize, n: usize) -> Vec<u8> {
        let Some(it) = self.pipes.get_mut(pipe) else {
            return Vec::new();
        };
        let could_write = it.room() >= PIPE_BUF;
        let taken = it.bytes.drain(..n.min(it.bytes.len())).collect();
        let writer = it.writer;
        let can_write = it.room() >= PIPE_BUF;
        self.touch();
        if let Some(writer) = writer
            && can_write
            && !could_write
        {
            self.wake_watchers(writer, WRITABLE);
        }
        taken
    }

    /// Puts bytes in; the caller has looked whether there is room.
    pub(super) fn pipe_put(&mut self, pipe: usize, bytes: &[u8]) {
        let Some(it) = self.pipes.get_mut(pipe) else {
            return;
        };
        debug_assert!(bytes.len() <= it.room(), "there is room");
        it.bytes.extend(bytes);
        let reader = it.reader;
        self.touch();
        if let Some(reader) = reader {
            self.wake_watchers(reader, READABLE);
        }
    }

    /// Returns the bits of poll(2) (linux fs/pipe.c `pipe_poll`).
    pub(super) fn pipe_events(&self, end: End) -> u32 {
        let Some(pipe) = self.pipes.get(end.pipe()) else {
            return 0;
        };
        match end {
            End::Read(_) if !pipe.bytes.is_empty() && pipe.writer.is_none() => {
                ev::IN | ev::RDNORM | ev::HUP
            }
            End::Read(_) if !pipe.bytes.is_empty() => ev::IN | ev::RDNORM,
            End::Read(_) if pipe.writer.is_none() => ev::HUP,
            End::Read(_) => 0,
            End::Write(_) => {
                let out = if pipe.room() >= PIPE_BUF {
                    ev::OUT | ev::WRNORM
                } else {
                    0
                };
                out | if pipe.reader.is_none() { ev::ERR } else { 0 }
            }
        }
    }

    /// An end is closed: the other one is told, and the pipe goes with the last.
    pub(super) fn close_pipe_end(&mut self, end: End) {
        let at = end.pipe();
        let Some(pipe) = self.pipes.get_mut(at) else {
            return;
        };
        match end {
            End::Read(_) => pipe.reader = None,
            End::Write(_) => pipe.writer = None,
        }
        match pipe.reader.or(pipe.writer) {
            Some(other) => self.wake_watchers(other, ANYTHING),
            None => drop(self.pipes.remove(at)),
        }
    }
}
