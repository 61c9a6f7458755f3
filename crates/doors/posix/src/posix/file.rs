//! read and write of sockets and pipes.

use devmem_uapi::Errno;
use stack::Stopped;

use super::{Posix, limit_of};
use crate::table::receive::{Received, RecvArgs};
use crate::table::send::SendArgs;
use crate::waiter::Waiter;

/// Replaces ENOTSOCK of recv(2) and send(2) by the EINVAL of read(2) and write(2): an epoll can be neither read nor written
/// (linux `vfs_read`).
fn of_any_file(errno: Errno) -> Errno {
    match errno {
        Errno::ENOTSOCK => Errno::EINVAL,
        errno => errno,
    }
}

impl<W: Waiter> Posix<W> {
    /// read(2) and readv(2): a socket as in [`Posix::recv`]; of a pipe, the bytes it holds.
    ///
    /// # Errors
    /// As [`crate::Table::recv`]; EBADF: the write end of a pipe; EINVAL: an epoll.
    pub fn read(&self, fd: i32, args: RecvArgs<'_>) -> Result<Received, Errno> {
        let Some(end) = self.lock().pipe_end(fd)? else {
            // Linux `sock_read_iter`: a read of nothing asks the socket nothing.
            return match args.len {
                0 => self.lock().low_water(fd).map(|_| Received::NOTHING),
                _ => self.recv(fd, args, 0),
            }
            .map_err(of_any_file);
        };
        let wait_settings = self.lock().wait_settings(fd)?;
        let limit = limit_of(wait_settings, None, 0);
        let n = self.wait_for(limit, &[(fd, wait_settings.serial)], |table, _| {
            end.read(table, args.host)
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

    /// write(2) and writev(2): a socket as in [`Posix::send`]; to a pipe everything, or with O_NONBLOCK what fits.
    ///
    /// # Errors
    /// As [`crate::Table::send`]; EBADF: the read end of a pipe; EPIPE: its read end is closed; EINVAL: an epoll.
    pub fn write(&self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let Some(end) = self.lock().pipe_end(fd)? else {
            return self.send(fd, SendArgs::new(bytes), 0).map_err(of_any_file);
        };
        let wait_settings = self.lock().wait_settings(fd)?;
        let limit = limit_of(wait_settings, None, 0);
        let mut written = 0;
        let outcome = self.wait_for(limit, &[(fd, wait_settings.serial)], |table, _| {
            let rest = bytes.get(written..).unwrap_or_default();
            written += end.write(table, rest)?;
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
}
