//! The shards of a user-space NIC: stacks that share nothing on the path of a packet.
//!
//! Each shard has a queue pair of the link, a NIC half with page pools on it, a stack, a lock, and a background thread. A flow
//! belongs to one shard, by a hash of its addresses and ports; frames that arrive at another shard cross (`nic`). A NIC has one
//! shard unless [`NetdevBuilder::shards`](crate::NetdevBuilder::shards) says otherwise.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno};
use lease::LeaseKeeper;
use netmem::MemoryObserver;
use runtime::Background;
use stack::Stack;
use steer::ShardId;
use wire::Instant;

use crate::connect::ConnectOptions;
use crate::driver::{Driver, StackIndex, Stacks, WaitLimit};
use crate::error::{ConnectError, ErrorKind, Forked, ListenError, Refusal};
use crate::plan::UserSettings;
use crate::socket::{Inner, merging_frags};

/// Connections that may wait to be accepted; Linux' SOMAXCONN is 4096 (include/linux/socket.h).
pub(crate) const BACKLOG: usize = 4096;

/// How often a listener tries another free port, if a shard uses the one that the first shard chose.
const PORT_ATTEMPTS: usize = 16;

/// One shard's driver, and what keeps the other shards alive: frames of its flows may arrive there. Every handle of the
/// shard has it.
pub(crate) struct Shared {
    pub(crate) driver: Driver,
    pub(crate) number: ShardId,
    group: Arc<ShardGroup>,
    /// The applied settings of receivers that are not restored yet. A binding of their queues keeps them.
    pub(crate) setups: Mutex<Vec<Weak<UserSettings>>>,
}

/// All drivers of a NIC, with their background threads. Dropping it ends them.
struct ShardGroup {
    shards: Vec<(Driver, Option<Background<Stacks>>)>,
    /// Renews the address of a NIC that has it from a DHCP server.
    lease: Option<LeaseKeeper>,
    /// Held while memory is bound, so that all shards give it the same id. Lock order: before the locks of the drivers.
    binding: Mutex<()>,
    /// A memory was bound as a target: streams may receive into it directly.
    has_targets: AtomicBool,
}

impl Shared {
    /// Starts the background thread of each driver.
    pub(crate) fn group(
        drivers: Vec<Driver>,
        lease: Option<LeaseKeeper>,
    ) -> std::io::Result<Vec<Arc<Self>>> {
        let start = |driver: Driver| {
            let background = driver.start_background()?;
            Ok((driver, background))
        };
        let shards = drivers
            .into_iter()
            .map(start)
            .collect::<std::io::Result<Vec<_>>>()?;
        let group = Arc::new(ShardGroup {
            shards,
            lease,
            binding: Mutex::default(),
            has_targets: AtomicBool::new(false),
        });
        let shared = |(number, (driver, _)): (u16, &(Driver, _))| {
            Arc::new(Self {
                driver: driver.clone(),
                number: ShardId(number),
                group: Arc::clone(&group),
                setups: Mutex::default(),
            })
        };
        Ok((0..).zip(&group.shards).map(shared).collect())
    }

    /// Notes that a memory is a target from now on.
    pub(crate) fn note_target(&self) {
        self.group.has_targets.store(true, Ordering::Relaxed);
    }

    /// Returns whether a memory was ever bound as a target.
    pub(crate) fn has_targets(&self) -> bool {
        self.group.has_targets.load(Ordering::Relaxed)
    }

    /// Asks the stack with index `at` of each shard until one has an answer. Must not be called in a child of fork(2).
    pub(crate) fn find_in_stacks<T>(
        &self,
        at: StackIndex,
        mut ask: impl FnMut(&Stack, bool) -> Option<T>,
    ) -> Option<T> {
        let mut shards = self.group.shards.iter();
        shards.find_map(|(driver, _)| {
            let is_ours = driver.is(&self.driver);
            ask(&driver.lock().stacks[at.0], is_ours)
        })
    }

