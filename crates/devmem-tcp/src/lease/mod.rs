//! Addresses that a NIC gets from its network: an IPv4 address that a DHCP server lends, and an IPv6 address in a prefix that a
//! router advertises. They are acquired before the NIC is opened, renewed by a thread while it is open, and the IPv4 address is
//! returned when it is closed.
//!
//! [`client::Client`] and [`autoconf::Autoconf`] decide, without I/O; [`port::LeasePort`] exchanges frames on a socket beside that
//! of the link.

mod advertisement;
mod autoconf;
mod client;
mod defence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod fuzz_replay;
mod message;
mod offer;
mod own;
mod port;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use stack::{LentAddress, NetworkRoute};

use crate::driver::{Driver, StackIndex, set};
use autoconf::Autoconf;
use client::Client;
pub(crate) use own::OwnAddresses;
use port::Heard;
pub(crate) use port::LeasePort;

/// Longest sleep; the deadline of an endless lease is never reached.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How long a host that has an IPv6 address waits for a DHCP server, which its network need not have.
const DHCP_WAIT: Duration = Duration::from_secs(6);

/// The address families that a NIC can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 alone: the MTU is too small for IPv6.
    Ipv4,
    /// IPv4 and IPv6.
    Both,
}

/// What happened to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    /// The host has it, or other facts about it.
    Has(LentAddress),
    /// The host may no longer use it.
    Lost(IpAddr),
}

/// The clients of both families with their socket and their clock.
struct Conversation {
    client: Client,
    autoconf: Option<Autoconf>,
    port: LeasePort,
    own: OwnAddresses,
    begin: Instant,
}

/// Addresses that were acquired, and that nothing renews yet.
pub(crate) struct Acquired {
    conversation: Conversation,
    addresses: Vec<LentAddress>,
}

/// Renews addresses, as long as this value exists; dropping it returns the one of a DHCP server.
pub(crate) struct LeaseKeeper {
    /// Ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What came of waiting for addresses.
pub(crate) enum Outcome {
    /// There is an address at least.
    Acquired(Box<Acquired>),
    /// There was none within the time. What was offered, and why it was not usable.
    Nothing(Vec<String>),
}

/// Acquires addresses; `random` makes the numbers of the messages unpredictable. None of `own`, the addresses of this machine, is
/// accepted from a server.
///
/// # Errors
/// poll(2) fails.
pub(crate) fn acquire(
    port: LeasePort,
    own: OwnAddresses,
    families: Families,
    random: u64,
    at_most: Duration,
) -> rustix::io::Result<Outcome> {
    let mac = port.mac().0;
    let mut conversation = Conversation {
        client: Client::new(mac, random),
        autoconf: match families {
            Families::Ipv4 => None,
            Families::Both => Some(Autoconf::new(mac)),
        },
        port,
        own,
        begin: Instant::now(),
    };
    let mut addresses = Vec::new();
    loop {
        while let Some(news) = conversation.news() {
            note(&mut addresses, &news);
        }
        let now = conversation.begin.elapsed();
        let is_over = now >= at_most;
        if is_over && addresses.is_empty() {
            return Ok(Outcome::Nothing(conversation.unusable()));
        }
        if is_over || conversation.is_settled(&addresses, now) {
            return Ok(Outcome::Acquired(Box::new(Acquired {
                conversation,
                addresses,
            })));
        }
        // Whether the clients are settled depends on the time, too.
        let pause = Duration::from_millis(100);
        conversation.turn(None, pause.min(at_most - now))?;
    }
}

/// Notes what happened in the list of addresses; returns whether that is a change.
fn note(addresses: &mut Vec<LentAddress>, news: &News) -> bool {
    let ip = match news {
        News::Has(address) => address.ip,
        News::Lost(ip) => *ip,
    };
    let at = addresses.iter().position(|address| address.ip == ip);
    let before = at.map(|at| addresses.remove(at));
    let now = match news {
        News::Has(address) => Some(address),
        News::Lost(_) => None,
    };
    addresses.extend(now.cloned());
    before.as_ref() != now
}

/// Returns the address of a DHCP server.
impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(output) = self.client.release() {
            self.port.send(&output);
        }
    }
}

