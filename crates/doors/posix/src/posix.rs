//! The socket calls with blocking.

mod file;
pub(crate) mod splice;

use std::cell::Cell;
use std::time::Duration;

use devmem_uapi::{Errno, MsgFlags};
use runtime::WaitLimit;
use stack::Stopped;
use wire::Instant;

use crate::abi::{MSG_FASTOPEN, ev};
use crate::table::early::Begun;
use crate::table::epoll::EpollEvent;
use crate::table::hold::Hold;
use crate::table::receive::{Received, RecvArgs};
use crate::table::send::{SendArgs, UnderWay};
use crate::table::{Table, WaitSettings};
use crate::waiter::{Waiter, Waits};

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

/// The calls on a socket table that threads share; its [`Waiter`] owns it.
#[derive(Debug)]
pub struct Posix<W> {
    waiter: W,
}

/// Returns the limit of a call on a file: `timeout`, or none at all with O_NONBLOCK or MSG_DONTWAIT.
fn limit_of(wait_settings: WaitSettings, timeout: Option<Duration>, flags: u32) -> WaitLimit {
    match wait_settings.nonblocking || flags & MsgFlags::DONTWAIT.bits() != 0 {
        true => WaitLimit::Never,
        false => WaitLimit::within(timeout),
    }
}

/// Returns the limit for a timeout in milliseconds; a negative one means no limit.
fn limit_of_millis(ms: i32) -> WaitLimit {
    match u64::try_from(ms) {
        Ok(0) => WaitLimit::Never,
        Ok(ms) => WaitLimit::For(Duration::from_millis(ms)),
        Err(_) => WaitLimit::Forever,
    }
}

impl<W: Waiter> Posix<W> {
    /// Returns the calls on the table of `waiter`.
    pub fn new(waiter: W) -> Self {
        Self { waiter }
    }

    /// Returns the owner of the table.
    pub fn waiter(&self) -> &W {
        &self.waiter
    }

    /// Returns the owner of the table.
    pub fn waiter_mut(&mut self) -> &mut W {
        &mut self.waiter
    }

