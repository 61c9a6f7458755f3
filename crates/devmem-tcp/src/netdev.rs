//! A NIC with its stack.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use devmem_uapi::IfIndex;
use netmem::{Dmabuf, NiovSize};
use nic::{Impairment, Nic};
use stack::Stack;
use steer::RxQueueId;

use crate::background::Background;
use crate::bound::BoundRx;
use crate::bound_tx::BoundTx;
use crate::driver::{Driver, StackIndex, WaitLimit};
use crate::error::{
    BindError, BindTxError, ConnectError, Forked, KernelNic, ListenError, NoSoftwareNic, OpenError,
};
use crate::kernel;
use crate::listener::{ListenSocket, Listener};
use crate::open::NetdevBuilder;
use crate::plan::ReceivePlan;
use crate::stream::{Inner, Socket, Stream};

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
        if !self.driver.is_here() {
            // A child by fork(2): the thread is not there to be joined, the connections are the parent's and go on, and a
            // stack that a thread was at work on at the fork must not even be taken apart.
            std::mem::forget(Arc::clone(&self.driver));
            std::mem::forget(self.background.take());
            return;
        }
        self.driver.linger(LINGER);
        self.driver.close();
        if let Some(background) = &mut self.background {
            background.join();
        }
    }
}

/// A network device: with a TCP/IP stack of its own in this process ([`user`](Self::user)), or an interface of the
/// kernel with the kernel's ([`kernel`](Self::kernel)).
///
/// Cheap to clone: clones are handles of the same device.
///
/// It belongs to the process that opened it, with everything made of it. In a child by fork(2) every call that may fail
/// returns its `Forked` error ([`Forked`](crate::Forked), EOWNERDEAD) at once, the others nothing or 0, and dropping a
/// handle changes nothing: bindings, settings and connections stay the parent's, which goes on undisturbed. A child may open
/// NICs of its own. Descriptors are close-on-exec; a child that executes no program holds its copies until it ends, and
/// until then a TAP, a socket of the kernel or a binding to the kernel's NIC stays in being also when the parent lets go of it.
#[derive(Clone, Debug)]
pub struct Netdev {
    pub(crate) backend: Backend,
}

/// Whose TCP it is.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    User(UserNic),
    Kernel(Arc<kernel::Nic>),
}

/// A NIC in user space: its driver, and which of the driver's stacks.
#[derive(Clone, Debug)]
pub(crate) struct UserNic {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
}

impl UserNic {
    /// Sends the SYN.
    fn begin_connect(&self, address: SocketAddr) -> Result<Arc<Inner>, ConnectError> {
        let Self { shared, at } = self;
        let connect = |stack: &mut Stack, now| stack.connect(address, now);
        let socket = shared.driver.with(*at, connect)??;
        Ok(Inner::new(Arc::clone(shared), *at, socket))
    }

    /// Connects and waits until the connection stands, or TCP gives up.
    fn connect(&self, address: SocketAddr) -> Result<Arc<Inner>, ConnectError> {
        let inner = self.begin_connect(address)?;
        // Without a limit, the wait ends with a result.
        let connected = inner.connected(WaitLimit::Forever);
        connected.ok_or(ConnectError::TimedOut)??;
        Ok(inner)
    }

    fn listen(&self, address: SocketAddr) -> Result<Arc<Inner>, ListenError> {
        let Self { shared, at } = self;
        let listen = |stack: &mut Stack, _| stack.listen(address, BACKLOG);
        let socket = shared.driver.with(*at, listen)??;
        Ok(Inner::new(Arc::clone(shared), *at, socket))
    }
}

