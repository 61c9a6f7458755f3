//! The socket calls with blocking.

mod file;
mod splice;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_uapi::{Errno, MsgFlags};
use stack::Stopped;
use wire::Instant;

use crate::abi::{MSG_FASTOPEN, ev};
use crate::table::{
    Begun, EpollEvent, Hold, Patience, Received, RecvArgs, SendArgs, Settings, Table, UnderWay,
};
use crate::waiter::Waiter;

pub use splice::{SpliceArgs, flag as splice_flag};

/// One entry of poll(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollFd {
    /// The descriptor; negative: the entry is ignored.
    pub fd: i32,
    /// Requested events.
    pub events: u16,
    /// Returned events.
    pub revents: u16,
}

/// A socket table shared by threads, with the [`Waiter`] by which they wait.
#[derive(Debug)]
pub struct Posix<W> {
    table: Mutex<Table>,
    waiter: W,
}

/// How long a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Does not wait.
    Never,
    /// Waits without a limit.
    Forever,
    /// Waits at most this long.
    For(Duration),
}

impl Limit {
    /// Returns the limit of a call on a file: `timeout`, or [`Limit::Never`] with O_NONBLOCK or MSG_DONTWAIT.
    pub fn new(patience: Patience, timeout: Option<Duration>, flags: u32) -> Self {
        let never = patience.nonblocking || flags & MsgFlags::DONTWAIT.bits() != 0;
        match timeout {
            _ if never => Self::Never,
            None => Self::Forever,
            Some(time) => Self::For(time),
        }
    }

    /// Returns the limit for a timeout in milliseconds; a negative one means [`Limit::Forever`].
    fn from_millis(ms: i32) -> Self {
        match u64::try_from(ms) {
            Ok(0) => Self::Never,
            Ok(ms) => Self::For(Duration::from_millis(ms)),
            Err(_) => Self::Forever,
        }
    }

    fn end(self, started: Instant) -> Option<Instant> {
        match self {
            Self::Never => Some(started),
            Self::Forever => None,
            Self::For(time) => Some(started + time),
        }
    }
}

/// Whether a call of several parts has waited in one of them. The waiter is told after each later part, under the lock of the
/// table, that the call returns after a wait.
#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    any: bool,
}

impl<W: Waiter> Posix<W> {
    /// Returns a table over `stack`, for threads that wait by `waiter`.
    pub fn new(stack: stack::Stack, settings: Settings, waiter: W) -> Self {
        Self {
            table: Mutex::new(Table::new(stack, settings)),
            waiter,
        }
    }

    /// Returns the waiter.
    pub fn waiter(&self) -> &W {
        &self.waiter
    }

    /// Locks the table. A panic of another thread leaves the stack consistent between its calls, so poisoning
    /// is ignored.
    pub fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table without locking it.
    pub fn table_mut(&mut self) -> &mut Table {
        self.table.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call that does not wait.
    pub fn call<T>(&self, call: impl FnOnce(&mut Table) -> T) -> T {
        self.end_call(Waits::default(), call)
    }

    /// Runs the last part of a call.
    fn end_call<T>(&self, waits: Waits, call: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        table.set_clock(self.waiter.now());
        let result = call(&mut table);
        self.finish(&mut table);
        if waits.any {
            self.waiter.returning();
        }
        result
    }

    fn finish(&self, table: &mut Table) {
        table.after_call(self.waiter.now());
        self.waiter.changed(table);
    }

    /// Repeats `attempt` until it returns anything but EAGAIN, within the limit. The call holds the files that it waits for,
    /// so it continues if another thread closes one. `watched` has the descriptor and serial number of each; EBADF if a
    /// descriptor was reused before the call held it.
    ///
    /// # Errors
    /// As `attempt`; EAGAIN at the limit; EBADF.
    pub fn wait_for<T>(
        &self,
        limit: Limit,
        watched: &[(i32, u64)],
        attempt: impl FnMut(&mut Table, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.wait_in_part(limit, watched, &mut Waits::default(), attempt)
    }

    /// Does so for one part of a call.
    fn wait_in_part<T>(
        &self,
        limit: Limit,
        watched: &[(i32, u64)],
        waits: &mut Waits,
        mut attempt: impl FnMut(&mut Table, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut table = self.lock();
        let end = limit.end(self.waiter.now());
        let mut hold: Option<Hold> = None;
        loop {
            let now = self.waiter.now();
            let result = match &hold {
                Some(hold) => table.holding(hold, |table| attempt(table, now)),
                None if table.are(watched) => attempt(&mut table, now),
                None => Err(Errno::EBADF),
            };
            let is_over =
                result.as_ref().err() != Some(&Errno::EAGAIN) || end.is_some_and(|end| end <= now);
            if is_over {
                waits.any |= hold.is_some();
                hold.into_iter().for_each(|hold| table.release(hold));
                self.finish(&mut table);
                if waits.any {
                    self.waiter.returning();
                }
                return result;
            }
            self.finish(&mut table);
            if hold.is_none() {
                let fds: Vec<i32> = watched.iter().map(|(fd, _)| *fd).collect();
                hold = Some(table.hold(&fds));
            }
            table = self.waiter.wait(table, end);
        }
    }

    /// accept4(2).
    ///
    /// # Errors
    /// As [`Table::accept`].
    pub fn accept(&self, fd: i32, flags: i32) -> Result<(i32, Vec<u8>), Errno> {
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, patience.receive, 0);
        self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            table.accept(fd, flags)
        })
    }

