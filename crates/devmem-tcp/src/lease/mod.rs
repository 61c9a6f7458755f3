//! An IPv4 address that a DHCP server lends to a NIC: acquired before the NIC is opened, renewed by a thread while it is open, and
//! returned when it is closed.
//!
//! [`client::Client`] decides, without I/O; [`port::LeasePort`] exchanges frames on a socket beside that of the link.

mod client;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod fuzz_replay;
mod message;
mod port;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::driver::{Driver, StackIndex, set};
use client::{Change, Client, Lease};
use port::Heard;
pub(crate) use port::LeasePort;

/// Longest sleep; the deadline of an endless lease is never reached.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// A client with its socket and its clock.
struct Conversation {
    client: Client,
    port: LeasePort,
    begin: Instant,
}

/// An address that was acquired, and that nothing renews yet.
pub(crate) struct Acquired {
    conversation: Conversation,
    lease: Lease,
}

/// Renews a lease, as long as this value exists; dropping it returns the address.
pub(crate) struct LeaseKeeper {
    /// Ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Acquires an address; `random` makes the numbers of the messages unpredictable. `None` if no server lends one within that
/// time.
///
/// # Errors
/// poll(2) fails.
pub(crate) fn acquire(
    port: LeasePort,
    random: u64,
    at_most: Duration,
) -> rustix::io::Result<Option<Acquired>> {
    let mut conversation = Conversation {
        client: Client::new(port.mac().0, random),
        port,
        begin: Instant::now(),
    };
    loop {
        if let Some(Change::Bound(lease)) = conversation.client.take_change() {
            return Ok(Some(Acquired {
                conversation,
                lease,
            }));
        }
        let left = at_most.saturating_sub(conversation.begin.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        conversation.turn(None, left)?;
    }
}

impl Conversation {
    /// Sends what is due, sleeps until something arrives, is due, or `wake` is readable, for at most that time, and takes what
    /// has arrived. Returns whether `wake` is readable.
    fn turn(&mut self, wake: Option<&OwnedFd>, at_most: Duration) -> rustix::io::Result<bool> {
        let now = self.begin.elapsed();
        while self.client.is_due(now) {
            if let Some(output) = self.client.poll(now) {
                self.port.send(&output);
            }
            if self.client.has_change() {
                return Ok(false);
            }
        }
        let sleep = self.client.deadline().saturating_sub(now).min(at_most);
        let sleep = Timespec::try_from(sleep.min(LONGEST_SLEEP)).unwrap_or_default();
        let mut fds = vec![PollFd::new(&self.port, PollFlags::IN)];
        fds.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        match poll(&mut fds, Some(&sleep)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let woken = fds.get(1).is_some_and(|wake| !wake.revents().is_empty());
        let now = self.begin.elapsed();
        while let Some(heard) = self.port.receive() {
            match heard {
                Heard::Reply(reply, from) => self.client.on_reply(&reply, from, now),
                Heard::InUse(address) => {
                    if let Some(output) = self.client.on_address_in_use(address, now) {
                        self.port.send(&output);
                    }
                }
                Heard::Nothing => {}
            }
        }
        Ok(woken)
    }
}

impl Acquired {
    /// Returns the address and the length of its prefix.
    pub(crate) fn address(&self) -> (IpAddr, u8) {
        (self.lease.address.into(), self.lease.prefix)
    }

    /// Returns the router, if the server named one.
    pub(crate) fn gateway(&self) -> Option<IpAddr> {
        self.lease.gateway.map(IpAddr::V4)
    }

    /// Starts the thread that renews the lease of a stack of `driver`, and changes the address of the stack with it.
    ///
    /// # Errors
    /// The thread or its eventfd cannot be made.
    pub(crate) fn keep(self, driver: Arc<Driver>, at: StackIndex) -> std::io::Result<LeaseKeeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let watched = Arc::clone(&stop);
        let Self {
            mut conversation,
            mut lease,
        } = self;
        let keep = move || {
            // An error of poll(2) means that the kernel has no memory: the address is returned, and not renewed.
            while let Ok(false) = conversation.turn(Some(&watched), LONGEST_SLEEP) {
                if let Some(change) = conversation.client.take_change() {
                    lease = follow(change, lease, &driver, at);
                }
            }
            if let Some(output) = conversation.client.release() {
                conversation.port.send(&output);
            }
        };
        let thread = std::thread::Builder::new().name("devmem-tcp-dhcp".to_owned());
        let thread = Some(thread.spawn(keep)?);
        Ok(LeaseKeeper { stop, thread })
    }
}

/// Changes the address of a stack; returns the lease that it has now, or had last.
fn follow(change: Change, old: Lease, driver: &Driver, at: StackIndex) -> Lease {
    let (new, lost) = match change {
        Change::Bound(new) => (Some(new), None),
        Change::Lost(address) => (None, Some(address)),
    };
    if let Some(address) = lost {
        // An error: this is a child of fork(2), which has no threads.
        let _ = driver.with(at, |stack, now| stack.remove_address(address.into(), now));
    }
    let Some(new) = new else {
        return old;
    };
    let facts = |lease: &Lease| (lease.address, lease.prefix, lease.gateway);
    if lacks(driver, at, new.address) || facts(&new) != facts(&old) {
        let gateway = new.gateway.map(IpAddr::V4);
        let added = driver.with(at, |stack, now| {
            stack.add_address(new.address.into(), new.prefix, gateway, now)
        });
        // The client accepts only addresses of hosts, and routers in their networks.
        debug_assert!(!matches!(added, Ok(Err(_))), "{new:?}");
    }
    new
}

/// Returns whether the stack lacks the address.
fn lacks(driver: &Driver, at: StackIndex, address: Ipv4Addr) -> bool {
    let has = |stack: &mut stack::Stack, _| stack.addresses().any(|ours| ours == address);
    !driver.with(at, has).unwrap_or(true)
}

impl LeaseKeeper {
    /// Leaves the thread, which is not there in a child of fork(2).
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
        std::mem::forget(self);
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        set(self.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            // An error: the thread has panicked, and its message is on stderr.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::{read, write};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use wire::{MacAddr, RxHeaders};

    use super::*;

    /// A port, and the other end of its wire, where every frame follows a virtio-net header of 10 bytes.
    fn port() -> (LeasePort, OwnedFd) {
        let (flags, kind) = (SocketFlags::NONBLOCK, SocketType::SEQPACKET);
        let (ours, network) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        (LeasePort::new(ours, MacAddr([2, 0, 0, 0, 0, 1])), network)
    }

    #[test]
    fn without_a_server_there_is_no_address_after_the_time_limit() {
        let (port, network) = port();
        let limit = Duration::from_millis(20);
        assert!(acquire(port, 1, limit).expect("poll works").is_none());
        let mut frame = [0; 2048];
        let len = read(&network, &mut frame).expect("a discovery");
        let frame = &frame[10..len];
        let headers = RxHeaders::parse(frame, frame.len()).expect("well formed");
        assert_eq!(headers.ports(), Some((68, 67)));
        assert_eq!(headers.dst_ip(), Some(Ipv4Addr::BROADCAST.into()));
        assert_eq!(headers.payload_len, 300);
    }

    #[test]
    fn noise_on_the_wire_is_no_address() {
        let (port, network) = port();
        for len in [0, 1, 9, 10, 24, 60, 342, 1500] {
            write(&network, &vec![0xff; len]).expect("room");
        }
        let limit = Duration::from_millis(20);
        assert!(acquire(port, 1, limit).expect("poll works").is_none());
    }
}
