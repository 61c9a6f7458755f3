//! The ways of the library: a NIC with its stack in user space (`packet:`, `macvtap:`, `tap:`, and wires between two NICs), or an interface of
//! the kernel (`kernel:`).
//!
//! The thread that asks which connections are ready polls the NIC itself, as in every call of the library.

mod connection;
mod listening;
mod pool;
mod sends;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use devmem_tcp::stats::NetIovCount;
use devmem_tcp::tcp::TcpOptions;
use devmem_tcp::{Error, Netdev, Poller};

use crate::address::Address;
use crate::log::warn;
use crate::raw::gpu::GpuMemory;
use crate::settings::{Nic, NicKind};
use crate::status::{Failure, Status, text_of};
use crate::wire::{LISTENERS, Network, Ready, Wire};
use connection::{NicWire, Shared, TO_WRITE, keepalive};
use listening::{Listening, PAYLOAD_LISTENER};
use pool::Pool;

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
    listening: Listening,
    /// Locked by the thread that waits.
    reported: Mutex<Reported>,
    name: String,
    copies: u32,
}

impl Nics {
    /// Opens the NIC, and listens on all of its addresses.
    pub(crate) fn listen(settings: &Nic, port: u16, timeout: Duration) -> Result<Self, Failure> {
        let failed = |error: Error| {
            let text = format!(
                "cannot listen for other agents: way={settings}: {}",
                text_of(&error)
            );
            Failure::new(Status::Backend, text)
        };
        let nic = open(&settings.kind, timeout).map_err(failed)?;
        let listening = Listening::new(&nic, port, settings.pool.is_some()).map_err(failed)?;
        let pool = settings.pool.as_ref().map(|pool| {
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), listening.payload_port());
            let opened = Pool::open(&nic, pool, any);
            opened.map_err(|refused| refused.within(&format!("way={settings}")))
        });
        let pool = pool.transpose()?;
        let poller = Poller::new(&nic).map_err(|error| failed(error.into()))?;
        let watched = listening.watch(&poller);
        watched.map_err(|error| failed(error.into()))?;
        Ok(Self {
            listening,
            shared: Arc::new(Shared {
                pool,
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

fn open(settings: &NicKind, timeout: Duration) -> Result<Netdev, Error> {
    let nic = match settings {
        NicKind::Kernel(interface) => return Netdev::kernel(interface),
        NicKind::User(nic) => nic,
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
    builder.tcp(options).on_warning(warn).open()
}

impl Network for Nics {
    fn port(&self) -> u16 {
        self.listening.port()
    }

    fn payload_port(&self) -> u16 {
        self.listening.payload_port()
    }

    fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let mut all = self.shared.nic.addresses();
        // These need an interface beside them.
        all.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        Ok(all)
    }

    fn describe(&self) -> String {
        let copies = match self.copies {
            0 => "does not copy a byte",
            1 => "copies each byte once",
            _ => "copies each byte twice",
        };
        let memory = match &self.shared.pool {
            Some(pool) => format!(" of memory of {}", pool.gpu()),
            None => String::new(),
        };
        format!("{}: the CPU of this side {copies}{memory}", self.name)
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

    fn connect_payload(&self, to: Address, number: u64) -> io::Result<Box<dyn Wire>> {
        let (Some(pool), Address::Tcp(peer)) = (&self.shared.pool, to) else {
            return self.connect(to, number);
        };
        let steered = pool.steer_from(peer)?;
        let wire = NicWire::connect(&self.shared, number, peer)?;
        Ok(Box::new(wire.steered(steered)))
    }

    fn net_iovs(&self) -> Option<NetIovCount> {
        self.shared.pool.as_ref().map(Pool::net_iovs)
    }

    fn register(&self, gpu: &GpuMemory) -> Result<(), Failure> {
        match &self.shared.pool {
            Some(pool) => pool.register(&self.shared.nic, gpu),
            None => Ok(()),
        }
    }

    fn accept(&self, number: u64) -> Option<Box<dyn Wire>> {
        let stream = self.listening.accept(&self.shared.poller)?;
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
            number: match key & !TO_WRITE {
                PAYLOAD_LISTENER => LISTENERS,
                number => number,
            },
            to_read: key & TO_WRITE == 0,
            to_write: key & TO_WRITE != 0,
        }));
    }
}