    /// Polls until the connections of dropped streams of all shards are closed: see [`Driver::linger`].
    pub(crate) fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        self.group.linger(at_most, grace)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// How long dropping the last handle waits for acknowledgements of what dropped streams have sent.
const LINGER: Duration = Duration::from_millis(500);

/// How long it waits for the FINs of peers that have acknowledged everything.
const GRACE: Duration = Duration::from_millis(50);

impl ShardGroup {
    /// Waits for the shards one after the other, for `at_most` together: the background threads poll the others meanwhile.
    fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        let Some((clock, _)) = self.shards.first() else {
            return true;
        };
        let started = clock.now();
        self.shards.iter().fold(true, |all, (driver, _)| {
            let waited = clock.now().saturating_since(started);
            all & driver.linger(at_most.saturating_sub(waited), grace)
        })
    }
}

impl Drop for ShardGroup {
    fn drop(&mut self) {
        let Some((first, _)) = self.shards.first() else {
            return;
        };
        if !first.is_here() {
            // In a child of fork(2): the background threads do not exist here, the connections belong to the parent, and
            // the stacks may be half-way through a change that another thread was making at the fork. Leak all of it.
            std::mem::forget(std::mem::take(&mut self.shards));
            self.lease.take().into_iter().for_each(LeaseKeeper::forget);
            return;
        }
        self.linger(LINGER, GRACE);
        for (_, background) in &mut self.shards {
            drop(background.take());
        }
        // While the links are open: the message that returns an address needs the interface.
        drop(self.lease.take());
    }
}

/// Returns the id that all shards have given a binding.
pub(crate) fn same_id(ids: impl IntoIterator<Item = DmabufId>) -> Result<DmabufId, Refusal> {
    let mut ids = ids.into_iter();
    let first = ids.next().unwrap_or(DmabufId(0));
    match ids.all(|id| id == first) {
        true => Ok(first),
        // Only after four billion bindings, when ids are used again.
        false => Err(Refusal::new(
            ErrorKind::OutOfResources,
            Errno::ENOSPC,
            "the shards have no free id of a binding in common",
        )
        .with_remedy("drop some bindings, or open the NIC again")),
    }
}

/// A stack of a NIC in user space: its driver, and its index in the driver (a virtual-time pair has two stacks).
#[derive(Clone, Debug)]
pub(crate) struct UserShard {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
}

impl UserShard {
    /// Returns whether it is the shard of this stack.
    pub(crate) fn is(&self, shared: &Arc<Shared>, at: StackIndex) -> bool {
        Arc::ptr_eq(&self.shared, shared) && self.at == at
    }

    /// Notes the memory of a binding, to find it for frags.
    pub(crate) fn note_memory(&self, id: DmabufId, observer: MemoryObserver) {
        let memories = &mut self.shared.driver.lock().memories;
        memories.retain(|_, memory| !memory.is_freed());
        memories.insert((self.at, id), observer);
    }

    /// Runs `call` on the stack.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Stack, Instant) -> T) -> Result<T, Forked> {
        self.shared.driver.with(self.at, call)
    }

    fn listen(&self, address: SocketAddr) -> Result<Arc<Inner>, ListenError> {
        let listen = |stack: &mut Stack, _| {
            let listener = stack.listen(address, BACKLOG)?;
            Ok::<_, stack::ListenError>(merging_frags(stack, listener))
        };
        let socket = self.with(listen)??;
        Ok(Inner::new(Arc::clone(&self.shared), self.at, socket))
    }

    /// Sends the SYN.
    fn begin_connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Inner>, ConnectError> {
        let connect = |stack: &mut Stack, now| {
            let tcp = stack.tcp_config().options;
            let socket = stack.connect_from(options.source, address, &tcp, now)?;
            Ok::<_, stack::ConnectError>(merging_frags(stack, socket))
        };
        let socket = self.with(connect)??;
        Ok(Inner::new(Arc::clone(&self.shared), self.at, socket))
    }
}

/// A NIC in user space: all of its shards, or one of them.
#[derive(Clone, Debug)]
pub(crate) struct UserNic {
    /// Never empty.
    shards: Arc<[UserShard]>,
    /// Number of connects, which take turns.
    connects: Arc<AtomicUsize>,
}

