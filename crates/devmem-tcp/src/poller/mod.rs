//! Waiting for one of several streams, for programs that never wait in a call of one stream.
//!
//! In user space the sockets are in a list of the driver (`watchers.rs`), for a NIC of the kernel in an epoll set.

mod kernel_set;
mod watch;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use devmem_uapi::Errno;
use stack::Stack;

use crate::driver::{Idling, NotReady, Wait, WaitLimit};
use crate::error::{ErrorKind, Forked, Refusal};
use crate::kernel;
use crate::netdev::{Backend, Netdev};
use crate::shards::UserShard;
use crate::watchers::ReadyList;
use kernel_set::KernelSet;
pub use watch::{Interest, Watch};
use watch::{StackIdentity, UserWatch};

/// Most keys that one [`Poller::wait_ready`] returns.
const READY_MAX: usize = 256;

/// Waits for one of several streams of a NIC. The waiting thread polls a user-space NIC itself, as in a blocking call, so that
/// received data is not passed between threads.
///
/// [`wait`](Self::wait) is for a few streams that differ from wait to wait. A program with many tells the poller of each once,
/// by [`add`](Self::add), and [`wait_ready`](Self::wait_ready) returns those that are ready; its cost does not grow with the others.
///
/// ```
/// use devmem_tcp::{Interest, Netdev, Poller};
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// const LISTENER: u64 = 0;
/// const FOREVER: Duration = Duration::MAX;
/// let a = Netdev::user("mem:poller", "10.77.0.1/24")?;
/// let b = Netdev::user("mem:poller", "10.77.0.2/24")?;
/// let listener = b.listen("10.77.0.2:5201")?;
/// let poller = Poller::new(&b)?;
/// poller.add(LISTENER, &listener.watch())?;
/// let mut sender = a.connect("10.77.0.2:5201")?;
/// sender.write_all(b"hello")?;
///
/// let (mut streams, mut ready, mut text) = (Vec::new(), Vec::new(), [0; 5]);
/// while text != *b"hello" {
///     poller.wait_ready(&mut ready, FOREVER)?;
///     for key in ready.drain(..) {
///         if key == LISTENER {
///             let (mut stream, _) = listener.accept()?;
///             stream.set_nonblocking(true);
///             streams.push(stream);
///             let key = streams.len() as u64;
///             poller.add(key, &streams[key as usize - 1].watch(Interest::Receive))?;
///         } else {
///             streams[key as usize - 1].read_exact(&mut text)?;
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Poller {
    on: Waits,
}

/// How to wait for a NIC.
#[derive(Debug)]
enum Waits {
    User(UserWaits),
    Kernel(Arc<kernel::Nic>, KernelSet),
}

/// Waits for the only shard of a NIC.
#[derive(Debug)]
struct UserWaits {
    shard: UserShard,
    idling: Idling,
    /// [`Poller::wake`] was called.
    is_woken: AtomicBool,
    /// Sockets from [`Poller::add`].
    list: Arc<ReadyList>,
}

impl Poller {
    /// Returns a poller for streams of `nic`, which has one shard: make one for each of [`Netdev::shards`].
    ///
    /// # Errors
    /// The NIC has several shards; the process has no free file descriptor.
    pub fn new(nic: &Netdev) -> io::Result<Self> {
        let on = match &nic.backend {
            Backend::User(user) => match user.shards() {
                [shard] => Waits::User(UserWaits {
                    shard: shard.clone(),
                    idling: Idling::Spin,
                    is_woken: AtomicBool::new(false),
                    list: Arc::default(),
                }),
                _ => return Err(several_shards().into()),
            },
            Backend::Kernel(nic) => Waits::Kernel(Arc::clone(nic), KernelSet::new()?),
        };
        Ok(Self { on })
    }

    /// Makes each wait that finds nothing sleep for `rest` before it polls again, instead of spinning. Packets that arrive in that time
    /// are received and acknowledged together, which saves CPU time when the peer is slower than this program. Bytes arrive later, by
    /// up to `rest` and the timer slack of the kernel (50 us: prctl(2), `PR_SET_TIMERSLACK`). If the peer sends bursts, so that a rest
    /// finds nothing, later waits sleep until the first packet of a burst, and rest then.
    ///
    /// [`wake`](Self::wake) does not end the rest. Has no effect while another thread waits on the same NIC, in virtual time, and on a
    /// NIC of the kernel.
    #[must_use]
    pub fn resting(mut self, rest: Duration) -> Self {
        if let Waits::User(user) = &mut self.on {
            user.idling = Idling::Rest(rest);
        }
        self
    }

    /// Waits until one of `watches` is ready or [`wake`](Self::wake) is called, for at most `at_most`. Returns whether that happened
    /// in time. A stream that was closed is ready.
    ///
    /// # Errors
    /// The NIC belongs to another process; a stream is on another shard of the NIC; poll(2) failed.
    pub fn wait(&self, watches: &[Watch], at_most: Duration) -> io::Result<bool> {
        match &self.on {
            Waits::User(user) => {
                for watch in watches {
                    user.on_shard(watch)?;
                }
                Ok(user.wait(at_most, |stack| {
                    let sockets = watches.iter().flat_map(|watch| user.on_shard(watch));
                    sockets.into_iter().any(|socket| socket.is_ready(stack))
                })?)
            }
            Waits::Kernel(_, set) => {
                let kernel = watches.iter().flat_map(Watch::of_kernel);
                let open = kernel.map(|watch| Some((watch.open()?, watch.events)));
                match open.collect::<Option<Vec<_>>>() {
                    Some(sockets) => set.poll(&sockets, at_most),
                    None => Ok(true),
                }
            }
        }
    }

