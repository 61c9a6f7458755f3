//! Waiting for one of several streams, for programs that never wait in a call of one stream.

use std::io;
use std::time::Duration;

use crate::backend;
use crate::connecting::Connecting;
use crate::interest::Interest;
use crate::listener::Listener;
use crate::netdev::Netdev;
use crate::stream::Stream;

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
    on: backend::Poller,
}

impl Poller {
    /// Returns a poller for streams of `nic`, which has one shard: make one for each of [`Netdev::shards`].
    ///
    /// # Errors
    /// The NIC has several shards; the process has no free file descriptor.
    pub fn new(nic: &Netdev) -> io::Result<Self> {
        let on = backend::Poller::new(nic.nic())?;
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
        self.on.rest(rest);
        self
    }

    /// Waits until one of `watches` is ready or [`wake`](Self::wake) is called, for at most `at_most`. Returns whether that happened
    /// in time. A stream that was closed is ready.
    ///
    /// # Errors
    /// The NIC belongs to another process; a stream is on another shard of the NIC; poll(2) failed.
    pub fn wait(&self, watches: &[Watch], at_most: Duration) -> io::Result<bool> {
        self.on.wait(watches.iter().map(|watch| &watch.on), at_most)
    }

    /// Waits as [`wait`](Self::wait) does, for what arrives on `stream`, too, and reads it into `out`: one pass through a stack in user
    /// space, where a wait and a read are two. Returns the number of bytes, 0 at the end of the stream. `None`: one of `watches` is ready,
    /// [`wake`](Self::wake) was called, the time is over, or [`Read`](io::Read) has to read the next bytes, because they are in device
    /// memory. With an empty `out` it only waits for `watches`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and those of a read.
    pub fn wait_read(
        &self,
        stream: &Stream,
        out: &mut [u8],
        watches: &[Watch],
        at_most: Duration,
    ) -> io::Result<Option<usize>> {
        let watches = watches.iter().map(|watch| &watch.on);
        if out.is_empty() {
            self.on.wait(watches, at_most)?;
            return Ok(None);
        }
        let read = self.on.wait_read(stream.socket(), out, watches, at_most)?;
        stream.recv.count_read(read.unwrap_or(0));
        Ok(read)
    }

    /// Ends the [`wait`](Self::wait) or [`wait_ready`](Self::wait_ready) of another thread, or the next one if no thread waits.
    pub fn wake(&self) {
        self.on.wake();
    }

    /// Makes [`wait_ready`](Self::wait_ready) wait for `watch`, too, until [`remove`](Self::remove). It is reported as `key`, which
    /// replaces an earlier watch of this key. A stream that is closed is removed, and not reported.
    ///
    /// # Errors
    /// The NIC belongs to another process; the stream is on another shard of the NIC; the kernel has no memory for it.
    pub fn add(&self, key: u64, watch: &Watch) -> io::Result<()> {
        self.on.add(key, &watch.on)
    }

    /// Ends the watch with this key, if there is one.
    pub fn remove(&self, key: u64) {
        self.on.remove(key);
    }

    /// Waits until a watch that was [added](Self::add) is ready or [`wake`](Self::wake) is called, for at most `at_most`. Replaces the
    /// contents of `ready` by the keys of watches that are ready, 256 at most: none after a wake-up, a signal or the time. A stream
    /// that stays ready is reported again, after the others. One thread at a time can wait.
    ///
    /// # Errors
    /// The NIC belongs to another process; epoll_wait(2) failed.
    pub fn wait_ready(&self, ready: &mut Vec<u64>, at_most: Duration) -> io::Result<()> {
        ready.clear();
        self.on.wait_ready(ready, at_most)
    }
}

/// One thing that a [`Poller`] waits for, from [`Stream::watch`], [`Connecting::watch`] or [`Listener::watch`]. It does not keep the
/// connection open.
#[derive(Clone, Debug)]
pub struct Watch {
    on: backend::Watch,
}

impl Watch {
    /// Makes [`Interest::Receive`] wait for `bytes` queued bytes, where the first one ends a wait otherwise. The end of the stream, an error
    /// and a full receive buffer end it, too. For programs that know how many bytes must come: a peer that sends slowly wakes them for
    /// each packet otherwise. Receives return what is queued. It holds for the stream until it is waited for in another way.
    ///
    /// Has no effect on a NIC in user space, whose poller [rests](Poller::resting).
    #[doc(alias = "SO_RCVLOWAT")]
    #[must_use]
    pub fn at_least(mut self, bytes: usize) -> Self {
        self.on.at_least(bytes);
        self
    }
}

impl Stream {
    /// Names this stream to a [`Poller`] of the same NIC, or of its shard.
    pub fn watch(&self, interest: Interest) -> Watch {
        let on = backend::Watch::of_socket(self.socket(), interest);
        Watch { on }
    }
}

impl Connecting {
    /// Names the attempt to a [`Poller`] of the same NIC: it is ready when [`try_finish`](Self::try_finish) has an outcome.
    ///
    /// ```
    /// use devmem_tcp::{ConnectOptions, Netdev, Poller};
    /// use std::time::Duration;
    ///
    /// let a = Netdev::user("mem:connecting", "10.77.0.1/24")?;
    /// let b = Netdev::user("mem:connecting", "10.77.0.2/24")?;
    /// let listener = b.listen("10.77.0.2:5201")?;
    /// let poller = Poller::new(&a)?;
    /// let mut connecting = a.begin_connect("10.77.0.2:5201".parse()?, &ConnectOptions::new())?;
    /// poller.add(0, &connecting.watch()?)?;
    /// let mut ready = Vec::new();
    /// poller.wait_ready(&mut ready, Duration::MAX)?;
    /// assert!(connecting.try_finish()?.is_some());
    /// # drop(listener);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The stream was returned or the attempt has failed.
    pub fn watch(&self) -> io::Result<Watch> {
        Ok(self.stream()?.watch(Interest::Send))
    }
}

impl Listener {
    /// Names this listener to a [`Poller`] of the same NIC, which waits for a connection to accept. A poller of one
    /// shard waits for the connections of that shard.
    pub fn watch(&self) -> Watch {
        let on = backend::Watch::of_listening(self.socket());
        Watch { on }
    }
}
