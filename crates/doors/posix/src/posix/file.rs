//! read and write of whatever a file is.

use devmem_uapi::Errno;
use stack::Stopped;

use super::{Limit, Posix};
use crate::table::{Received, RecvArgs, SendArgs};
use crate::waiter::Waiter;

/// Returns what read(2) and write(2) say where recv(2) and send(2) say that it is no socket: an epoll has neither
/// (linux `vfs_read`).
fn of_any_file(errno: Errno) -> Errno {
    match errno {
        Errno::ENOTSOCK => Errno::EINVAL,
        errno => errno,
    }
}

impl<W: Waiter> Posix<W> {
    /// read(2) and readv(2): of a socket as [`Posix::recv`], of another file what there is.
    ///
    /// # Errors
    /// As [`crate::Table::recv`] and [`crate::OtherFile::read`]; EINVAL of an epoll.
    pub fn read(&self, fd: i32, args: RecvArgs<'_>) -> Result<Received, Errno> {
        if self.lock().other(fd)?.is_none() {
            return self.recv(fd, args, 0).map_err(of_any_file);
        }
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, None, 0);
        let n = self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            table.read_other(fd, args.host)
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

    /// write(2) and writev(2): to a socket as [`Posix::send`]; to another file everything, or what fits without waiting.
    ///
    /// # Errors
    /// As [`crate::Table::send`] and [`crate::OtherFile::write`]; EINVAL of an epoll.
    pub fn write(&self, fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
        if self.lock().other(fd)?.is_none() {
            return self.send(fd, SendArgs::new(bytes), 0).map_err(of_any_file);
        }
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, None, 0);
        let mut written = 0;
        let outcome = self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            let rest = bytes.get(written..).unwrap_or_default();
            written += table.write_other(fd, rest)?;
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
