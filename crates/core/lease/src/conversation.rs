//! The clients of both families, their socket and their clock.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stack::{LeasedAddress, NetworkRoute};

use crate::autoconf::{self, Autoconf};
use crate::client::{self, Client};
use crate::news::AddressEvent;
use crate::own::OwnAddresses;
use crate::port::{LeasePort, ReceivedFrame};

/// Longest sleep; the deadline of an endless lease is never reached.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How long a host that has an IPv6 address waits for a DHCP server, which its network need not have.
const DHCP_WAIT: Duration = Duration::from_secs(6);

/// Most frames that are taken before what is due is sent, so that a flood cannot keep the clients from it.
const ARRIVED_FRAMES: usize = 64;

/// The clients with their socket and their clock.
#[derive(Debug)]
pub(crate) struct Conversation {
    client: Client,
    autoconf: Option<Autoconf>,
    port: LeasePort,
    own: OwnAddresses,
    begin: Instant,
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
    pub(crate) fn new(
        client: Client,
        autoconf: Option<Autoconf>,
        port: LeasePort,
        own: OwnAddresses,
    ) -> Self {
        Self {
            client,
            autoconf,
            port,
            own,
            begin: Instant::now(),
        }
    }

    /// Returns the time since it began.
    pub(crate) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Sends what is due, sleeps until something arrives, is due, or `wake` is readable, for at most that time, and takes what
    /// has arrived. Returns whether `wake` is readable.
    pub(crate) fn turn(
        &mut self,
        wake: Option<&OwnedFd>,
        at_most: Duration,
    ) -> rustix::io::Result<bool> {
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
                Some(ReceivedFrame::Reply(reply, from)) if self.client.expects(&reply) => {
                    let own = self.own.list(now);
                    self.client.on_reply(&reply, from, own, now);
                }
                Some(ReceivedFrame::Router(told, from)) => {
                    if let Some(autoconf) = &mut self.autoconf {
                        autoconf.on_advertisement(&told, from, now);
                    }
                }
                Some(ReceivedFrame::AddressUse(IpAddr::V4(address), what)) => {
                    if let Some(output) = self.client.on_address_use(address, what, now) {
                        self.port.send(&output);
                    }
                }
                Some(ReceivedFrame::AddressUse(IpAddr::V6(address), what)) => {
                    if let Some(autoconf) = &mut self.autoconf {
                        autoconf.on_address_use(address, what, now);
                    }
                }
                Some(ReceivedFrame::Reply(..) | ReceivedFrame::Nothing) => {}
            }
        }
    }

    /// Returns what happened to an address since the last call.
    pub(crate) fn news(&mut self) -> Option<AddressEvent> {
        let v4 = self.client.take_change().map(|change| match change {
            client::Change::Bound(lease) => AddressEvent::Has(LeasedAddress {
                routes: lease.routes,
                ..LeasedAddress::new(lease.address.into(), lease.prefix)
            }),
            client::Change::Lost(address) => AddressEvent::Lost(address.into()),
        });
        let autoconf = self.autoconf.as_mut();
        v4.or_else(|| {
            Some(match autoconf?.take_change()? {
                autoconf::Change::Configured(ours) => AddressEvent::Has(of_router(&ours)),
                autoconf::Change::Expired(address) => AddressEvent::Lost(address.into()),
            })
        })
    }

    /// Returns what the network offered that gave no address.
    pub(crate) fn unusable(&self) -> Vec<String> {
        let v4 = self.client.unusable().map(ToString::to_string);
        let v6 = self.autoconf.as_ref().and_then(Autoconf::unusable);
        v4.into_iter()
            .chain(v6.map(|why| why.to_string()))
            .collect()
    }

    /// Returns whether a program need not wait for more addresses.
    pub(crate) fn is_settled(&self, addresses: &[LeasedAddress], now: Duration) -> bool {
        let has = |v4: bool| addresses.iter().any(|address| address.ip.is_ipv4() == v4);
        let v6_is_settled = self
            .autoconf
            .as_ref()
            .is_none_or(|autoconf| autoconf.is_settled(now));
        has(true) && v6_is_settled || has(false) && now >= DHCP_WAIT
    }
}

fn of_router(ours: &autoconf::Configured) -> LeasedAddress {
    let route = |router| NetworkRoute::default_through(IpAddr::V6(router));
    LeasedAddress {
        is_deprecated: ours.is_deprecated,
        routes: ours.router.map(route).into_iter().collect(),
        ..LeasedAddress::new(ours.address.into(), ours.prefix)
    }
}
