//! The lab's NIC, and the peer at the other end of its wire.
//!
//! `DEVMEM_TEST_NIC` names the NIC. It must be up, have four RX queues or more and the addresses 10.77.0.2 and fd77::2, and
//! no other program may use it. The peer, in the network namespace `peer`, has 10.77.0.1 and fd77::1.

use std::env;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use devmem_linux::ethtool::{Ethtool, Feature, InstalledRule, NTUPLE, Rings, RssContext};
use devmem_linux::netns::NetNs;
use devmem_linux::test_util::{GuestHas, skip_outside_guest};
use rustix::net::{self, AddressFamily, SocketType, sockopt};

use super::{LIMIT, Running, start};

/// Addresses of the NIC and of the peer.
pub const OURS: [&str; 2] = ["10.77.0.2", "fd77::2"];
pub const PEERS: [&str; 2] = ["10.77.0.1", "fd77::1"];
const PEER_NETNS: &str = "peer";

/// The NIC, for one test at a time.
pub struct Nic {
    pub name: String,
    pub before: Settings,
    _alone: MutexGuard<'static, ()>,
}

/// All settings that a set-up changes.
pub type Settings = (
    Rings,
    Vec<u32>,
    Vec<InstalledRule>,
    Vec<RssContext>,
    Option<Feature>,
);

/// Reads the settings.
pub fn settings(name: &str) -> Settings {
    let mut ethtool = Ethtool::by_name(name).expect("the NIC is there");
    (
        ethtool.rings().expect("it has rings"),
        ethtool.rss().expect("it has RSS").table,
        ethtool.rules().expect("it has flow rules"),
        ethtool.rss_contexts().unwrap_or_default(),
        ethtool.feature(NTUPLE).expect("it has features"),
    )
}

impl Nic {
    /// Locks the NIC; prints the reason if the test is skipped.
    pub fn take(test: &str) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let Ok(name) = env::var("DEVMEM_TEST_NIC") else {
            skip_outside_guest(test, GuestHas::Nic, "DEVMEM_TEST_NIC is not set");
            return None;
        };
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Self {
            before: settings(&name),
            name,
            _alone: alone,
        })
    }

    /// Returns the number of RX queues.
    pub fn queues(&self) -> u32 {
        let channels = Ethtool::by_name(&self.name).and_then(|mut e| e.channels());
        channels.expect("it has channels").rx_queues()
    }

    /// Starts `ncdevmem` as a server and waits until it listens.
    pub fn server(&self, address: &str, port: u16, options: &str) -> Running {
        let name = &self.name;
        let mut server = start(&format!(
            "ncdevmem -l -f {name} -s {address} -p {port} {options}"
        ));
        server.until("Waiting or connection");
        server
    }

    /// Asserts that all settings are restored.
    #[track_caller]
    pub fn assert_restored(&self) {
        assert_eq!(settings(&self.name), self.before);
    }
}

/// The peer's network namespace.
pub fn peer() -> NetNs {
    NetNs::open(PEER_NETNS).expect("the lab has a namespace for the peer")
}

/// Connects from the peer, with the same source and destination port, as devmem.py's socat does.
pub fn connect(ours: &str, peers: &str, port: u16) -> TcpStream {
    let address = |ip: &str| SocketAddr::new(ip.parse::<IpAddr>().expect("an address"), port);
    let (from, to) = (address(peers), address(ours));
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let connected = peer().run(|| -> rustix::io::Result<TcpStream> {
        let socket = net::socket(family, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &from)?;
        net::connect(&socket, &to)?;
        Ok(TcpStream::from(socket))
    });
    connected
        .expect("the namespace can be joined")
        .expect("it listens")
}

/// Sends all pieces from the peer, with one write per piece.
pub fn send(ours: &str, peers: &str, port: u16, pieces: &[&[u8]]) {
    let mut stream = connect(ours, peers, port);
    stream.set_nodelay(true).expect("it is TCP");
    for piece in pieces {
        stream.write_all(piece).expect("it receives");
    }
}

/// Listens at the peer and receives the first stream to its end.
pub fn receive_all(port: u16) -> JoinHandle<Vec<u8>> {
    let at = SocketAddr::new(PEERS[0].parse().expect("an address"), port);
    let listener = peer()
        .run(|| TcpListener::bind(at))
        .expect("the namespace can be joined");
    let listener = listener.expect("the peer can listen");
    thread::spawn(move || {
        let mut received = Vec::new();
        let (mut stream, _) = listener.accept().expect("a sender connects");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        stream.read_to_end(&mut received).expect("it ends");
        received
    })
}
