//! Zero-copy sends of a socket of the kernel.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use devmem_linux::errors::Operation;
use devmem_linux::socket::{self as linux, enable_zerocopy, send_dmabuf};
use devmem_uapi::{Errno, MsgFlags};
use rustix::event::PollFlags;
use rustix::net::{SendFlags, send};

use super::bind::Tx;
use super::pieces::Pieces;
use super::sends::{InFlight, Retained, Sends};
use super::socket::{Socket, end_of_connection};
use super::wait::Deadline;
use crate::driver::WaitLimit;
use crate::error::{Error, NotReady};
use crate::ranges::{HowToSend, check_ranges, send_ranges};
use crate::send_id::{SendCounts, SendId};

/// What to wait for before a send that queued nothing can be retried.
enum NotYet {
    /// Room in the send buffer.
    Room,
    /// Completions: there are too many unreported sends.
    Reports,
    Never(Error),
}

impl Socket {
    fn sends(&self) -> MutexGuard<'_, Sends> {
        self.ledger.sends()
    }

    /// Returns the number of zero-copy sends so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sends().set.sent()
    }

    /// Sets SO_ZEROCOPY, once.
    fn enable_zerocopy(&self) -> Result<(), Error> {
        let mut sends = self.sends();
        if sends.enabled {
            return Ok(());
        }
        enable_zerocopy(self.fd()).map_err(|errno| self.send_error(errno))?;
        sends.enabled = true;
        drop(sends);
        self.nic.note_sender(&self.ledger);
        Ok(())
    }

    /// Sends ranges of bound memory, without a copy.
    pub(crate) fn send(
        &self,
        tx: &Tx,
        ranges: &[Range<usize>],
        how: HowToSend,
    ) -> Result<SendId, Error> {
        check_ranges(tx.id(), tx.size(), ranges)?;
        self.enable_zerocopy()?;
        let sent = || self.sent();
        send_ranges(ranges, how, sent, |now, limit| {
            self.send_device(tx, now, limit)
        })
    }

    /// Sends bytes of host memory without a copy. Keeps them until the send is complete.
    pub(crate) fn send_host(
        &self,
        bytes: &Arc<[u8]>,
        range: &Range<usize>,
        how: HowToSend,
    ) -> Result<SendId, Error> {
        self.enable_zerocopy()?;
        let sent = || self.sent();
        send_ranges(std::slice::from_ref(range), how, sent, |now, limit| {
            self.send_some(bytes, now[0].clone(), limit)
        })
    }

    /// Queues as many bytes of `ranges` as there is room for, at least one. Uses at most the first 1,024 ranges.
    fn send_device(&self, tx: &Tx, all: &[Range<usize>], limit: WaitLimit) -> Result<usize, Error> {
        let ranges: Vec<Range<u64>> = all
            .iter()
            .map(|range| range.start as u64..range.end as u64)
            .collect();
        let page = rustix::param::page_size();
        self.send_counted(limit, |socket, pieces| {
            let share = pieces.share(all, page);
            let now = &ranges[..share.ranges];
            let record = if share.ends {
                MsgFlags::EOR
            } else {
                MsgFlags::empty()
            };
            let flags = MsgFlags::DONTWAIT | record;
            let sent = send_dmabuf(socket.fd(), tx.source(), now, flags);
            let taken = sent.map_err(|error| socket.device_error(error))?;
            let whole = now.iter().map(|range| range.end - range.start).sum::<u64>();
            pieces.sent(share, taken as u64 == whole);
            let _in_flight = InFlight::new(tx.in_flight_count());
            Ok((taken, Retained::Counted { _in_flight }))
        })
    }

    /// Queues as many bytes of the range of `bytes` as there is room for.
    fn send_some(
        &self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
        limit: WaitLimit,
    ) -> Result<usize, Error> {
        let zerocopy = SendFlags::from_bits_retain(MsgFlags::ZEROCOPY.bits());
        let flags = zerocopy | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        self.send_counted(limit, |socket, _| {
            let taken = send(&socket.ledger.fd, &bytes[range.clone()], flags)
                .map_err(|errno| socket.not_yet(Errno(errno.raw_os_error())))?;
            let _bytes = Arc::clone(bytes);
            Ok((taken, Retained::Bytes { _bytes }))
        })
    }

    /// Repeats `attempt` until it queues something, and counts the send. The kernel numbers sends in the order of the calls, so
    /// the lock is held from the call until the send is counted.
    fn send_counted(
        &self,
        limit: WaitLimit,
        attempt: impl Fn(&Self, &mut Pieces) -> Result<(usize, Retained), NotYet>,
    ) -> Result<usize, Error> {
        let deadline = Deadline::of(limit);
        loop {
            let mut sends = self.sends();
            let unread = sends.set.complete();
            let not_yet = match attempt(self, &mut sends.pieces) {
                Ok((taken, kept)) => {
                    if taken > 0 {
                        let number = sends.set.count();
                        sends.kept.push_back((number, kept));
                    }
                    return Ok(taken);
                }
                Err(not_yet) => not_yet,
            };
            drop(sends);
            match not_yet {
                NotYet::Never(error) => return Err(error),
                NotYet::Room => self
                    .wait(deadline, PollFlags::OUT)
                    .map_err(Error::no_room)?,
                NotYet::Reports => {
                    // Reading reported completions makes room at once; if there are none, later ones will.
                    let _ = self.collect();
                    if self.sends().set.complete() == unread {
                        self.wait_for_completions(deadline, unread)
                            .map_err(Error::no_room)?;
                    }
                }
            }
        }
    }

    fn not_yet(&self, errno: Errno) -> NotYet {
        match errno {
            Errno::EAGAIN => NotYet::Room,
            Errno::ENOBUFS => NotYet::Reports,
            // Should not occur, because our calls do not wait in the kernel; try again.
            Errno::EINTR => NotYet::Room,
            errno => NotYet::Never(self.send_error(errno)),
        }
    }

    fn device_error(&self, error: linux::SendError) -> NotYet {
        match error {
            linux::SendError::Refused { errno, cause }
                if errno != Errno::ENOBUFS && end_of_connection(errno).is_none() =>
            {
                let name = self.nic.name();
                let refusal = Error::of_kernel(&format!("send on {name}"), errno, &cause);
                NotYet::Never(refusal.on(name))
            }
            other => self.not_yet(other.errno()),
        }
    }

    /// Waits until more than `known` sends are complete.
    fn wait_for_completions(&self, deadline: Deadline, known: u64) -> Result<(), NotReady> {
        let got = deadline.wait(self.fd(), PollFlags::empty())?;
        if got.contains(PollFlags::ERR) {
            let _ = self.collect();
            return Ok(());
        }
        // The connection has hung up, but completions are still missing.
        deadline.wait_for_news(self.fd(), || {
            let _ = self.collect();
            self.sends().set.complete() != known
        })
    }

    /// Reads the error queue until it is empty. Returns the number of sends that are complete without a gap.
    pub(crate) fn collect(&self) -> Result<u64, Error> {
        self.ledger
            .collect()
            .map_err(|error| self.refused("read completions", Operation::Socket, error.errno))
    }

    /// Reads the error queue and returns the counts of the sends.
    pub(crate) fn counts(&self) -> Result<SendCounts, Error> {
        self.collect()?;
        let sends = self.sends();
        Ok(SendCounts {
            sent: sends.set.sent(),
            complete: sends.set.complete(),
            copied: sends.copied,
        })
    }

    /// Returns the sends that became complete since the last call: first and end.
    pub(crate) fn tell(&self) -> Result<(u64, u64), Error> {
        let end = self.collect()?;
        let mut sends = self.sends();
        let first = sends.told;
        sends.told = first.max(end);
        Ok((first, end))
    }

    /// Waits until all sends before `end` are complete.
    pub(crate) fn wait_until(&self, end: u64, limit: WaitLimit) -> Result<(), Error> {
        let deadline = Deadline::of(limit);
        while self.collect()? < end {
            let known = self.sends().set.complete();
            self.wait_for_completions(deadline, known)
                .map_err(Error::not_complete)?;
        }
        Ok(())
    }
}
