//! splice(2): bytes between a pipe and a socket, or between pipes. They are copied.

use devmem_uapi::{Errno, MsgFlags};
use runtime::WaitLimit;

use super::{Posix, limit_of};
use crate::abi::MAX_RW_COUNT;
use crate::table::receive::RecvArgs;
use crate::table::send::SendArgs;
use crate::table::{PipeEnd, Table, WaitSettings};
use crate::waiter::Waiter;

/// Flags of splice.
pub mod flag {
    #![allow(
        missing_docs,
        reason = "names and numbers of linux include/linux/splice.h, explained in splice(2)"
    )]
    pub const MOVE: u32 = 1;
    pub const NONBLOCK: u32 = 2;
    pub const MORE: u32 = 4;
    pub const GIFT: u32 = 8;
    pub const ALL: u32 = MOVE | NONBLOCK | MORE | GIFT;
}

/// Arguments of splice(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpliceArgs {
    /// Source descriptor.
    pub from: i32,
    /// Target descriptor.
    pub to: i32,
    /// Whether the caller passed offsets for the source and the target; neither pipes nor sockets have one.
    pub has_offset: (bool, bool),
    /// Maximum bytes to move.
    pub len: usize,
    /// SPLICE_F_NONBLOCK (for the pipe) and SPLICE_F_MORE; SPLICE_F_MOVE and SPLICE_F_GIFT have no effect.
    pub flags: u32,
}

/// Direction of a splice: pipes by their ends, sockets by their descriptors.
#[derive(Debug, Clone)]
enum Way {
    SocketToPipe(i32, PipeEnd),
    PipeToSocket(PipeEnd, i32),
    PipeToPipe(PipeEnd, PipeEnd),
}