impl Conversation {
    /// Sends what is due, sleeps until something arrives, is due, or `wake` is readable, for at most that time, and takes what
    /// has arrived. Returns whether `wake` is readable.
    fn turn(&mut self, wake: Option<&OwnedFd>, at_most: Duration) -> rustix::io::Result<bool> {
        let deadline = self.send_due();
        if self.client.has_change() || self.autoconf.as_ref().is_some_and(Autoconf::has_change) {
            return Ok(false);
        }
        let sleep = deadline.saturating_sub(self.begin.elapsed()).min(at_most);
        let sleep = Timespec::try_from(sleep.min(LONGEST_SLEEP)).unwrap_or_default();
        let mut fds = vec![PollFd::new(&self.port, PollFlags::IN)];
        fds.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        match poll(&mut fds, Some(&sleep)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let woken = fds.get(1).is_some_and(|wake| !wake.revents().is_empty());
        self.take_arrived();
        Ok(woken)
    }

    /// Sends what is due; returns when something is due next.
    fn send_due(&mut self) -> Duration {
        let now = self.begin.elapsed();
        while self.client.is_due(now) && !self.client.has_change() {
            if let Some(output) = self.client.poll(now) {
                self.port.send(&output);
            }
        }
        let Some(autoconf) = &mut self.autoconf else {
            return self.client.deadline();
        };
        while autoconf.deadline() <= now && !autoconf.has_change() {
            if let Some(output) = autoconf.poll(now) {
                self.port.send_v6(output);
            }
        }
        self.client.deadline().min(autoconf.deadline())
    }

    /// Passes the frames that have arrived to the clients.
    fn take_arrived(&mut self) {
        let now = self.begin.elapsed();
        for _ in 0..ARRIVED_FRAMES {
            match self.port.receive() {
                None => return,
                Some(Heard::Reply(reply, from)) if self.client.expects(&reply) => {
                    let own = self.own.list(now);
                    self.client.on_reply(&reply, from, own, now);
                }
                Some(Heard::Router(told, from)) => {
                    if let Some(autoconf) = &mut self.autoconf {
                        autoconf.on_advertisement(&told, from, now);
                    }
                }
                Some(Heard::Sighting(IpAddr::V4(address), what)) => {
                    if let Some(output) = self.client.on_sighting(address, what, now) {
                        self.port.send(&output);
                    }
                }
                Some(Heard::Sighting(IpAddr::V6(address), what)) => {
                    if let Some(autoconf) = &mut self.autoconf {
                        autoconf.on_sighting(address, what, now);
                    }
                }
                Some(Heard::Reply(..) | Heard::Nothing) => {}
            }
        }
    }

    /// Returns what happened to an address since the last call.
    fn news(&mut self) -> Option<News> {
        let v4 = self.client.take_change().map(|change| match change {
            client::Change::Bound(lease) => News::Has(LentAddress {
                routes: lease.routes,
                ..LentAddress::new(lease.address.into(), lease.prefix)
            }),
            client::Change::Lost(address) => News::Lost(address.into()),
        });
        let autoconf = self.autoconf.as_mut();
        v4.or_else(|| {
            Some(match autoconf?.take_change()? {
                autoconf::Change::Configured(ours) => News::Has(of_router(&ours)),
                autoconf::Change::Expired(address) => News::Lost(address.into()),
            })
        })
    }

    /// Returns what the network offered that gave no address.
    fn unusable(&self) -> Vec<String> {
        let v4 = self.client.unusable().map(ToString::to_string);
        let v6 = self.autoconf.as_ref().and_then(Autoconf::unusable);
        v4.into_iter()
            .chain(v6.map(|why| why.to_string()))
            .collect()
    }

    /// Returns whether a program need not wait for more addresses.
    fn is_settled(&self, addresses: &[LentAddress], now: Duration) -> bool {
        let has = |v4: bool| addresses.iter().any(|address| address.ip.is_ipv4() == v4);
        let v6_is_settled = self
            .autoconf
            .as_ref()
            .is_none_or(|autoconf| autoconf.is_settled(now));
        has(true) && v6_is_settled || has(false) && now >= DHCP_WAIT
    }
}

fn of_router(ours: &autoconf::Configured) -> LentAddress {
    let route = |router| NetworkRoute::default_through(IpAddr::V6(router));
    LentAddress {
        is_deprecated: ours.is_deprecated,
        routes: ours.router.map(route).into_iter().collect(),
        ..LentAddress::new(ours.address.into(), ours.prefix)
    }
}

/// Most frames that are taken before what is due is sent, so that a flood cannot keep the clients from it.
const ARRIVED_FRAMES: usize = 64;

impl Acquired {
    /// Returns the addresses.
    pub(crate) fn addresses(&self) -> Vec<LentAddress> {
        self.addresses.clone()
    }

    /// Starts the thread that renews the addresses of a NIC, and changes those of the stacks of its shards with them.
    ///
    /// # Errors
    /// The thread or its eventfd cannot be made.
    pub(crate) fn keep(self, shards: Vec<Arc<Driver>>) -> std::io::Result<LeaseKeeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let watched = Arc::clone(&stop);
        let Self {
            mut conversation,
            mut addresses,
        } = self;
        let keep = move || {
            // An error of poll(2) means that the kernel has no memory: nothing is renewed, and the address is returned.
            while let Ok(false) = conversation.turn(Some(&watched), LONGEST_SLEEP) {
                while let Some(news) = conversation.news() {
                    if note(&mut addresses, &news) {
                        shards.iter().for_each(|shard| tell(&news, shard));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("devmem-tcp-auto".to_owned());
        let thread = Some(thread.spawn(keep)?);
        Ok(LeaseKeeper { stop, thread })
    }
}

/// Changes an address of the stack of a shard.
fn tell(news: &News, shard: &Driver) {
    let told = shard.with(StackIndex(0), |stack, now| match news {
        News::Has(address) => stack.add_address(address, now),
        News::Lost(address) => {
            stack.remove_address(*address, now);
            Ok(())
        }
    });
    // The clients accept only addresses of hosts, and routers on the link. The other error is that of a child of fork(2), which
    // has no threads.
    debug_assert!(!matches!(told, Ok(Err(_))), "{news:?}");
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

    use std::net::Ipv4Addr;

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
        assert!(matches!(
            acquire(port, OwnAddresses::none(), Families::Ipv4, 1, limit),
            Ok(Outcome::Nothing(offered)) if offered.is_empty()
        ));
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
        assert!(matches!(
            acquire(port, OwnAddresses::none(), Families::Ipv4, 1, limit),
            Ok(Outcome::Nothing(offered)) if offered.is_empty()
        ));
    }
}
