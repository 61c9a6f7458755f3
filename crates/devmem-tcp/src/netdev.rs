//! A NIC and its TCP/IP stack.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use devmem_uapi::Errno;
use netmem::Dmabuf;
use nic::LinkState;
use steer::RxQueueId;

use crate::backend::Nic;
use crate::bind_options::BindOptions;
use crate::bound::BoundRx;
use crate::bound_target::BoundTarget;
use crate::bound_tx::BoundTx;
use crate::connect::ConnectOptions;
use crate::connecting::Connecting;
use crate::error::{BindError, Error};
use crate::kernel::Rights;
use crate::listener::Listener;
use crate::plan::ReceivePlan;
use crate::queue_stats::{QueueStats, TxStats};
use crate::resolve::{each_in_turn, not_an_address, resolve};
use crate::stream::Stream;
use crate::{kernel, user};

/// A network device: a software NIC with a TCP/IP stack in this process ([`user`](Self::user)), or a network interface of
/// the kernel with the kernel's TCP/IP stack ([`kernel`](Self::kernel)).
///
/// Cloning is cheap: clones are handles of the same device. The stack of a user-space NIC ends when the last handle of it, and of
/// everything made from it, is dropped. That drop waits until the peers have acknowledged what dropped streams have sent: usually one
/// round trip, at most 500 ms. [`close`](Self::close) waits for a time of your choice, and returns whether all was acknowledged.
///
/// A `Netdev` and everything made from it belong to the process that opened it. In a child of fork(2), every call that can
/// fail returns an error of the kind [`Forked`](crate::ErrorKind::Forked) (EOWNERDEAD) at once, other calls return nothing or 0, and
/// dropping a handle has no effect: bindings, settings and connections stay with the parent. The child may open other NICs.
/// Descriptors are close-on-exec. A child that does not call exec(2) keeps its copies of them until it exits; until then a
/// TAP, a kernel socket or a binding to a kernel NIC stays open even if the parent closes it.
#[derive(Clone, Debug)]
pub struct Netdev {
    nic: Nic,
}

