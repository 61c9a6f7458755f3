//! The ways of the library: a NIC with its stack in user space (`packet:`, `macvtap:`, `tap:`, and wires between two NICs), or an interface of
//! the kernel (`kernel:`).
//!
//! The thread that asks which connections are ready polls the NIC itself, as in every call of the library.

mod connection;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use devmem_tcp::tcp::TcpOptions;
use devmem_tcp::{Error, Listener, Netdev, Poller};

use crate::address::Address;
use crate::log::warn;
use crate::settings::Nic;
use crate::status::one_line;
use crate::wire::{LISTENERS, Network, Ready, Wire};
use connection::{NicWire, Shared, TO_WRITE, keepalive};

/// Rest before connections are reported again that nobody has read: their bytes are not expected yet, or there is no room for notifications.
const UNREAD_REST: Duration = Duration::from_millis(1);

/// Connections that are ready and were not collected.
#[derive(Debug, Default)]
struct Reported {
    keys: Vec<u64>,
    /// [`Shared::used`] before the last wait, if that ended with a report.
    at: Option<u64>,
}

/// A NIC.
#[derive(Debug)]
pub(crate) struct Nics {
    shared: Arc<Shared>,
    listener: Listener,
    port: u16,
    /// Locked by the thread that waits.
    reported: Mutex<Reported>,
    name: String,
    copies: u32,
}

impl Nics {
    /// Opens the NIC, and listens on all of its addresses.
    pub(crate) fn listen(settings: &Nic, port: u16, timeout: Duration) -> Result<Self, Error> {
        let nic = open(settings, timeout)?;
        // Both families on one socket; a kernel without IPv6 has IPv4.
        let listener = nic
            .listen((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| nic.listen((Ipv4Addr::UNSPECIFIED, port)))?;
        listener.set_nonblocking(true);
        let poller = Poller::new(&nic)?;
        poller.add(LISTENERS, &listener.watch())?;
        Ok(Self {
            port: listener.local_addr()?.port(),
            listener,
            shared: Arc::new(Shared {
                nic,
                poller,
                timeout,
                used: AtomicU64::new(0),
            }),
            reported: Mutex::default(),
            name: settings.to_string(),
            copies: settings.copies(),
        })
    }
}

fn open(settings: &Nic, timeout: Duration) -> Result<Netdev, Error> {
    let nic = match settings {
        Nic::Kernel(interface) => return Netdev::kernel(interface),
        Nic::User(nic) => nic,
    };
    let mut builder = Netdev::builder(nic.link.clone())?.impair(nic.impairment);
    for address in &nic.addresses {
        builder = builder.address(address)?;
    }
    if let Some(gateway) = nic.gateway {
        builder = builder.gateway(gateway);
    }
    let mut options = TcpOptions::default();
    options.nodelay = true;
    options.keepalive = Some(keepalive(timeout));
    options.user_timeout = Some(timeout);
    let warn_line = |text: &str| warn(&one_line(&text));
    builder.tcp(options).on_warning(warn_line).open()
}

impl Network for Nics {
    fn port(&self) -> u16 {
        self.port
    }

    fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let mut all = self.shared.nic.addresses();
        // These need an interface beside them.
        all.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        Ok(all)
    }

    fn describe(&self) -> String {
        let copies = match self.copies {
            1 => "once",
            _ => "twice",
        };
        format!("{}: this side copies each byte {copies}", self.name)
    }

    fn copies(&self) -> u32 {
        self.copies
    }

    fn connect(&self, to: Address, number: u64) -> io::Result<Box<dyn Wire>> {
        let Address::Tcp(to) = to else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(Box::new(NicWire::connect(&self.shared, number, to)?))
    }

    fn accept(&self, number: u64) -> Option<Box<dyn Wire>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if error.kind() != devmem_tcp::ErrorKind::WouldBlock {
                    // It would be reported without end.
                    self.shared.poller.remove(LISTENERS);
                    warn(&format!(
                        "no agent can connect any more: {}",
                        one_line(&error)
                    ));
                }
                return None;
            }
        };
        let wire = NicWire::accepted(&self.shared, number, stream).ok()?;
        Some(Box::new(wire))
    }

    fn collect(&self, ready: &mut Vec<Ready>) -> io::Result<()> {
        let Some(mut reported) = self.try_reported() else {
            return Ok(());
        };
        reported.drain_to(ready);
        self.shared
            .poller
            .wait_ready(&mut reported.keys, Duration::ZERO)?;
        reported.drain_to(ready);
        Ok(())
    }

    fn wait(&self, at_most: Duration) {
        let reported = self.reported.lock();
        self.wait_with(
            &mut reported.unwrap_or_else(PoisonError::into_inner),
            at_most,
        );
    }

    fn pause(&self, at_most: Duration) {
        match self.try_reported() {
            Some(mut reported) => self.wait_with(&mut reported, at_most),
            None => std::thread::yield_now(),
        }
    }

    fn wake(&self) {
        self.shared.poller.wake();
    }
}

impl Nics {
    /// Returns what was reported, unless another thread waits and so polls the NIC: that one is woken, and this one polls from now on.
    fn try_reported(&self) -> Option<MutexGuard<'_, Reported>> {
        match self.reported.try_lock() {
            Ok(reported) => Some(reported),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                self.shared.poller.wake();
                None
            }
        }
    }

    fn wait_with(&self, reported: &mut Reported, at_most: Duration) {
        let used = self.shared.used.load(Ordering::Relaxed);
        if reported.at == Some(used) {
            std::thread::sleep(UNREAD_REST);
        }
        let waited = self.shared.poller.wait_ready(&mut reported.keys, at_most);
        if waited.is_err() {
            // Without descriptors or memory the thread polls.
            std::thread::sleep(UNREAD_REST);
        }
        reported.at = (!reported.keys.is_empty()).then_some(used);
    }
}

impl Reported {
    fn drain_to(&mut self, ready: &mut Vec<Ready>) {
        ready.extend(self.keys.drain(..).map(|key| Ready {
            number: key & !TO_WRITE,
            to_read: key & TO_WRITE == 0,
            to_write: key & TO_WRITE != 0,
        }));
    }
}