impl UserNic {
    pub(crate) fn new(shards: impl IntoIterator<Item = UserShard>) -> Self {
        Self {
            shards: shards.into_iter().collect(),
            connects: Arc::default(),
        }
    }

    pub(crate) fn shards(&self) -> &[UserShard] {
        &self.shards
    }

    /// Returns the first shard, for what all of them have in common.
    pub(crate) fn first(&self) -> &UserShard {
        &self.shards[0]
    }

    /// Returns handles of the shards, each a NIC of one shard.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> + '_ {
        self.shards.iter().map(|shard| Self::new([shard.clone()]))
    }

    /// Returns the packets that the shards have dropped, by reason; without reasons that never occurred.
    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        let drops = |stack: &mut Stack, _| stack.drops().collect::<Vec<_>>();
        let mut all = self
            .shards
            .iter()
            .filter_map(|shard| shard.with(drops).ok());
        let mut sums = all.next().unwrap_or_default();
        for of_shard in all {
            // Every stack has the same reasons.
            for (sum, (_, count)) in sums.iter_mut().zip(of_shard) {
                sum.1 += count;
            }
        }
        sums.retain(|(_, count)| *count > 0);
        sums
    }

    /// Locks the bindings of all shards against other threads that bind memory.
    pub(crate) fn lock_bindings(&self) -> MutexGuard<'_, ()> {
        let binding = &self.first().shared.group.binding;
        binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next binding get the same id from all shards. The bindings are locked.
    pub(crate) fn align_dmabuf_ids(&self) -> Result<(), Forked> {
        if let [_] = &*self.shards {
            return Ok(());
        }
        let mut next = DmabufId(1);
        for shard in self.shards.iter() {
            let id = shard.with(|stack, _| stack.next_dmabuf_id())?;
            next = next.max(id.unwrap_or(next));
        }
        for shard in self.shards.iter() {
            shard.with(|stack, _| stack.skip_to_dmabuf_id(next))?;
        }
        Ok(())
    }

    /// Returns the shard for a connection: the one that has its addresses and ports, or the next in turn if the local port is
    /// still to be chosen.
    pub(crate) fn shard_for(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<&UserShard, Forked> {
        let turn = self.connects.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        let in_turn = &self.shards[turn];
        let [_, _, ..] = &*self.shards else {
            return Ok(in_turn);
        };
        let Some(source) = options.source.filter(|source| source.port() != 0) else {
            return Ok(in_turn);
        };
        for shard in self.shards.iter() {
            if shard.with(|stack, _| stack.has_connections(source, address))? {
                return Ok(shard);
            }
        }
        // There is no route, or no such address: any shard says so.
        Ok(in_turn)
    }

    /// Sends the SYN.
    pub(crate) fn begin_connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Inner>, ConnectError> {
        self.shard_for(address, options)?
            .begin_connect(address, options)
    }

    /// Connects and waits until the connection is established or TCP gives up.
    pub(crate) fn connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Inner>, ConnectError> {
        let inner = self.begin_connect(address, options)?;
        let connected = inner.connected(WaitLimit::within(options.timeout));
        connected.ok_or(ConnectError::TimedOut)??;
        Ok(inner)
    }

    /// Listens on all shards; returns a socket of each.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<Vec<Arc<Inner>>, ListenError> {
        let mut attempts = 1;
        loop {
            let first = self.first().listen(address)?;
            let mut chosen = address;
            let local = first.with(|stack| stack.local_addr(first.socket))?;
            chosen.set_port(local.map_err(Refusal::from)?.port());
            let mut sockets = vec![first];
            let others = self.shards[1..].iter().map(|shard| shard.listen(chosen));
            match others.collect::<Result<Vec<_>, _>>() {
                Ok(others) => {
                    sockets.extend(others);
                    return Ok(sockets);
                }
                // A listener of one shard alone, or a connection, has the port there.
                Err(_) if address.port() == 0 && attempts < PORT_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}