impl Netdev {
    pub(crate) fn of_shards(shards: impl IntoIterator<Item = user::Shard>) -> Self {
        let nic = Nic::User(user::Nic::new(shards));
        Self { nic }
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Opens the kernel's interface `name`, such as "eth1". Connections use the kernel's TCP. Binding memory for receiving
    /// needs CAP_NET_ADMIN, Linux 6.12 and a NIC that supports it (`devmem-tcp doctor` checks all three).
    ///
    /// The interface is looked up in the network namespace of the calling thread; use it from threads in that namespace.
    ///
    /// ```
    /// use devmem_tcp::{Frag, Netdev, RxBatch};
    /// use std::io::Write;
    ///
    /// let nic = Netdev::kernel("lo")?;                           // "eth1" in real life
    /// let listener = nic.listen("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// nic.connect(address)?.write_all(b"not steered to a bound queue")?;
    /// let (mut stream, _peer) = listener.accept()?;
    /// let mut batch = RxBatch::with_capacity(64);
    /// assert_eq!(stream.recv(&mut batch)?, 28);
    /// assert!(matches!(batch.iter().next(), Some(Frag::Linear(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such interface.
    pub fn kernel(name: &str) -> Result<Self, Error> {
        Self::of_kernel(name, Rights::All)
    }

    /// Opens the kernel's interface `name` as [`kernel`](Self::kernel) does, for a program that may not change its settings, as in a
    /// pod: an agent of the machine has set it up. Nothing is written to it, and nothing is restored.
    ///
    /// [`plan_receive`](Self::plan_receive) and [`ReceivePlan::apply`] then find the queues that the agent has prepared, and check what
    /// can be seen: on a NIC, header split, RSS table and flow rules; on a netkit (`devmem-tcp lease` makes one), that queues are leased
    /// to it. [`Setup::unseen`](crate::Setup::unseen) returns what cannot. To bind memory to them needs CAP_NET_ADMIN in the user
    /// namespace of the pod, and Linux 7.2.
    ///
    /// ```
    /// # use devmem_tcp::Netdev;
    /// let pod = Netdev::configured("lo")?;
    /// // No agent has set up the loopback interface; the error lists what is missing.
    /// assert!(pod.plan_receive("127.0.0.1:5201".parse()?).apply().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such interface.
    pub fn configured(name: &str) -> Result<Self, Error> {
        Self::of_kernel(name, Rights::Bind)
    }

    /// Opens the kernel's interface `name` as [`configured`](Self::configured) does, for a program without any privilege: the broker that
    /// listens at the path `broker` (`devmem-tcp broker`) binds memory to queues, if its command line grants them to this user. The program
    /// needs the memory, whose descriptor it gives the broker, and access to the broker's socket.
    ///
    /// The bindings are this process' as all others: they end when they are dropped, and do not need the broker any more. A
    /// [`bind_rx`](Self::bind_rx) waits for the broker, which answers within milliseconds, for at most 80 seconds. Binding for sending needs
    /// no privilege, and no broker.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such interface. Whether a broker answers is known only to
    /// [`bind_rx`](Self::bind_rx): of the kind `PermissionDenied` if it has no grant for this user, `NotFound` or `ConnectionRefused` if
    /// there is none, and otherwise the kernel's refusals.
    pub fn brokered(name: &str, broker: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::of_kernel(name, Rights::Ask(broker.into()))
    }

    fn of_kernel(name: &str, rights: Rights) -> Result<Self, Error> {
        let nic = Nic::Kernel(kernel::Nic::by_name(name, rights)?);
        Ok(Self { nic })
    }

    /// Opens the kernel's interface of the route to `peer`, as [`kernel`](Self::kernel) does: for connections to it, no privilege is needed.
    ///
    /// # Errors
    /// [`ErrorKind::NetworkUnreachable`](crate::ErrorKind::NetworkUnreachable) if there is no route.
    pub fn kernel_to(peer: IpAddr) -> Result<Self, Error> {
        let name = devmem_linux::netif::route_interface(peer);
        Self::kernel(&name.map_err(|error| {
            Error::of_errno(
                Errno::ENETUNREACH,
                format!("there is no route to {peer}: {error}"),
            )
            .with_remedy(format!("`ip route get {peer}` asks for the same one"))
        })?)
    }

    /// Returns the name of the kernel's interface; `None` for a NIC in user space.
    pub fn interface(&self) -> Option<&str> {
        self.nic.interface()
    }

    /// Returns whether the NIC is one of a [`pair`](Self::pair): then only calls move its clock, and a thread that polls in the
    /// background would move it at random.
    pub fn is_in_virtual_time(&self) -> bool {
        self.nic.is_in_virtual_time()
    }

    /// Returns a plan of the NIC settings that steer TCP to `local` into device memory. Changes nothing.
    pub fn plan_receive(&self, local: SocketAddr) -> ReceivePlan {
        ReceivePlan::new(self.nic.clone(), local)
    }

    /// Binds `memory` to RX queues with net_iovs of the default size: 64 KiB in user space, one page in the kernel. For the
    /// kernel the memory must be a dma-buf (`udmabuf`, `dma_heap`, or `Dmabuf::memfd`, which becomes a udmabuf). Never waits, except for a
    /// broker ([`brokered`](Self::brokered)).
    ///
    /// Memory has at most one receive binding at a time in this process. A `Dmabuf`, its clones and other `Dmabuf`s of the
    /// same file count as the same memory; two dma-bufs that an exporter made of the same pages do not, because they cannot
    /// be recognised. Memory that is bound for receiving may also be bound for sending ([`bind_tx`](Self::bind_tx)).
    ///
    /// # Errors
    /// [`BindError::InUse`] (EBUSY) if the memory is bound already, or if some of it is still lent from an earlier binding.
    /// Otherwise the kernel's refusals, also in user space, each with its errno and a remedy.
    pub fn bind_rx(&self, memory: &Dmabuf, queues: &[RxQueueId]) -> Result<BoundRx, BindError> {
        BoundRx::bind(&self.nic, memory, queues, None)
    }

    /// Binds `memory` to RX queues as [`bind_rx`](Self::bind_rx) does, with options.
    ///
    /// # Errors
    /// As [`bind_rx`](Self::bind_rx).
    pub fn bind_rx_with(
        &self,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        options: BindOptions,
    ) -> Result<BoundRx, BindError> {
        BoundRx::bind(&self.nic, memory, queues, options.niov_size)
    }

    /// Listens for connections to `address`, and receives their payload into `memory`: sets the NIC up with one queue for device
    /// memory ([`plan_receive`](Self::plan_receive)), binds the memory to it ([`bind_rx`](Self::bind_rx)) and listens
    /// ([`listen`](Self::listen)). Call these for more queues or other options. When the binding is dropped, the settings are restored.
    ///
    /// ```
    /// use devmem_tcp::{Dmabuf, Netdev, RxBatch};
    /// use std::io::Write;
    ///
    /// let (a, b) = Netdev::pair("seed=1".parse()?)?;
    /// let memory = Dmabuf::anonymous(4 << 20)?;
    /// let (listener, rx) = b.listen_into("10.77.0.2:0", &memory)?;
    /// a.connect(listener.local_addr()?)?.write_all(b"into the memory")?;
    /// let (mut stream, _peer) = listener.accept()?;
    /// let mut batch = RxBatch::with_capacity(8);
    /// stream.recv(&mut batch)?;
    /// assert_eq!(batch.device_bytes(), 15);
    /// # drop((batch, stream, listener, rx));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As those calls.
    pub fn listen_into(
        &self,
        address: impl ToSocketAddrs,
        memory: &Dmabuf,
    ) -> Result<(Listener, BoundRx), Error> {
        let address = resolve(address).map_err(not_an_address)?;
        // Nobody knows a port yet that this call selects; connections to any other are steered before the first is accepted.
        let early = (address.port() == 0).then(|| self.listen(address));
        let early = early.transpose()?;
        let local = early.as_ref().map_or(Ok(address), Listener::local_addr)?;
        let setup = self.plan_receive(local).apply()?;
        let bound = self.bind_rx(memory, setup.queues())?;
        let listener = early.map_or_else(|| self.listen(local), Ok)?;
        Ok((listener, bound))
    }

    /// Binds `memory` for sending: streams of this NIC may send any ranges of it. Needs no queue and no privilege.
    ///
    /// # Errors
    /// The kernel's refusals, also in user space, each with its errno and a remedy.
    pub fn bind_tx(&self, memory: &Dmabuf) -> Result<BoundTx, Error> {
        BoundTx::bind(&self.nic, memory)
    }

    /// Binds `memory` as a target: streams of this NIC can receive bytes of known length directly into any ranges of it
    /// ([`RecvHalf::place_next`](crate::RecvHalf::place_next)). Needs no queue and no privilege.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a NIC of the kernel, which receives into bound memory only, and for
    /// memory that the CPU cannot write, such as that of most GPUs.
    pub fn bind_target(&self, memory: &Dmabuf) -> Result<BoundTarget, Error> {
        BoundTarget::bind(&self.nic, memory)
    }

    /// Listens for connections to `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if `address` cannot be resolved; otherwise the port is in use, or the address is not one of
    /// this NIC.
    pub fn listen(&self, address: impl ToSocketAddrs) -> Result<Listener, Error> {
        self.nic.check()?;
        let address = resolve(address).map_err(not_an_address)?;
        Ok(Listener::new(self.nic.listen(address)?))
    }

    /// Connects to `address` and waits until the connection is established or TCP gives up. Of several addresses of a name, each is
    /// tried in turn, as in std.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if `address` cannot be resolved; otherwise there is no route, or the peer refused, reset or
    /// did not answer.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Stream, Error> {
        self.connect_with(address, &ConnectOptions::new())
    }

