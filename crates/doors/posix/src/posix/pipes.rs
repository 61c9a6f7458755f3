//! read and write of whatever a file is, and splice.

use devmem_uapi::Errno;
use stack::Stopped;
use wire::Instant;

use super::{Limit, Posix};
use crate::abi::splice;
use crate::table::{Patience, Received, RecvArgs, SendArgs, Table, Way};
use crate::waiter::Waiter;

/// What a splice is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpliceArgs {
    /// The file that bytes are taken from.
    pub from: i32,
    /// The file that they go to.
    pub to: i32,
    /// Offsets were given for the source and the target: neither pipes nor sockets have any.
    pub has_offset: (bool, bool),
    /// Most bytes.
    pub len: usize,
    /// SPLICE_F_NONBLOCK (of the pipe) and SPLICE_F_MORE; SPLICE_F_MOVE and SPLICE_F_GIFT change nothing.
    pub flags: u32,
}

/// One of the two files of a splice, and how long it may be waited for.
#[derive(Debug, Clone, Copy)]
struct Side {
    fd: i32,
    serial: u64,
    limit: Limit,
}

impl Side {
    fn socket(fd: i32, patience: Patience, timeout: Option<std::time::Duration>) -> Self {
        Self {
            fd,
            serial: patience.serial,
            limit: Limit::new(patience, timeout, 0),
        }
    }

    fn pipe(fd: i32, patience: Patience, never: bool) -> Self {
        let limit = match never || patience.nonblocking {
            true => Limit::Never,
            false => Limit::Forever,
        };
        Self {
            fd,
            serial: patience.serial,
            limit,
        }
    }
}

/// Returns what read(2) and write(2) say where recv(2) and send(2) say that it is no socket: an epoll has neither
/// (linux `vfs_read`).
fn of_any_file(errno: Errno) -> Errno {
    match errno {
        Errno::ENOTSOCK => Errno::EINVAL,
        errno => errno,
    }
}

impl<W: Waiter> Posix<W> {
    /// read(2) and readv(2): of a socket as [`Posix::recv`], of a pipe what there is.
    ///
    /// # Errors
    /// As [`Table::recv`]; EBADF of the end that is written, EINVAL of an epoll.
    pub fn read(&self, fd: i32, args: RecvArgs<'_>) -> Result<Received, Errno> {
        if !self.lock().is_pipe(fd)? {
            return self.recv(fd, args, 0).map_err(of_any_file);
        }
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, None, 0);
        let n = self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            table.pipe_read(fd, args.host)
        })?;
        Ok(Received {
            bytes: n,
            host_bytes: n,
            control_bytes: 0,
            flags: 0,
            arrived: None,
            stopped: Stopped::Empty,
        })
    }

    /// write(2) and writev(2): to a socket as [`Posix::send`]; to a pipe everything, or what fits without waiting.
    ///
    /// # Errors
    /// As [`Table::send`]; EBADF of the end that is read, EINVAL of an epoll.
    pub fn write(&self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        if !self.lock().is_pipe(fd)? {
            return self.send(fd, SendArgs::new(bytes), 0).map_err(of_any_file);
        }
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, None, 0);
        let mut written = 0;
        let outcome = self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            let rest = bytes.get(written..).unwrap_or_default();
            written += table.pipe_write(fd, rest)?;
            match written < bytes.len() {
                true => Err(Errno::EAGAIN),
                false => Ok(()),
            }
        });
        match outcome {
            Err(errno) if written == 0 => Err(errno),
            _ => Ok(written),
        }
    }

    /// splice(2) from a socket to a pipe, from a pipe to a socket, or between pipes: returns how many bytes moved, 0
    /// at the end of the stream. They are copied on the way.
    ///
    /// # Errors
    /// EBADF, EINVAL, ESPIPE; EPIPE: nobody reads the pipe; EAGAIN; what a receive and a send return.
    pub fn splice(&self, args: SpliceArgs) -> Result<usize, Errno> {
        let SpliceArgs {
            from,
            to,
            has_offset,
            len,
            flags,
        } = args;
        // The length is looked at before anything else.
        if len == 0 {
            return Ok(0);
        }
        let (way, source, target) = {
            let table = self.lock();
            let way = table.splice_way(from, to, has_offset, flags)?;
            (way, table.patience(from)?, table.patience(to)?)
        };
        let never = flags & splice::NONBLOCK != 0;
        let more = flags & splice::MORE != 0;
        match way {
            Way::SocketToPipe => self.splice_in(
                Side::socket(from, source, source.receive),
                Side::pipe(to, target, never),
                len,
            ),
            Way::PipeToSocket => self.splice_out(
                Side::pipe(from, source, never),
                Side::socket(to, target, target.send),
                (len, more),
            ),
            Way::PipeToPipe => {
                let never = never || source.nonblocking || target.nonblocking;
                self.splice_across(
                    Side::pipe(from, source, never),
                    Side::pipe(to, target, never),
                    len,
                )
            }
        }
    }

    /// Waits for one side as long as that may be waited for; both stay.
    fn wait_side<T>(
        &self,
        (side, other): (Side, Side),
        attempt: impl FnMut(&mut Table, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.wait_for(
            side.limit,
            &[(side.fd, side.serial), (other.fd, other.serial)],
            attempt,
        )
    }

    /// First the pipe must have room, then the socket something: each is waited for as its own file says.
    fn splice_in(&self, from: Side, to: Side, len: usize) -> Result<usize, Errno> {
        loop {
            self.wait_side((to, from), |table, _| table.pipe_room(to.fd))?;
            let moved =
                self.wait_side((from, to), |table, _| table.splice_in(from.fd, to.fd, len))?;
            if let Some(moved) = moved {
                return Ok(moved);
            }
        }
    }

    /// Goes on until everything is sent, or the pipe is empty after some was.
    fn splice_out(&self, from: Side, to: Side, (len, more): (usize, bool)) -> Result<usize, Errno> {
        let mut moved = 0;
        while moved < len {
            let step = match moved {
                0 => self.wait_side((from, to), |table, _| table.pipe_waiting(from.fd)),
                _ => self.call(|table| table.pipe_waiting(from.fd)),
            };
            let step = match step {
                Ok(0) => break,
                Ok(_) => self.wait_side((to, from), |table, _| {
                    table.splice_out(from.fd, to.fd, len - moved, more)
                }),
                Err(errno) => Err(errno),
            };
            match step {
                Ok(Some(sent)) => moved += sent,
                // Another thread emptied it meanwhile.
                Ok(None) => {}
                Err(errno) if moved == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(moved)
    }

    fn splice_across(&self, from: Side, to: Side, len: usize) -> Result<usize, Errno> {
        loop {
            let waiting = self.wait_side((from, to), |table, _| table.pipe_waiting(from.fd))?;
            if waiting == 0 {
                return Ok(0);
            }
            self.wait_side((to, from), |table, _| table.pipe_room(to.fd))?;
            if let Some(moved) = self.call(|table| table.splice_across(from.fd, to.fd, len))? {
                return Ok(moved);
            }
        }
    }
}