    /// Locks the table.
    pub fn lock(&self) -> W::Locked<'_> {
        self.waiter.lock()
    }

    /// Runs a call that does not wait.
    pub fn call<T>(&self, call: impl FnOnce(&mut Table) -> T) -> T {
        self.waiter.call(Waits::default(), call)
    }

    /// Repeats `attempt` until it returns anything but EAGAIN, within the limit. The call holds the files that it waits for,
    /// so it continues if another thread closes one. `watched` has the descriptor and serial number of each; EBADF if a
    /// descriptor was reused before the call held it.
    ///
    /// # Errors
    /// As `attempt`; EAGAIN at the limit; EBADF.
    pub fn wait_for<T>(
        &self,
        limit: WaitLimit,
        watched: &[(i32, u64)],
        attempt: impl FnMut(&mut Table, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.wait_in_part(limit, watched, &mut Waits::default(), attempt)
    }

    /// Does so for one part of a call.
    fn wait_in_part<T>(
        &self,
        limit: WaitLimit,
        watched: &[(i32, u64)],
        waits: &mut Waits,
        mut attempt: impl FnMut(&mut Table, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let hold: Cell<Option<Hold>> = Cell::new(None);
        let attempt = |table: &mut Table, now| {
            let held = hold.take();
            let result = match &held {
                Some(held) => table.holding(held, |table| attempt(table, now)),
                None if table.are(watched) => attempt(table, now),
                None => Err(Errno::EBADF),
            };
            if result.as_ref().err() != Some(&Errno::EAGAIN) {
                held.into_iter().for_each(|held| table.release(held));
                return Some(result);
            }
            if limit != WaitLimit::Never {
                let fds = watched.iter().map(|(fd, _)| *fd);
                hold.set(held.or_else(|| Some(table.hold(fds))));
            }
            None
        };
        self.waiter.wait_for(limit, waits, attempt, |table| {
            hold.take().into_iter().for_each(|held| table.release(held));
            Err(Errno::EAGAIN)
        })
    }

    /// accept4(2).
    ///
    /// # Errors
    /// As [`Table::accept`].
    pub fn accept(&self, fd: i32, flags: i32) -> Result<(i32, Vec<u8>), Errno> {
        let wait_settings = self.lock().wait_settings(fd)?;
        let limit = limit_of(wait_settings, wait_settings.receive, 0);
        self.wait_for(limit, &[(fd, wait_settings.serial)], |table, _| {
            table.accept(fd, flags)
        })
    }

    /// connect(2).
    ///
    /// # Errors
    /// As [`Table::connect`]; after the time of SO_SNDTIMEO, EINPROGRESS.
    pub fn connect(&self, fd: i32, address: &[u8]) -> Result<(), Errno> {
        let wait_settings = self.lock().wait_settings(fd)?;
        let limit = limit_of(wait_settings, wait_settings.send, 0);
        let begun = self.call(|table| table.connect(fd, address, self.waiter.now()));
        match begun {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if limit != WaitLimit::Never => {}
            outcome => return outcome,
        }
        self.await_connected(fd, wait_settings.serial, limit, &mut Waits::default())
    }

    /// Waits until a connection is open, or has failed.
    fn await_connected(
        &self,
        fd: i32,
        serial: u64,
        limit: WaitLimit,
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
        let (wait_settings, low_water) = {
            let table = self.lock();
            (table.wait_settings(fd)?, table.low_water(fd)?)
        };
        let flag = |flag: MsgFlags| flags & flag.bits() != 0;
        let limit = match flag(MsgFlags::ERRQUEUE) {
            true => WaitLimit::Never,
            false => limit_of(wait_settings, wait_settings.receive, flags),
        };
        let RecvArgs { host, len, control } = args;
        let enough = match flag(MsgFlags::WAITALL) {
            true => len,
            false => low_water.min(len).max(1),
        };
        let once = flag(MsgFlags::PEEK) || flag(MsgFlags::ERRQUEUE);
        let mut sum: Option<Received> = None;
        let outcome = self.wait_for(limit, &[(fd, wait_settings.serial)], |table, _| {
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
        let wait_settings = self.lock().wait_settings(fd)?;
        let limit = limit_of(wait_settings, wait_settings.send, flags);
        let (mut under_way, mut waits) = (UnderWay::default(), Waits::default());
        let now = self.waiter.now();
        let begun = self.call(|table| table.send_early(fd, args, flags, &mut under_way, now));
        let flags = flags & !MSG_FASTOPEN;
        let mut sent = under_way.sent;
        if begun? == Begun::Connecting {
            let opened = match limit {
                WaitLimit::Never => Err(Errno::EINPROGRESS),
                _ => {
                    if sent < args.len() {
                        self.call(|table| table.announce_write(fd));
                    }
                    self.await_connected(fd, wait_settings.serial, limit, &mut waits)
                }
            };
            if let Err(errno) = opened {
                self.waiter
                    .call(waits, |table| table.finish_send(under_way));
                let goes_on = errno == Errno::EINPROGRESS && sent > 0;
                return if goes_on { Ok(sent) } else { Err(errno) };
            }
        }
        let watched = [(fd, wait_settings.serial)];
        let outcome = self.wait_in_part(limit, &watched, &mut waits, |table, _| {
            let outcome = table.send_on(fd, args, flags, &mut under_way);
            sent = under_way.sent;
            if outcome != Err(Errno::EAGAIN) || limit == WaitLimit::Never {
                // Before the last bytes are sent: this requests their timestamps.
                table.finish_send(std::mem::take(&mut under_way));
            } else {
                // It counts only if the send waits for the connection, and not for room.
                table.announce_write(fd);
            }
            outcome
        });
        self.waiter
            .call(waits, |table| table.finish_send(under_way));
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
        let serial = self.lock().wait_settings(fd)?.serial;
        let mut waits = Waits::default();
        if let Some(time) = self.call(|table| table.linger(fd))? {
            // The file is closed even if the wait failed.
            let _ = self.wait_in_part(
                WaitLimit::For(time),
                &[(fd, serial)],
                &mut waits,
                |table, _| table.lingered(fd),
            );
        }
        self.waiter.call(waits, |table| table.close(fd))
    }

    /// poll(2): fills in `revents`, returns how many entries have any.
    ///
    /// # Errors
    /// None; a file that is not open is POLLNVAL.
    pub fn poll(&self, fds: &mut [PollFd], timeout_ms: i32) -> Result<usize, Errno> {
        let watched: Vec<(i32, u64)> = {
            let table = self.lock();
            let serial = |fd: i32| Some((fd, table.wait_settings(fd).ok()?.serial));
            fds.iter().filter_map(|entry| serial(entry.fd)).collect()
        };
        let limit = limit_of_millis(timeout_ms);
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
        let serial = self.lock().wait_settings(epfd)?.serial;
        let limit = limit_of_millis(timeout_ms);
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