    /// Connects to `address` within `at_most`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if the connection is not established within that time.
    pub fn connect_timeout(&self, address: SocketAddr, at_most: Duration) -> Result<Stream, Error> {
        self.connect_with(address, &ConnectOptions::new().timeout(at_most))
    }

    /// Connects to `address` as [`connect`](Self::connect) does, with options: source address, timeout (for each address of a name).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        &self,
        address: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Stream, Error> {
        self.nic.check()?;
        each_in_turn(address, |address| {
            let stream = self.begin_stream(address, options)?;
            stream.socket().await_connected(options)?;
            Ok(stream)
        })
    }

    /// Begins to connect to `address`, and returns at once. The timeout of the options does not count: drop the attempt to
    /// give up.
    ///
    /// # Errors
    /// There is no route, or no free port. Other errors come from [`Connecting::try_finish`].
    pub fn begin_connect(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Connecting, Error> {
        self.begin_stream(address, options).map(Connecting::new)
    }

    /// Begins to connect; `connected` of the socket returns the outcome.
    pub(crate) fn begin_stream(
        &self,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Stream, Error> {
        let socket = self.nic.begin_connect(address, options)?;
        Ok(Stream::new(socket))
    }

    /// Waits until the connections of all dropped streams are closed in both directions, for `at_most`, and drops this handle.
    /// Returns whether all are closed. With an interface of the kernel it returns at once: the kernel finishes by itself.
    ///
    /// ```
    /// use devmem_tcp::Netdev;
    /// use std::{io::Write, time::Duration};
    ///
    /// let (a, b) = Netdev::pair("seed=1".parse()?)?;
    /// let listener = b.listen("10.77.0.2:5201")?;
    /// a.connect("10.77.0.2:5201")?.write_all(b"the last words")?;
    /// let (peer, _) = listener.accept()?;
    /// drop(peer);
    /// assert!(a.close(Duration::from_secs(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self, at_most: Duration) -> bool {
        self.nic.close(at_most)
    }

    /// Returns the counters of each RX queue. For an interface of the kernel these are its driver's; empty if it has none,
    /// and in a child of fork(2).
    pub fn queue_stats(&self) -> Vec<QueueStats> {
        self.nic.queue_stats()
    }

    /// Returns the counters of the transmit side, of all shards together. `None` for an interface of the kernel (`ip -s link` shows
    /// its counters), and in a child of fork(2).
    pub fn tx_stats(&self) -> Option<TxStats> {
        self.nic.tx_stats()
    }

    /// Returns the packets dropped so far by reason, without reasons that never occurred. For an interface of the kernel,
    /// these are the counters of its driver (`ip -s link` shows more). Empty in a child of fork(2).
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.nic.drops()
    }

