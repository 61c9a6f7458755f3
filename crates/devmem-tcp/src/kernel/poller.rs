//! Waiting for several sockets of the kernel: an epoll set of the sockets that a poller watches, and an eventfd that ends a wait.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use runtime::fds::{clear, set};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::nic::Nic;
use super::open::Listening;
use super::socket::Socket;
use super::wait::poll_for;
use crate::error::Forked;
use crate::interest::{Interest, READY_MAX};

/// Stands for the eventfd that ends a wait. No fd has this number.
const WAKE: u64 = u64::MAX;

/// Waits for sockets of an interface.
#[derive(Debug)]
pub(crate) struct Poller {
    nic: Arc<Nic>,
    epoll: OwnedFd,
    wake: OwnedFd,
    watches: Mutex<Watches>,
}

#[derive(Debug, Default)]
struct Watches {
    /// The watches of each fd in the set.
    by_fd: HashMap<RawFd, Vec<(u64, Watch)>>,
    fds: HashMap<u64, RawFd>,
}

/// A socket to wait for. It is not kept open.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    socket: Watched,
    events: PollFlags,
    /// Bytes that make a connection readable.
    least: usize,
}

#[derive(Clone, Debug)]
enum Watched {
    Connection(Weak<Socket>),
    Listener(Weak<Listening>),
}

/// A socket that is kept open for a wait.
enum OpenSocket {
    Connection(Arc<Socket>),
    Listener(Arc<Listening>),
}

impl Watch {
    /// Waits for so many bytes.
    pub(crate) fn at_least(&mut self, bytes: usize) {
        self.least = bytes.max(1);
    }

    /// Returns the socket, unless it was closed.
    fn open(&self) -> Option<OpenSocket> {
        match &self.socket {
            Watched::Connection(socket) => socket.upgrade().map(OpenSocket::Connection),
            Watched::Listener(socket) => socket.upgrade().map(OpenSocket::Listener),
        }
    }

    /// Returns the socket, unless it was closed, ready to be waited for.
    fn prepared(&self) -> Option<OpenSocket> {
        let open = self.open()?;
        if let OpenSocket::Connection(socket) = &open
            && self.events.contains(PollFlags::IN)
        {
            socket.readable_from(self.least);
        }
        Some(open)
    }
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connection(socket) => socket.fd(),
            Self::Listener(listening) => listening.fd(),
        }
    }
}

impl Socket {
    /// Names the socket to a poller.
    pub(crate) fn watch(self: &Arc<Self>, interest: Interest) -> Watch {
        Watch {
            socket: Watched::Connection(Arc::downgrade(self)),
            events: interest.poll_flags(),
            least: 1,
        }
    }
}

impl Listening {
    /// Names the socket to a poller.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        Watch {
            socket: Watched::Listener(Arc::downgrade(self)),
            events: PollFlags::IN,
            least: 1,
        }
    }
}

impl Nic {
    /// Returns a poller for sockets of the interface.
    pub(crate) fn poller(self: &Arc<Self>) -> io::Result<Poller> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Poller {
            nic: Arc::clone(self),
            epoll,
            wake,
            watches: Mutex::default(),
        })
    }
}

