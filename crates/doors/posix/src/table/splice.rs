//! splice(2), one step at a time: bytes between a pipe and a socket, or between pipes. They are copied.

use devmem_uapi::{Errno, MsgFlags};

use super::{FileKind, RecvArgs, SendArgs, Table};
use crate::abi::splice;

/// Between what a splice moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    SocketToPipe,
    PipeToSocket,
    PipeToPipe,
}

impl Table {
    /// Returns which way a splice goes, having looked at what it is given in the kernel's order. `has_offset`: offsets
    /// were given for the source and for the target.
    ///
    /// # Errors
    /// EBADF (also an end of a pipe that is not for this); ESPIPE, EINVAL of offsets; EINVAL: unknown flags, no pipe,
    /// one pipe twice, an epoll.
    pub(crate) fn splice_way(
        &self,
        from: i32,
        to: i32,
        has_offset: (bool, bool),
        flags: u32,
    ) -> Result<Way, Errno> {
        if flags & !splice::ALL != 0 {
            return Err(Errno::EINVAL);
        }
        let (source, target) = (&self.file(from)?.kind, &self.file(to)?.kind);
        let way = match (source, target) {
            (FileKind::Pipe(a), FileKind::Pipe(b)) => {
                if has_offset != (false, false) {
                    return Err(Errno::ESPIPE);
                }
                let same = a.pipe() == b.pipe();
                self.pipe_to_read(from)?;
                self.pipe_to_write(to)?;
                match same {
                    true => return Err(Errno::EINVAL),
                    false => Way::PipeToPipe,
                }
            }
            (FileKind::Pipe(_), FileKind::Socket(_)) => {
                self.pipe_to_read(from)?;
                Way::PipeToSocket
            }
            (FileKind::Socket(_), FileKind::Pipe(_)) => {
                self.pipe_to_write(to)?;
                Way::SocketToPipe
            }
            _ => return Err(Errno::EINVAL),
        };
        match (way, has_offset) {
            (_, (false, false)) => Ok(way),
            // The pipe's own, then the socket's, which cannot be positioned either.
            (Way::PipeToSocket, (true, _)) | (Way::SocketToPipe, (_, true)) => Err(Errno::ESPIPE),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Moves what a socket has into a pipe that has room. `None`: it is full, or its reader is gone.
    ///
    /// # Errors
    /// As [`Table::recv`].
    pub(crate) fn splice_in(
        &mut self,
        from: i32,
        to: i32,
        len: usize,
    ) -> Result<Option<usize>, Errno> {
        let Ok(room) = self.pipe_room(to) else {
            return Ok(None);
        };
        let pipe = self.pipe_to_write(to)?;
        // No larger than a pipe, whatever `len` is.
        let mut bytes = vec![0; room.min(len)];
        let args = RecvArgs {
            len: bytes.len(),
            host: &mut bytes,
            control: &mut [],
        };
        let received = self.recv(from, args, MsgFlags::DONTWAIT.bits())?;
        self.pipe_put(pipe, bytes.get(..received.bytes).unwrap_or_default());
        Ok(Some(received.bytes))
    }

    /// Moves what a pipe has to a socket, as much as that has room for. `None`: the pipe is empty.
    ///
    /// # Errors
    /// As [`Table::send`].
    pub(crate) fn splice_out(
        &mut self,
        from: i32,
        to: i32,
        len: usize,
        more: bool,
    ) -> Result<Option<usize>, Errno> {
        let at = self.pipe_to_read(from)?;
        let waiting = match self.pipe_waiting(from) {
            Ok(waiting) if waiting > 0 => waiting,
            _ => return Ok(None),
        };
        let n = waiting.min(len);
        let bytes: Vec<u8> = self.pipe_at(at)?.bytes.iter().take(n).copied().collect();
        let flags = if more { MsgFlags::MORE.bits() } else { 0 };
        let sent = self.send(to, SendArgs::new(&bytes), flags)?;
        drop(self.pipe_take(at, sent));
        Ok(Some(sent))
    }

    /// Moves what one pipe has to another, as much as that has room for. `None`: one of them is not ready.
    ///
    /// # Errors
    /// EBADF, EPIPE.
    pub(crate) fn splice_across(
        &mut self,
        from: i32,
        to: i32,
        len: usize,
    ) -> Result<Option<usize>, Errno> {
        let ready = (self.pipe_waiting(from), self.pipe_room(to));
        let (waiting, room) = match ready {
            (Ok(waiting), Ok(room)) => (waiting, room),
            (Err(Errno::EAGAIN), _) | (_, Err(Errno::EAGAIN)) => return Ok(None),
            (Err(errno), _) | (_, Err(errno)) => return Err(errno),
        };
        let (source, target) = (self.pipe_to_read(from)?, self.pipe_to_write(to)?);
        let bytes = self.pipe_take(source, waiting.min(room).min(len));
        self.pipe_put(target, &bytes);
        Ok(Some(bytes.len()))
    }
}