    /// Ends the [`wait`](Self::wait) or [`wait_ready`](Self::wait_ready) of another thread, or the next one if no thread waits.
    pub fn wake(&self) {
        match &self.on {
            Waits::User(user) => {
                user.is_woken.store(true, Ordering::Release);
                user.shard.shared.driver.wake_any(user.shard.at);
            }
            Waits::Kernel(_, set) => set.wake(),
        }
    }

    /// Makes [`wait_ready`](Self::wait_ready) wait for `watch`, too, until [`remove`](Self::remove). It is reported as `key`, which
    /// replaces an earlier watch of this key. A stream that is closed is removed, and not reported.
    ///
    /// # Errors
    /// The NIC belongs to another process; the stream is on another shard of the NIC; the kernel has no memory for it.
    pub fn add(&self, key: u64, watch: &Watch) -> io::Result<()> {
        match &self.on {
            Waits::User(user) => user.add(key, user.on_shard(watch)?).map_err(Into::into),
            Waits::Kernel(nic, set) => {
                nic.check()?;
                let watch = watch.of_kernel().ok_or_else(elsewhere)?;
                set.add(key, watch.clone())
            }
        }
    }

    /// Ends the watch with this key, if there is one.
    pub fn remove(&self, key: u64) {
        match &self.on {
            Waits::User(UserWaits { shard, list, .. }) => {
                if let Ok(mut core) = shard.shared.driver.enter() {
                    core.watchers.remove(list, key);
                }
            }
            Waits::Kernel(_, set) => set.remove(key),
        }
    }

    /// Waits until a watch that was [added](Self::add) is ready or [`wake`](Self::wake) is called, for at most `at_most`. Replaces the
    /// contents of `ready` by the keys of watches that are ready, 256 at most: none after a wake-up, a signal or the time. A stream
    /// that stays ready is reported again, after the others. One thread at a time can wait.
    ///
    /// # Errors
    /// The NIC belongs to another process; epoll_wait(2) failed.
    pub fn wait_ready(&self, ready: &mut Vec<u64>, at_most: Duration) -> io::Result<()> {
        ready.clear();
        match &self.on {
            Waits::User(user) => {
                user.wait(at_most, |stack| {
                    let readiness = |(_, socket)| stack.readiness(socket).unwrap_or_default();
                    user.list.take_ready(ready, READY_MAX, readiness);
                    !ready.is_empty()
                })?;
                Ok(())
            }
            Waits::Kernel(nic, set) => {
                nic.check()?;
                set.wait(ready, at_most)
            }
        }
    }
}

impl UserWaits {
    /// Returns the socket that `watch` names on this shard.
    fn on_shard(&self, watch: &Watch) -> Result<UserWatch, Refusal> {
        let stack = StackIdentity::of(&self.shard.shared, self.shard.at);
        watch.on_stack(stack).ok_or_else(elsewhere)
    }

    fn add(&self, key: u64, watch: UserWatch) -> Result<(), Forked> {
        let mut core = self.shard.shared.driver.enter()?;
        let at = self.shard.at;
        // A socket that is closed has no event any more that would remove it.
        if core.stacks[at.0].readiness(watch.socket).is_ok() {
            let of = (at, watch.socket);
            core.watchers.add(&self.list, key, of, watch.interest);
        }
        Ok(())
    }

    /// Waits until `is_ready`, or until [`Poller::wake`] is called. Returns whether that happened in time.
    fn wait(
        &self,
        at_most: Duration,
        mut is_ready: impl FnMut(&Stack) -> bool,
    ) -> Result<bool, Forked> {
        let wait = Wait {
            stack: self.shard.at,
            socket: None,
            limit: WaitLimit::For(at_most),
            idling: self.idling,
        };
        let waited = self.shard.shared.driver.wait_for(wait, |stack, _| {
            (is_ready(stack) || self.is_woken.swap(false, Ordering::Acquire)).then_some(())
        });
        match waited {
            Ok(()) => Ok(true),
            Err(NotReady::TimedOut | NotReady::WouldBlock) => Ok(false),
            Err(NotReady::Forked(forked)) => Err(forked),
        }
    }
}

impl Drop for UserWaits {
    fn drop(&mut self) {
        if let Ok(mut core) = self.shard.shared.driver.enter() {
            core.watchers.remove_all(&self.list);
        }
    }
}

fn several_shards() -> Refusal {
    let refusal = Refusal::new(
        ErrorKind::InvalidInput,
        Errno::EINVAL,
        "a poller waits for streams of one shard, and this NIC has several",
    );
    refusal.with_remedy("make a poller for each NIC that `Netdev::shards` returns")
}

fn elsewhere() -> Refusal {
    let refusal = Refusal::new(
        ErrorKind::InvalidInput,
        Errno::EINVAL,
        "a watched stream is on another shard than the poller, or on another NIC",
    );
    refusal.with_remedy("watch it with a poller of its shard, which `Stream::shard` returns")
}