impl Poller {
    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.nic.check()
    }

    /// Ends a wait, or the next one.
    pub(crate) fn wake(&self) {
        set(self.wake.as_fd());
    }

    /// Watches a socket, under a key that replaces an earlier one.
    pub(crate) fn add(&self, key: u64, watch: &Watch) -> io::Result<()> {
        let mut watches = self.watches();
        watches.remove(&self.epoll, key);
        watches.add(&self.epoll, key, watch.clone())
    }

    /// Ends the watch with this key, if there is one.
    pub(crate) fn remove(&self, key: u64) {
        self.watches().remove(&self.epoll, key);
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most `at_most`; a signal or [`wake`](Self::wake) ends the wait early. Appends the keys of sockets that are ready.
    pub(crate) fn wait_ready(&self, keys: &mut Vec<u64>, at_most: Duration) -> io::Result<()> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); READY_MAX];
        let limit = timespec(at_most);
        let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&limit)) {
            Err(Errno::INTR) => return Ok(()),
            waited => waited?,
        };
        let watches = self.watches();
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match RawFd::try_from(data) {
                Ok(fd) => watches.report(fd, flags, keys),
                Err(_) => clear(self.wake.as_fd()),
            }
        }
        keys.truncate(READY_MAX);
        Ok(())
    }

    /// Waits for the sockets of `watches`, and for [`wake`](Self::wake). Returns whether one was ready in time; a socket that was closed
    /// is.
    pub(crate) fn wait<'a>(
        &self,
        watches: impl Iterator<Item = &'a Watch>,
        at_most: Duration,
    ) -> io::Result<bool> {
        let open = watches.map(|watch| Some((watch.prepared()?, watch.events)));
        let Some(sockets) = open.collect::<Option<Vec<_>>>() else {
            return Ok(true);
        };
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let sockets = sockets.iter();
        let mut fds: Vec<_> = std::iter::once(wake)
            .chain(sockets.map(|(socket, events)| PollFd::new(socket, *events)))
            .collect();
        let ready = poll_for(&mut fds, at_most)?;
        if !fds[0].revents().is_empty() {
            clear(self.wake.as_fd());
        }
        Ok(ready > 0)
    }
}

impl Watches {
    fn add(&mut self, epoll: &OwnedFd, key: u64, watch: Watch) -> io::Result<()> {
        let Some(socket) = watch.prepared() else {
            return Ok(());
        };
        let fd = socket.as_fd();
        let watches = self.by_fd.entry(fd.as_raw_fd()).or_default();
        // The kernel has removed a socket that was closed, and may have given its number to this one.
        watches.retain(|(_, other)| other.open().is_some());
        watches.push((key, watch));
        let (data, events) = (data_of(fd.as_raw_fd()), events_of(watches));
        let added = match watches.len() {
            1 => epoll::add(epoll, fd, data, events),
            _ => epoll::modify(epoll, fd, data, events),
        };
        if let Err(errno) = added {
            watches.pop();
            return Err(errno.into());
        }
        self.fds.insert(key, fd.as_raw_fd());
        Ok(())
    }

    fn remove(&mut self, epoll: &OwnedFd, key: u64) {
        let Some(fd) = self.fds.remove(&key) else {
            return;
        };
        let Some(watches) = self.by_fd.get_mut(&fd) else {
            return;
        };
        let removed = watches.iter().position(|(other, _)| *other == key);
        let Some((_, watch)) = removed.map(|at| watches.remove(at)) else {
            return;
        };
        if let Some(socket) = watch.open() {
            // Both fail only for an fd that is not in the set.
            let _ = match watches.is_empty() {
                true => epoll::delete(epoll, &socket),
                false => epoll::modify(epoll, &socket, data_of(fd), events_of(watches)),
            };
        }
        if watches.is_empty() {
            self.by_fd.remove(&fd);
        }
    }

    /// Appends the keys of those watches of `fd` that `news` concerns.
    fn report(&self, fd: RawFd, news: epoll::EventFlags, keys: &mut Vec<u64>) {
        let failed = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        let watches = self.by_fd.get(&fd).into_iter().flatten();
        for (key, watch) in watches {
            if news.intersects(flags_of(watch.events) | failed) {
                keys.push(*key);
            }
        }
    }
}

fn data_of(fd: RawFd) -> epoll::EventData {
    epoll::EventData::new_u64(fd.unsigned_abs().into())
}

fn events_of(watches: &[(u64, Watch)]) -> epoll::EventFlags {
    let none = epoll::EventFlags::empty();
    let each = watches.iter().map(|(_, watch)| flags_of(watch.events));
    each.fold(none, epoll::EventFlags::union)
}

fn flags_of(events: PollFlags) -> epoll::EventFlags {
    let [input, output] = [epoll::EventFlags::IN, epoll::EventFlags::OUT];
    let flags = [(PollFlags::IN, input), (PollFlags::OUT, output)];
    let wanted = flags.iter().filter(|(flag, _)| events.contains(*flag));
    wanted.map(|(_, flag)| *flag).collect()
}

/// Returns the limit of a wait; one that does not fit is longer than any machine runs.
fn timespec(at_most: Duration) -> Timespec {
    Timespec::try_from(at_most).unwrap_or(Timespec {
        tv_sec: u32::MAX.into(),
        tv_nsec: 0,
    })
}
