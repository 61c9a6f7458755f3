//! Waiting for several sockets of a stack in user space, which are in a list of the driver (`watchers.rs`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use devmem_uapi::Errno;
use stack::{Readiness, SocketId, Stack};

use super::nic::Nic;
use super::open::Listening;
use super::recv::host_bytes;
use super::shard::{Shard, ShardIdentity};
use super::socket::Socket;
use crate::driver::{Idling, Wait, WaitLimit};
use crate::error::{Error, ErrorKind, Forked, Remedy};
use crate::interest::{Interest, READY_MAX, elsewhere};
use crate::watchers::ReadyList;

/// Waits for sockets of the only shard of a NIC.
#[derive(Debug)]
pub(crate) struct Poller {
    shard: Shard,
    idling: Idling,
    /// [`wake`](Self::wake) was called.
    is_woken: AtomicBool,
    /// Sockets from [`add`](Self::add).
    list: Arc<ReadyList>,
}

/// What to wait for. It does not keep the socket open.
#[derive(Clone, Debug)]
pub(crate) enum Watch {
    Connection(Watched),
    /// The sockets of a listener, one for each shard.
    Listener(Vec<Watched>),
}

/// A socket of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    shard: ShardIdentity,
    socket: SocketId,
    interest: Readiness,
}

impl Watched {
    fn new(socket: &Socket, interest: Readiness) -> Self {
        Self {
            shard: socket.shard().identity(),
            socket: socket.id(),
            interest,
        }
    }

    /// Returns whether the wait is over; a socket that was closed is ready.
    fn is_ready(self, stack: &Stack) -> bool {
        stack
            .readiness(self.socket)
            .map_or(true, |ready| ready.intersects(self.interest))
    }
}

impl Watch {
    /// Returns the socket on `shard`, if there is one.
    fn on_shard(&self, shard: &Shard) -> Option<Watched> {
        let all = match self {
            Self::Connection(watched) => std::slice::from_ref(watched),
            Self::Listener(all) => all,
        };
        let shard = shard.identity();
        all.iter().find(|watched| watched.shard == shard).copied()
    }
}

impl Socket {
    /// Names the socket to a poller.
    pub(crate) fn watch(&self, interest: Interest) -> Watch {
        Watch::Connection(Watched::new(self, interest.readiness()))
    }
}

impl Listening {
    /// Names the sockets to a poller.
    pub(crate) fn watch(&self) -> Watch {
        let interest = Readiness::ACCEPTABLE.union(Readiness::ERROR);
        let sockets = self.sockets().iter();
        Watch::Listener(
            sockets
                .map(|socket| Watched::new(socket, interest))
                .collect(),
        )
    }
}

impl Nic {
    /// Returns a poller for sockets of the only shard.
    pub(crate) fn poller(&self) -> io::Result<Poller> {
        let [shard] = self.shards() else {
            return Err(several_shards().into());
        };
        Ok(Poller {
            shard: shard.clone(),
            idling: Idling::Spin,
            is_woken: AtomicBool::new(false),
            list: Arc::default(),
        })
    }
}

impl Poller {
    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.shard.check()
    }

    /// Makes each wait that finds nothing sleep for `rest` once before it looks again.
    pub(crate) fn rest(&mut self, rest: Duration) {
        self.idling = Idling::Rest(rest);
    }

    /// Ends a wait, or the next one.
    pub(crate) fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.shard.driver().wake_any(self.shard.at());
    }

    fn on_shard(&self, watch: Option<&Watch>) -> Result<Watched, Error> {
        let watched = watch.and_then(|watch| watch.on_shard(&self.shard));
        watched.ok_or_else(elsewhere)
    }

    /// Watches a socket, under a key that replaces an earlier one.
    pub(crate) fn add(&self, key: u64, watch: &Watch) -> io::Result<()> {
        let Watched {
            socket, interest, ..
        } = self.on_shard(Some(watch))?;
        let mut core = self.shard.driver().lock();
        let at = self.shard.at();
        // A socket that is closed has no event any more that would remove it.
        if core.stacks[at.0].readiness(socket).is_ok() {
            core.watchers.add(&self.list, key, (at, socket), interest);
        }
        Ok(())
    }

    /// Ends the watch with this key, if there is one.
    pub(crate) fn remove(&self, key: u64) {
        self.shard.driver().lock().watchers.remove(&self.list, key);
    }

    /// Waits for at most `at_most`; [`wake`](Self::wake) ends the wait early. Appends the keys of sockets that are ready.
    pub(crate) fn wait_ready(&self, keys: &mut Vec<u64>, at_most: Duration) -> io::Result<()> {
        self.wait_until(at_most, |stack| {
            let readiness = |(_, socket)| stack.readiness(socket).unwrap_or_default();
            self.list.take_ready(keys, READY_MAX, readiness);
            !keys.is_empty()
        });
        Ok(())
    }

    /// Waits for the sockets of `watches`, and for [`wake`](Self::wake). Returns whether one was ready in time; a socket that was closed
    /// is.
    pub(crate) fn wait<'a>(
        &self,
        watches: impl Iterator<Item = Option<&'a Watch>> + Clone,
        at_most: Duration,
    ) -> io::Result<bool> {
        for watch in watches.clone() {
            self.on_shard(watch)?;
        }
        Ok(self.wait_until(at_most, |stack| {
            let sockets = watches.clone().flat_map(|watch| self.on_shard(watch));
            sockets.into_iter().any(|socket| socket.is_ready(stack))
        }))
    }

    /// As [`wait`](Self::wait), and reads what arrives on `socket`; `None` if its next bytes are in device memory, too.
    pub(crate) fn wait_read<'a>(
        &self,
        socket: &Socket,
        out: &mut [u8],
        watches: impl Iterator<Item = Option<&'a Watch>> + Clone,
        at_most: Duration,
    ) -> io::Result<Option<usize>> {
        if !socket.shard().is_same(&self.shard) {
            return Err(elsewhere().into());
        }
        for watch in watches.clone() {
            self.on_shard(watch)?;
        }
        let mut read = None;
        self.wait_until(at_most, |stack| {
            read = socket.try_read(stack, out);
            let mut sockets = watches.clone().flat_map(|watch| self.on_shard(watch));
            read.is_some() || sockets.any(|socket| socket.is_ready(stack))
        });
        match read {
            Some(read) => Ok(host_bytes(read)?),
            None => Ok(None),
        }
    }

    /// Waits until `is_ready`, or until [`wake`](Self::wake) is called. Returns whether that happened in time.
    fn wait_until(&self, at_most: Duration, mut is_ready: impl FnMut(&mut Stack) -> bool) -> bool {
        let wait = Wait {
            stack: self.shard.at(),
            socket: None,
            limit: WaitLimit::For(at_most),
            idling: self.idling,
        };
        // Looked at before: every attempt comes here, and an exchange of an atomic takes longer than a load.
        let is_woken = || {
            self.is_woken.load(Ordering::Relaxed) && self.is_woken.swap(false, Ordering::Acquire)
        };
        let waited = self.shard.driver().wait_for(wait, |stack, _| {
            (is_ready(stack) || is_woken()).then_some(())
        });
        waited.is_ok()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let driver = self.shard.driver();
        if driver.is_here() {
            driver.lock().watchers.remove_all(&self.list);
        }
    }
}

fn several_shards() -> Error {
    let refusal = Error::new(
        ErrorKind::InvalidInput,
        Errno::EINVAL,
        "a poller waits for streams of one shard, and this NIC has several",
    );
    refusal.with_remedy(Remedy::PollerForEachShard)
}