impl Netdev {
    /// Refuses in a child by fork(2) of the process that opened it.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        match &self.backend {
            Backend::User(nic) => nic.shared.driver.check(),
            Backend::Kernel(nic) => nic.check(),
        }
    }

    pub(crate) fn of_stack(shared: Arc<Shared>, at: StackIndex) -> Self {
        Self {
            backend: Backend::User(UserNic { shared, at }),
        }
    }

    /// The interface `name` of the kernel, as "eth1". Its connections are the kernel's; binding memory for receiving
    /// takes CAP_NET_ADMIN, and Linux 6.12 with a NIC that can (`devmem-tcp doctor` tells).
    ///
    /// It belongs to the calling thread's network namespace; use it from threads in the same one.
    ///
    /// ```
    /// use devmem_tcp::{Frag, Netdev, RxBatch};
    /// use std::io::Write;
    ///
    /// let nic = Netdev::kernel("lo")?;                           // "eth1" in real life
    /// let listener = nic.listen("127.0.0.1:0")?;
    /// let address = listener.local_addr().ok_or("it listens")?;
    /// nic.connect(address)?.write_all(b"not steered to a bound queue")?;
    /// let (mut stream, _peer) = listener.accept()?;
    /// let mut batch = RxBatch::with_capacity(64);
    /// assert_eq!(stream.recv(&mut batch)?, 28);
    /// assert!(matches!(batch.iter().next(), Some(Frag::Linear(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such interface.
    pub fn kernel(name: &str) -> Result<Self, OpenError> {
        Ok(Self {
            backend: Backend::Kernel(kernel::Nic::by_name(name)?),
        })
    }

    /// The name of the kernel's interface; `None` for a NIC in user space.
    pub fn interface(&self) -> Option<&str> {
        match &self.backend {
            Backend::User(_) => None,
            Backend::Kernel(nic) => Some(nic.name()),
        }
    }

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

    /// Binds `memory` to RX queues with net_iovs of the usual size: 64 KiB in user space, one page in the kernel, whose
    /// memory must be a dma-buf (`udmabuf`, `dma_heap`, or `Dmabuf::memfd`, which becomes a udmabuf).
    ///
    /// Memory has one receive binding at a time, in this process: the same `Dmabuf`, a clone of it, or another one of the
    /// same file (two dma-bufs that an exporter made of the same pages cannot be told from different memory). Sending
    /// from it meanwhile is allowed ([`bind_tx`](Self::bind_tx)).
    ///
    /// # Errors
    /// Each of the kernel's refusals, with its errno and what to do. [`BindError::InUse`] (EBUSY): the memory is bound
    /// already, or some of it is still lent from an earlier binding, and what to do about it. Never waits.
    pub fn bind_rx(&self, memory: &Dmabuf, queues: &[RxQueueId]) -> Result<BoundRx, BindError> {
        self.check()?;
        BoundRx::bind(self, memory, queues, None)
    }

    /// Binds `memory` to RX queues with net_iovs of `niov_size`. The kernel has one page before Linux 7.3; then it asks
    /// the driver (`rx-page-size`), and the memory's pieces must be multiples of it.
    ///
    /// # Errors
    /// As [`bind_rx`](Self::bind_rx).
    pub fn bind_rx_sized(
        &self,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: NiovSize,
    ) -> Result<BoundRx, BindError> {
        self.check()?;
        BoundRx::bind(self, memory, queues, Some(niov_size))
    }

    /// Binds `memory` for sending: streams of this NIC may send any ranges of it. No queue, no privilege.
    ///
    /// # Errors
    /// Each of the kernel's refusals, with its errno and what to do.
    pub fn bind_tx(&self, memory: &Dmabuf) -> Result<BoundTx, BindTxError> {
        self.check()?;
        BoundTx::bind(self, memory)
    }

    /// Listens for connections to `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// Not an address; the port is taken or the address is not this NIC's.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener, ListenError> {
        self.check()?;
        let address = resolve(address).map_err(ListenError::Address)?;
        let socket = match &self.backend {
            Backend::User(nic) => ListenSocket::User(nic.listen(address)?),
            Backend::Kernel(nic) => {
                ListenSocket::Kernel(kernel::Listening::new(nic, address, BACKLOG)?)
            }
        };
        Ok(Listener::new(socket))
    }

    /// Connects to `address` and waits until the connection stands, or TCP gives up.
    ///
    /// # Errors
    /// Not an address; no route; refused, reset or unanswered.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Stream, ConnectError> {
        self.check()?;
        let address = resolve(address).map_err(ConnectError::Address)?;
        let socket = match &self.backend {
            Backend::User(nic) => Socket::User(nic.connect(address)?),
            Backend::Kernel(nic) => Socket::Kernel(kernel::Socket::connect(nic, address)?),
        };
        Ok(Stream::new(socket))
    }

    /// Begins to connect; [`Socket::connected`] tells what becomes of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn begin_connect(&self, address: SocketAddr) -> Result<Stream, ConnectError> {
        self.check()?;
        let socket = match &self.backend {
            Backend::User(nic) => Socket::User(nic.begin_connect(address)?),
            Backend::Kernel(nic) => Socket::Kernel(kernel::Socket::begin_connect(nic, address)?),
        };
        Ok(Stream::new(socket))
    }

    /// Looks at or changes the NIC of the user-space stack: rings, channels, RSS, rules, counters.
    ///
    /// # Errors
    /// [`NoSoftwareNic`]: it is an interface of the kernel, or of the process that forked this one.
    pub fn with_nic<T>(&self, call: impl FnOnce(&mut Nic) -> T) -> Result<T, NoSoftwareNic> {
        match &self.backend {
            Backend::User(UserNic { shared, at }) => {
                Ok(shared.driver.with(*at, |stack, _| call(stack.nic_mut()))?)
            }
            Backend::Kernel(nic) => Err(NoSoftwareNic::Kernel(KernelNic {
                interface: nic.name().to_owned(),
            })),
        }
    }

    /// Packets dropped so far by reason; reasons that never happened are left out. Of an interface of the kernel, what
    /// its driver counts (`ip -s link` counts more). None in a child by fork(2).
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        match &self.backend {
            Backend::User(UserNic { shared, at }) => {
                let drops =
                    |stack: &mut Stack, _| stack.drops().filter(|(_, count)| *count > 0).collect();
                shared.driver.with(*at, drops).unwrap_or_default()
            }
            Backend::Kernel(nic) => nic.drops(),
        }
    }

    /// The addresses of the NIC. None of a user-space NIC in a child by fork(2).
    pub fn addresses(&self) -> Vec<IpAddr> {
        match &self.backend {
            Backend::User(UserNic { shared, at }) => {
                let addresses = |stack: &mut Stack, _| stack.addresses().collect();
                shared.driver.with(*at, addresses).unwrap_or_default()
            }
            Backend::Kernel(nic) => nic.addresses(),
        }
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
