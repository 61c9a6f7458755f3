//! The NIC under test, and an ordinary program at the other end of its cable.

use std::env;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use devmem_linux::ethtool::{Ethtool, InstalledRule, NTUPLE, Rings, RssContext};
use devmem_linux::netif;
use devmem_linux::netns::NetNs;
use devmem_linux::nic_setup;
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use devmem_tcp::{BoundRx, Dmabuf, Frag, Listener, Netdev, RxBatch, Setup, Stream};

pub const PORT: u16 = 5201;
/// Far longer than anything here takes: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// More than two rings of 1,024 pages, less than udmabuf's usual limit.
pub const MEMORY_BYTES: usize = 16 << 20;

/// There is one NIC: its tests take turns.
static TURN: Mutex<()> = Mutex::new(());

pub struct Bench {
    pub name: String,
    pub nic: Netdev,
    pub ip: IpAddr,
    peer: NetNs,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    /// The NIC, or a word about why `test` is skipped.
    pub fn new(test: &str) -> Option<Self> {
        Self::with_ip(test, IpAddr::is_ipv4)
    }

    /// As `new`, at another of the NIC's addresses.
    pub fn with_ip(test: &str, wanted: fn(&IpAddr) -> bool) -> Option<Self> {
        let Ok(name) = env::var("DEVMEM_TEST_NIC") else {
            skip_outside_guest(test, GuestHas::Nic, "DEVMEM_TEST_NIC names no NIC");
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let nic = Netdev::kernel(&name).expect("DEVMEM_TEST_NIC names an interface");
        let addresses = nic.addresses();
        let Some(ip) = addresses.into_iter().find(wanted) else {
            skip_outside_guest(test, GuestHas::Nic, "the NIC has no address of the kind");
            return None;
        };
        let peer = env::var("DEVMEM_TEST_PEER").unwrap_or("peer".to_owned());
        Some(Self {
            name,
            nic,
            ip,
            peer: NetNs::open(&peer).expect("the other end's namespace"),
            _turn: turn,
        })
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, PORT)
    }

    /// Runs `work` in the namespace of the other end: sockets that it makes belong there.
    pub fn at_peer<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.peer.run(work).unwrap()
    }

    /// The name of the NIC at the other end, in its namespace, and its address.
    pub fn peer_nic(&self) -> (String, IpAddr) {
        let find = || {
            let all = netif::interfaces().unwrap().into_iter();
            let mut found = all.flat_map(|(index, name, ..)| {
                let addresses = netif::addresses(index).unwrap().into_iter();
                let v4 = addresses.filter(|ip| ip.is_ipv4() && !ip.is_loopback());
                v4.map(move |ip| (name.clone(), ip))
            });
            found.next().expect("the other end has an address")
        };
        self.at_peer(find)
    }

    /// The address of the other end.
    pub fn peer_ip(&self) -> IpAddr {
        self.peer_nic().1
    }

    /// An ordinary program's connection from the other end.
    pub fn connect_from_peer(&self) -> TcpStream {
        self.connect_from_peer_to(self.address())
    }

    pub fn connect_from_peer_to(&self, address: SocketAddr) -> TcpStream {
        self.at_peer(move || TcpStream::connect(address).unwrap())
    }

    /// An ordinary program's listener at the other end.
    pub fn listen_at_peer(&self) -> TcpListener {
        self.at_peer(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap())
    }

    /// Our end of a connection to an ordinary program, and the thread that reads everything at the other end.
    pub fn connect_to_reader(&self) -> (Stream, JoinHandle<Vec<u8>>) {
        let listener = self.listen_at_peer();
        let to = (self.peer_ip(), listener.local_addr().unwrap().port());
        let stream = self.nic.connect(to).unwrap();
        stream.set_timeout(Some(PATIENCE));
        (stream, read(listener.accept().unwrap().0))
    }

    /// Everything that set-up touches, as it can be read.
    pub fn settings(&self) -> (Rings, RssContext, Vec<InstalledRule>, Vec<RssContext>, bool) {
        let mut ethtool = Ethtool::by_name(&self.name).unwrap();
        let ntuple = ethtool.feature(NTUPLE).unwrap().unwrap();
        (
            ethtool.rings().unwrap(),
            ethtool.rss().unwrap(),
            ethtool.rules().unwrap(),
            ethtool.rss_contexts().unwrap_or_default(),
            ntuple.active,
        )
    }

    /// Restores the settings from the state file of the NIC, as `devmem-tcp restore` does.
    pub fn restore(&self) {
        restore(&self.name);
    }

    /// As `restore`, those of the NIC at the other end.
    pub fn restore_peer(&self) {
        let (name, _) = self.peer_nic();
        self.at_peer(|| restore(&name));
    }

    /// Prepares `queues` queues and binds fresh memory to them.
    pub fn receiver(&self, queues: u16) -> Receiver {
        self.receiver_into(memory(), queues)
    }

    /// Prepares `queues` queues and binds `memory` to them.
    pub fn receiver_into(&self, memory: Dmabuf, queues: u16) -> Receiver {
        let plan = self.nic.plan_receive(self.address()).queues(queues);
        let setup = plan.apply().unwrap();
        assert_eq!(setup.queues().len(), usize::from(queues));
        let bound = self.nic.bind_rx(&memory, setup.queues()).unwrap();
        let listener = self.nic.listen(self.address()).unwrap();
        listener.set_timeout(Some(PATIENCE));
        Receiver {
            listener,
            bound,
            setup,
            memory,
        }
    }
}

fn restore(interface: &str) {
    let files = nic_setup::state_files().unwrap();
    let is_ours = |path: &&PathBuf| path.to_string_lossy().contains(interface);
    let file = files.iter().find(is_ours).expect("a state file");
    let report = nic_setup::restore_from_state_file(file).unwrap();
    assert!(report.is_exact(), "{report}");
}

/// Device memory: of a dma-heap if there is one, else a udmabuf.
pub fn memory() -> Dmabuf {
    devmem_tcp::memory::dma_heap("system", MEMORY_BYTES)
        .or_else(|_| devmem_tcp::memory::udmabuf(MEMORY_BYTES))
        .expect("an exporter")
}

/// A prepared NIC with bound memory, in the order in which its parts must go.
pub struct Receiver {
    pub listener: Listener,
    pub bound: BoundRx,
    pub setup: Setup,
    pub memory: Dmabuf,
}

impl Receiver {
    /// A connection: an ordinary program's end, and ours.
    pub fn connection(&self, bench: &Bench) -> (TcpStream, Stream) {
        let peer = bench.connect_from_peer();
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_timeout(Some(PATIENCE));
        (peer, stream)
    }
}

/// Writes `bytes` and closes, from another thread.
pub fn write(mut peer: TcpStream, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || peer.write_all(&bytes).unwrap())
}

/// Reads everything at the other end, in another thread.
pub fn read(mut peer: TcpStream) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Appends a batch's bytes, wherever they lie.
pub fn collect(batch: &RxBatch, memory: &Dmabuf, bytes: &mut Vec<u8>) {
    for frag in batch {
        match frag {
            Frag::Device { range, .. } => bytes.extend(memory.slice(range).to_vec()),
            Frag::Linear(linear) => bytes.extend_from_slice(linear),
        }
    }
}

pub fn receive_all(stream: &mut Stream, memory: &Dmabuf) -> Vec<u8> {
    let mut batch = RxBatch::with_capacity(256);
    let mut bytes = Vec::new();
    while stream.recv(&mut batch).unwrap() > 0 {
        collect(&batch, memory, &mut bytes);
    }
    bytes
}