    /// connect(2).
    ///
    /// # Errors
    /// As [`Table::connect`]; after the time of SO_SNDTIMEO, EINPROGRESS.
    pub fn connect(&self, fd: i32, address: &[u8]) -> Result<(), Errno> {
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, patience.send, 0);
        let begun = self.call(|table| table.connect(fd, address, self.waiter.now()));
        match begun {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if limit != Limit::Never => {}
            outcome => return outcome,
        }
        self.await_connected(fd, patience.serial, limit, &mut Waits::default())
    }

    /// Waits until a connection is open, or has failed.
    fn await_connected(
        &self,
        fd: i32,
        serial: u64,
        limit: Limit,
        waits: &mut Waits,
    ) -> Result<(), Errno> {
        let waited = self.wait_in_part(limit, &[(fd, serial)], waits, |table, _| {
            table.connect_continue(fd).map_err(|errno| match errno {
                Errno::EALREADY => Errno::EAGAIN,
                errno => errno,
            })
        });
        waited.map_err(|errno| match errno {
            Errno::EAGAIN => Errno::EINPROGRESS,
            errno => errno,
        })
    }

    /// recv(2), recvfrom(2) and recvmsg(2).
    ///
    /// # Errors
    /// As [`Table::recv`].
    pub fn recv(&self, fd: i32, args: RecvArgs<'_>, flags: u32) -> Result<Received, Errno> {
        let (patience, low_water) = {
            let table = self.lock();
            (table.patience(fd)?, table.low_water(fd)?)
        };
        let flag = |flag: MsgFlags| flags & flag.bits() != 0;
        let limit = match flag(MsgFlags::ERRQUEUE) {
            true => Limit::Never,
            false => Limit::new(patience, patience.receive, flags),
        };
        let RecvArgs { host, len, control } = args;
        let enough = match flag(MsgFlags::WAITALL) {
            true => len,
            false => low_water.min(len).max(1),
        };
        let once = flag(MsgFlags::PEEK) || flag(MsgFlags::ERRQUEUE);
        let mut sum: Option<Received> = None;
        let outcome = self.wait_for(limit, &[(fd, patience.serial)], |table, _| {
            loop {
                let so_far = sum.unwrap_or(Received::NOTHING);
                let rest = RecvArgs {
                    host: host.get_mut(so_far.host_bytes..).unwrap_or_default(),
                    len: len.saturating_sub(so_far.bytes),
                    control: control.get_mut(so_far.control_bytes..).unwrap_or_default(),
                };
                let more = match table.recv_part(fd, rest, flags) {
                    // EAGAIN: the kind of memory changes here, and no bytes of the next kind have arrived yet.
                    Err(Errno::EAGAIN) if so_far.bytes >= enough => return Ok(()),
                    other => other?,
                };
                let total = so_far.and(more);
                sum = Some(total);
                match more.stopped {
                    Stopped::Border if !once && table.crosses_borders(flags) => {}
                    Stopped::Empty if !once && total.bytes < enough => return Err(Errno::EAGAIN),
                    _ => return Ok(()),
                }
            }
        });
        let received = match (sum, outcome) {
            // Received bytes are returned even if an error follows.
            (Some(received), _) => received,
            (None, Err(errno)) => return Err(errno),
            (None, Ok(())) => Received::NOTHING,
        };
        // If the file was destroyed meanwhile, there are no control messages.
        let told = self.lock().tell_with(fd, received, control, flags);
        Ok(told.unwrap_or(received))
    }

    /// send(2), sendto(2) and sendmsg(2): waits until everything is queued.
    ///
    /// # Errors
    /// As [`Table::send`].
    pub fn send(&self, fd: i32, args: SendArgs<'_>, flags: u32) -> Result<usize, Errno> {
        let patience = self.lock().patience(fd)?;
        let limit = Limit::new(patience, patience.send, flags);
        let (mut under_way, mut waits) = (UnderWay::default(), Waits::default());
        let now = self.waiter.now();
        let begun = self.call(|table| table.send_early(fd, args, flags, &mut under_way, now));
        let flags = flags & !MSG_FASTOPEN;
        let mut sent = under_way.sent;
        if begun? == Begun::Connecting {
            let opened = match limit {
                Limit::Never => Err(Errno::EINPROGRESS),
                _ => {
                    if sent < args.len() {
                        self.call(|table| table.announce_write(fd));
                    }
                    self.await_connected(fd, patience.serial, limit, &mut waits)
                }
            };
            if let Err(errno) = opened {
                self.end_call(waits, |table| table.finish_send(under_way));
                let goes_on = errno == Errno::EINPROGRESS && sent > 0;
                return if goes_on { Ok(sent) } else { Err(errno) };
            }
        }
        let watched = [(fd, patience.serial)];
        let outcome = self.wait_in_part(limit, &watched, &mut waits, |table, _| {
            let outcome = table.send_on(fd, args, flags, &mut under_way);
            sent = under_way.sent;
            if outcome != Err(Errno::EAGAIN) || limit == Limit::Never {
                // Before the last bytes are sent: this requests their timestamps.
                table.finish_send(std::mem::take(&mut under_way));
            } else {
                // It counts only if the send waits for the connection, and not for room.
                table.announce_write(fd);
            }
            outcome
        });
        self.end_call(waits, |table| table.finish_send(under_way));
        match outcome {
            Err(errno) if sent == 0 => Err(errno),
            _ => Ok(sent),
        }
    }

    /// close(2), with SO_LINGER.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> Result<(), Errno> {
        let serial = self.lock().patience(fd)?.serial;
        let mut waits = Waits::default();
        if let Some(time) = self.call(|table| table.linger(fd))? {
            // The file is closed even if the wait failed.
            let _ = self.wait_in_part(Limit::For(time), &[(fd, serial)], &mut waits, |table, _| {
                table.lingered(fd)
            });
        }
        self.end_call(waits, |table| table.close(fd))
    }

    /// poll(2): fills in `revents`, returns how many entries have any.
    ///
    /// # Errors
    /// None; a file that is not open is POLLNVAL.
    pub fn poll(&self, fds: &mut [PollFd], timeout_ms: i32) -> Result<usize, Errno> {
        let watched: Vec<(i32, u64)> = {
            let table = self.lock();
            let serial = |fd: i32| Some((fd, table.patience(fd).ok()?.serial));
            fds.iter().filter_map(|entry| serial(entry.fd)).collect()
        };
        let limit = Limit::from_millis(timeout_ms);
        let polled = self.wait_for(limit, &watched, |table, _| {
            let ready = fds.iter_mut().map(|entry| poll_one(table, entry));
            match ready.filter(|ready| *ready).count() {
                0 => Err(Errno::EAGAIN),
                ready => Ok(ready),
            }
        });
        match polled {
            Err(Errno::EAGAIN) => Ok(0),
            Err(Errno::EBADF) => Ok(invalid(fds)),
            other => other,
        }
    }

    /// epoll_wait(2): at most `most` events.
    ///
    /// # Errors
    /// EBADF, EINVAL.
    pub fn epoll_wait(
        &self,
        epfd: i32,
        most: i32,
        timeout_ms: i32,
    ) -> Result<Vec<EpollEvent>, Errno> {
        let serial = self.lock().patience(epfd)?.serial;
        let limit = Limit::from_millis(timeout_ms);
        let events = self.wait_for(limit, &[(epfd, serial)], |table, _| {
            table.epoll_take(epfd, most)
        });
        match events {
            Err(Errno::EAGAIN) => Ok(Vec::new()),
            other => other,
        }
    }
}

/// Reports POLLNVAL for entries of a poll whose files were closed in the meantime.
fn invalid(fds: &mut [PollFd]) -> usize {
    for entry in fds.iter_mut() {
        entry.revents = if entry.fd < 0 { 0 } else { ev::NVAL as u16 };
    }
    fds.iter().filter(|entry| entry.revents != 0).count()
}

fn poll_one(table: &Table, entry: &mut PollFd) -> bool {
    let PollFd {
        fd,
        events,
        revents,
    } = entry;
    // The bits of poll(2) fit 16.
    let bits = |events: u32| u16::try_from(events & 0xffff).unwrap_or(0);
    *revents = match *fd {
        ..0 => 0,
        fd => match table.poll_events(fd) {
            Ok(ready) => bits(ready & (u32::from(*events) | ev::ERR | ev::HUP)),
            Err(_) => bits(ev::NVAL),
        },
    };
    *revents != 0
}