impl Way {
    /// Checks the arguments in the kernel's order and returns the direction.
    ///
    /// # Errors
    /// EBADF (also for the wrong end of a pipe); ESPIPE and EINVAL for offsets; EINVAL: unknown flags, neither file is a
    /// pipe, both are the same pipe, one is an epoll.
    fn new(table: &Table, args: &SpliceArgs) -> Result<Self, Errno> {
        if args.flags & !flag::ALL != 0 {
            return Err(Errno::EINVAL);
        }
        let (source, target) = (table.pipe_end(args.from)?, table.pipe_end(args.to)?);
        let way = match (source, target) {
            (Some(source), Some(target)) => {
                if args.has_offset != (false, false) {
                    return Err(Errno::ESPIPE);
                }
                source.to_read()?;
                target.to_write()?;
                if source.is_of_same_pipe(&target) {
                    return Err(Errno::EINVAL);
                }
                Self::PipeToPipe(source, target)
            }
            (Some(source), None) if is_socket(table, args.to) => {
                source.to_read()?;
                Self::PipeToSocket(source, args.to)
            }
            (None, Some(target)) if is_socket(table, args.from) => {
                target.to_write()?;
                Self::SocketToPipe(args.from, target)
            }
            _ => return Err(Errno::EINVAL),
        };
        match (&way, args.has_offset) {
            (_, (false, false)) => Ok(way),
            // The kernel checks the pipe's offset first.
            (Self::PipeToSocket(..), (true, _)) | (Self::SocketToPipe(..), (_, true)) => {
                Err(Errno::ESPIPE)
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn is_socket(table: &Table, fd: i32) -> bool {
    !matches!(table.socket_id(fd), Err(Errno::EBADF | Errno::ENOTSOCK))
}

impl<W: Waiter> Posix<W> {
    /// splice(2) from a socket to a pipe, from a pipe to a socket, or between pipes: returns how many bytes moved, 0 at the
    /// end of the stream. They are copied on the way.
    ///
    /// # Errors
    /// EBADF, EINVAL, ESPIPE; EPIPE: the pipe's read end is closed; EAGAIN; the errors of a receive and of a send.
    pub fn splice(&self, args: SpliceArgs) -> Result<usize, Errno> {
        // Linux checks the length before anything else.
        if args.len == 0 {
            return Ok(0);
        }
        let (way, source, target) = {
            let table = self.lock();
            let way = Way::new(&table, &args)?;
            (
                way,
                table.wait_settings(args.from)?,
                table.wait_settings(args.to)?,
            )
        };
        let never = args.flags & flag::NONBLOCK != 0;
        let mut pair = Pair {
            posix: self,
            watched: [(args.from, source.serial), (args.to, target.serial)],
            source: pipe_limit(source, never),
            target: pipe_limit(target, never),
        };
        let len = args.len.min(MAX_RW_COUNT);
        match way {
            Way::SocketToPipe(socket, pipe) => {
                pair.source = limit_of(source, source.receive, 0);
                pair.splice_in(socket, &pipe, len)
            }
            Way::PipeToSocket(pipe, socket) => {
                pair.target = limit_of(target, target.send, 0);
                let more = args.flags & flag::MORE != 0;
                let flags = if more {
                    MsgFlags::MORE
                } else {
                    MsgFlags::empty()
                };
                pair.splice_out(&pipe, socket, len, flags)
            }
            Way::PipeToPipe(from, to) => {
                if source.nonblocking || target.nonblocking {
                    (pair.source, pair.target) = (WaitLimit::Never, WaitLimit::Never);
                }
                pair.splice_across(&from, &to, len)
            }
        }
    }
}

fn pipe_limit(wait_settings: WaitSettings, never: bool) -> WaitLimit {
    match never || wait_settings.nonblocking {
        true => WaitLimit::Never,
        false => WaitLimit::Forever,
    }
}

/// The two files of a splice, each with the limit on waiting for it. Both stay open while the call waits.
#[derive(Debug)]
struct Pair<'a, W> {
    posix: &'a Posix<W>,
    /// Descriptor and serial number of each.
    watched: [(i32, u64); 2],
    source: WaitLimit,
    target: WaitLimit,
}

impl<W: Waiter> Pair<'_, W> {
    fn wait<T>(
        &self,
        limit: WaitLimit,
        mut attempt: impl FnMut(&mut Table) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.posix
            .wait_for(limit, &self.watched, |table, _| attempt(table))
    }

    /// Waits until the pipe has room, then until the socket has data.
    fn splice_in(&self, from: i32, to: &PipeEnd, len: usize) -> Result<usize, Errno> {
        loop {
            self.wait(self.target, |_| to.room())?;
            let moved = self.wait(self.source, |table| into_pipe(table, from, to, len))?;
            if let Some(moved) = moved {
                return Ok(moved);
            }
        }
    }

    /// Sends until `len` bytes are sent, or some are and the pipe is empty.
    fn splice_out(
        &self,
        from: &PipeEnd,
        to: i32,
        len: usize,
        flags: MsgFlags,
    ) -> Result<usize, Errno> {
        let mut moved = 0;
        while moved < len {
            let waiting = match moved {
                0 => self.wait(self.source, |_| from.waiting()),
                _ => self.posix.call(|_| from.waiting()),
            };
            let step = match waiting {
                Ok(0) => break,
                Ok(_) => self.wait(self.target, |table| {
                    out_of_pipe(table, from, to, len - moved, flags)
                }),
                Err(errno) => Err(errno),
            };
            match step {
                Ok(Some(sent)) => moved += sent,
                // Another thread emptied the pipe in the meantime.
                Ok(None) => {}
                Err(errno) if moved == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    fn splice_across(&self, from: &PipeEnd, to: &PipeEnd, len: usize) -> Result<usize, Errno> {
        loop {
            if self.wait(self.source, |_| from.waiting())? == 0 {
                return Ok(0);
            }
            self.wait(self.target, |_| to.room())?;
            if let Some(moved) = self.posix.call(|table| across(table, from, to, len))? {
                return Ok(moved);
            }
        }
    }
}

/// Moves received bytes into a pipe with room. `None`: the pipe is full, or its read end is closed.
///
/// # Errors
/// As [`Table::recv`].
fn into_pipe(
    table: &mut Table,
    from: i32,
    to: &PipeEnd,
    len: usize,
) -> Result<Option<usize>, Errno> {
    let Ok(room) = to.room() else {
        return Ok(None);
    };
    let len = match table.until_urgent(from) {
        // A program reads it by other calls (linux `tcp_read_sock`).
        Some(0) => return Ok(Some(0)),
        Some(before) => len.min(before),
        None => len,
    };
    // `room` bounds the allocation, whatever `len` is.
    let mut bytes = vec![0; room.min(len)];
    let args = RecvArgs {
        len: bytes.len(),
        host: &mut bytes,
        control: &mut [],
    };
    let received = table.recv(from, args, MsgFlags::DONTWAIT.bits())?;
    to.put(table, bytes.get(..received.bytes).unwrap_or_default());
    Ok(Some(received.bytes))
}

/// Sends the pipe's bytes on a socket, as many as its send buffer has room for. `None`: the pipe is empty.
///
/// # Errors
/// As [`Table::send`].
fn out_of_pipe(
    table: &mut Table,
    from: &PipeEnd,
    to: i32,
    len: usize,
    flags: MsgFlags,
) -> Result<Option<usize>, Errno> {
    let waiting = match from.waiting() {
        Ok(waiting) if waiting > 0 => waiting,
        _ => return Ok(None),
    };
    let bytes = from.peek(waiting.min(len));
    let sent = table.send(to, SendArgs::new(&bytes), flags.bits())?;
    drop(from.take(table, sent));
    Ok(Some(sent))
}

/// Moves bytes from one pipe to another, as many as that has room for. `None`: the source is empty or the target full.
///
/// # Errors
/// EPIPE.
fn across(
    table: &mut Table,
    from: &PipeEnd,
    to: &PipeEnd,
    len: usize,
) -> Result<Option<usize>, Errno> {
    let (waiting, room) = match (from.waiting(), to.room()) {
        (Ok(waiting), Ok(room)) => (waiting, room),
        (Err(Errno::EAGAIN), _) | (_, Err(Errno::EAGAIN)) => return Ok(None),
        (Err(errno), _) | (_, Err(errno)) => return Err(errno),
    };
    let bytes = from.take(table, waiting.min(room).min(len));
    to.put(table, &bytes);
    Ok(Some(bytes.len()))
}