    /// Returns how many received frames crossed to the shard of their connection from another one, where the link delivered
    /// them; each was copied once more than others. A TAP delivers the first packets of a connection anywhere, and
    /// those after three seconds in which the connection sent nothing. A macvtap interface delivers all packets of a
    /// connection to the shard that a secret hash selects, a packet link to that of the connection. 0 with one shard, for an
    /// interface of the kernel, and in a child of fork(2).
    pub fn crossed_frames(&self) -> u64 {
        self.nic.crossed_frames()
    }

    /// Returns the state of the link. For an interface of the kernel: whether it is up, and whether it still exists.
    /// [`LinkState::Gone`] in a child of fork(2).
    pub fn link_state(&self) -> LinkState {
        self.nic.link_state()
    }

    /// Returns the shards of a NIC in user space ([`NetdevBuilder::shards`](crate::NetdevBuilder::shards)), each as a `Netdev`, for programs with one thread
    /// per shard: these share nothing, not even a lock. An interface of the kernel has one shard.
    ///
    /// A shard has the connections that a hash of their addresses and ports selects. So what is made from one is for these
    /// connections only: [`connect`](Self::connect) chooses a local port whose connection is on the shard, a
    /// [`listen`](Self::listen) accepts only connections of the shard (listen on each shard; elsewhere a peer is refused),
    /// and a binding is one of the queues of the shard. In all else a shard is a NIC; settings and counters are those of the
    /// shard. All shards work until the last handle of any of them is dropped.
    ///
    /// ```
    /// use devmem_tcp::Netdev;
    ///
    /// let open = |address| Netdev::builder("mem:shards")?.address(address)?.shards(2).open();
    /// let (a, b) = (open("10.77.0.1/24")?, open("10.77.0.2/24")?);
    /// let listener = b.listen("10.77.0.2:5201")?;                    // of both shards
    /// for (number, shard) in a.shards().into_iter().enumerate() {
    ///     let ours = shard.connect("10.77.0.2:5201")?;
    ///     let (theirs, _peer) = listener.accept()?;
    ///     assert_eq!((ours.shard(), theirs.shard()), (number, number));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shards(&self) -> Vec<Self> {
        self.nic
            .shards()
            .into_iter()
            .map(|nic| Self { nic })
            .collect()
    }

    /// Returns whether both are the same NIC, or the same shard of it.
    pub fn is_same(&self, other: &Self) -> bool {
        self.nic.is_same(&other.nic)
    }

    /// Returns the MTU, the size in bytes of the largest IP packet that is not a super-packet; 0 if the kernel's interface is
    /// gone, and in a child of fork(2).
    pub fn mtu(&self) -> u16 {
        self.nic.mtu()
    }

    /// Returns the addresses of the NIC. Empty in a child of fork(2).
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.nic.addresses()
    }
}
