//! A NIC with its stack.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use devmem_uapi::IfIndex;
use netmem::{Dmabuf, NiovSize};
use nic::{Impairment, Nic};
use steer::RxQueueId;

use crate::background::Background;
use crate::bound::BoundRx;
use crate::bound_tx::BoundTx;
use crate::driver::{Driver, StackIndex};
use crate::error::{BindError, BindTxError, ConnectError, ListenError, OpenError};
use crate::listener::Listener;
use crate::open::NetdevBuilder;
use crate::plan::ReceivePlan;
use crate::stream::{Inner, Stream};

/// A driver and the thread that keeps it alive; every handle of a NIC shares it.
pub(crate) struct Shared {
    pub(crate) driver: Arc<Driver>,
    background: Option<Background>,
}

impl Shared {
    /// Real time: with a background thread. Virtual time: the calls alone move it.
    pub(crate) fn new(driver: Arc<Driver>) -> std::io::Result<Arc<Self>> {
        let is_virtual = driver.lock().clock.is_virtual();
        let background = if is_virtual {
            None
        } else {
            Some(Background::start(&driver)?)
        };
        Ok(Arc::new(Self { driver, background }))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// How long the last handle waits for connections to say goodbye.
const LINGER: Duration = Duration::from_millis(500);

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.linger(LINGER);
        self.driver.close();
        if let Some(background) = &mut self.background {
            background.join();
        }
    }
}

/// A network device with a TCP/IP stack of its own in this process.
///
/// Cheap to clone: clones are handles of the same device.
#[derive(Clone, Debug)]
pub struct Netdev {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
}

impl Netdev {
    /// A user-space NIC on `link` (`tap:NAME` or `mem:NAME`) with the address `address` (`10.77.0.2/24`).
    /// [`Netdev::builder`] has the options.
    ///
    /// # Errors
    /// The texts are not a link or an address; the link cannot be had, with the reason.
    pub fn user(link: &str, address: &str) -> Result<Self, OpenError> {
        Self::builder(link)?.address(address)?.open()
    }

    /// The options of a user-space NIC on `link`.
    ///
    /// # Errors
    /// The text is not a link.
    pub fn builder(link: &str) -> Result<NetdevBuilder, OpenError> {
        Ok(NetdevBuilder::new(link.parse()?))
    }

    /// Two user-space NICs, 10.77.0.1 and 10.77.0.2 (and fd77::1, fd77::2), on an in-memory wire with the given
    /// impairments, in virtual time: nothing waits, and a seed gives the same run again.
    ///
    /// # Errors
    /// Memory for the queues cannot be had.
    pub fn pair(impairment: Impairment) -> Result<(Self, Self), OpenError> {
        crate::open::pair(impairment)
    }

    /// What must be set up so that TCP to `local` lands in device memory.
    pub fn plan_receive(&self, local: SocketAddr) -> ReceivePlan {
        ReceivePlan::new(self.clone(), local)
    }

    /// Binds `memory` to RX queues with net_iovs of the default size.
    ///
    /// # Errors
    /// Each of the kernel's refusals, with its errno and what to do.
    pub fn bind_rx(&self, memory: &Dmabuf, queues: &[RxQueueId]) -> Result<BoundRx, BindError> {
        self.bind_rx_sized(memory, queues, NiovSize::default())
    }

    /// Binds `memory` to RX queues with net_iovs of `niov_size`.
    ///
    /// # Errors
    /// As [`bind_rx`](Self::bind_rx).
    pub fn bind_rx_sized(
        &self,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: NiovSize,
    ) -> Result<BoundRx, BindError> {
        BoundRx::bind(self, memory, queues, niov_size)
    }

    /// Binds `memory` for sending: streams of this NIC may send any ranges of it. No queue, no privilege.
    ///
    /// # Errors
    /// Each of the kernel's refusals, with its errno and what to do.
    pub fn bind_tx(&self, memory: &Dmabuf) -> Result<BoundTx, BindTxError> {
        BoundTx::bind(self, memory)
    }

    /// Listens for connections to `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// Not an address; the port is taken or the address is not this NIC's.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener, ListenError> {
        let address = resolve(address).map_err(ListenError::Address)?;
        let socket = self
            .shared
            .driver
            .with(self.at, |stack, _| stack.listen(address, BACKLOG))?;
        Ok(Listener::new(Inner::new(
            Arc::clone(&self.shared),
            self.at,
            socket,
        )))
    }

    /// Connects to `address` and waits until the connection stands, or TCP gives up.
    ///
    /// # Errors
    /// Not an address; no route; refused, reset or unanswered.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Stream, ConnectError> {
        let address = resolve(address).map_err(ConnectError::Address)?;
        let stream = self.begin_connect(address)?;
        // Without a limit, the wait ends with a result.
        stream.connected().ok_or(ConnectError::TimedOut)??;
        Ok(stream)
    }

    /// Sends the SYN; [`Stream::connected`] tells what becomes of it.
    pub(crate) fn begin_connect(&self, address: SocketAddr) -> Result<Stream, ConnectError> {
        let socket = self
            .shared
            .driver
            .with(self.at, |stack, now| stack.connect(address, now))?;
        let inner = Inner::new(Arc::clone(&self.shared), self.at, socket);
        Ok(Stream::new(inner))
    }

    /// Looks at or changes the NIC: rings, channels, RSS, rules, counters.
    pub fn with_nic<T>(&self, call: impl FnOnce(&mut Nic) -> T) -> T {
        self.shared
            .driver
            .with(self.at, |stack, _| call(stack.nic_mut()))
    }

    /// Packets dropped so far by reason; reasons that never happened are left out.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.shared.driver.with(self.at, |stack, _| {
            stack.drops().filter(|(_, count)| *count > 0).collect()
        })
    }

    /// The addresses of the NIC.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.shared
            .driver
            .with(self.at, |stack, _| stack.addresses().collect())
    }
}

/// What a stack is to itself: it has one interface.
pub(crate) const IFINDEX: IfIndex = IfIndex(1);

/// Connections that may wait to be accepted; Linux' SOMAXCONN is 4096 (include/linux/socket.h).
const BACKLOG: usize = 4096;

fn resolve(address: impl ToSocketAddrs) -> std::io::Result<SocketAddr> {
    let no_address =
        || std::io::Error::new(std::io::ErrorKind::InvalidInput, "the name has no address");
    address.to_socket_addrs()?.next().ok_or_else(no_address)
}
