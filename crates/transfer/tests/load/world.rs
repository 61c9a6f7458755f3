//! The loading side: a NIC on a TAP with bound memory, and memory for what is loaded.

use std::error::Error;
use std::ops::ControlFlow;

use devmem_linux::netif::Interface;
use devmem_tcp::{BoundRx, Dmabuf, Netdev, NetdevBuilder};
use devmem_transfer::load::{HttpFile, HttpRequest, LoadError, Loaded, Loader, Part, Source};

/// Size of the bound memory: less than most files, so that tokens must come back.
const BOUND_BYTES: usize = 4 << 20;

/// A link with a round trip that is longer than those of servers nearby.
const FAR: &str = "delay=2ms";

/// Returns the reason of an error, and its remedy on a line below.
pub fn told(error: &(dyn Error + 'static)) -> String {
    let remedy = devmem_transfer::explain(error).and_then(|(_, remedy)| remedy);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("\n  {remedy}"));
    format!("{error}{remedy}")
}

/// Addresses of the host and of the NIC.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub host: &'static str,
    ours: &'static str,
    len: u8,
}

pub const V4: Addresses = Addresses {
    host: "10.77.0.1",
    ours: "10.77.0.2",
    len: 24,
};
pub const V6: Addresses = Addresses {
    host: "fd77::1",
    ours: "fd77::2",
    len: 64,
};

pub struct World {
    rx: BoundRx,
    pub nic: Netdev,
}

impl World {
    pub fn new(addresses: Addresses) -> Self {
        Self::impaired(addresses, "none")
    }

    /// A world with a bad link.
    pub fn impaired(addresses: Addresses, impairment: &str) -> Self {
        let impairment = impairment.parse().expect("an impairment");
        Self::of(on_tap(addresses).impair(impairment), addresses.ours)
    }

    /// A world far from its servers: a load uses all of its connections from the start.
    pub fn far(addresses: Addresses) -> Self {
        Self::impaired(addresses, FAR)
    }

    /// A world far from its servers, with a NIC of several shards.
    pub fn far_and_sharded(addresses: Addresses, shards: u16) -> Self {
        let far = FAR.parse().expect("an impairment");
        let builder = on_tap(addresses).impair(far).shards(shards);
        Self::of(builder, addresses.ours)
    }

    /// A world with a packet socket on one end of a veth pair. The kernel has the host's address at the other end.
    pub fn on_veth(addresses: Addresses) -> Self {
        let Addresses { host, ours, len } = addresses;
        let pair = Interface::create_veth_pair("load0", "load1");
        let (mut kernels, mut near) = pair.expect("this is our namespace");
        for end in [&mut kernels, &mut near] {
            end.quiet_ipv6();
            end.set_up().expect("this is our namespace");
        }
        let host = host.parse().expect("an address");
        kernels.add_address(host, len).expect("it is free");
        let builder = Netdev::builder("packet:load1")
            .and_then(|builder| builder.address(&format!("{ours}/{len}")));
        Self::of(builder.expect("a link and its address"), ours)
    }

    fn of(builder: NetdevBuilder, ours: &str) -> Self {
        let nic = builder.open().expect("this is our namespace");
        let memory = Dmabuf::anonymous(BOUND_BYTES).expect("memory");
        let local = std::net::SocketAddr::new(ours.parse().expect("an address"), 0);
        let setup = nic.plan_receive(local).apply().expect("set up");
        let rx = nic.bind_rx(&memory, setup.queues()).expect("bound");
        Self { rx, nic }
    }

    pub fn open(&self, url: &str) -> Result<HttpFile, LoadError> {
        HttpFile::open(&self.nic, HttpRequest::new(url.parse()?))
    }

    /// Loads a whole file and compares every byte.
    #[track_caller]
    pub fn load_all(&self, url: &str, expected: &[u8], loader: &Loader) -> Loaded {
        self.load_counted(url, expected, loader).0
    }

    /// Loads a whole file and compares every byte. Also returns how many connections were open together.
    #[track_caller]
    pub fn load_counted(&self, url: &str, expected: &[u8], loader: &Loader) -> (Loaded, usize) {
        let file = self.open(url).expect("the file is there");
        assert_eq!(file.size(), Some(expected.len() as u64));
        let memory = memory_for(expected.len());
        let part = whole(&memory, expected.len());
        let (loaded, together) = load_counted(loader, &file, part);
        assert_eq!(loaded.bytes, expected.len() as u64);
        assert!(
            memory.slice(0..expected.len()).to_vec() == expected,
            "{url}"
        );
        (loaded, together)
    }

    /// Ends the world: all bound memory must have been returned.
    #[track_caller]
    pub fn end(self) {
        let Self { rx, nic } = self;
        let net_iovs = rx.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total);
        drop(nic);
    }
}

fn on_tap(addresses: Addresses) -> NetdevBuilder {
    let Addresses { host, ours, len } = addresses;
    let builder = Netdev::builder("tap:load0")
        .and_then(|builder| builder.address(&format!("{ours}/{len}")))
        .and_then(|builder| builder.peer_address(&format!("{host}/{len}")));
    builder.expect("a link and its addresses")
}

/// Loads a part. Also returns how many connections were open together.
#[track_caller]
pub fn load_counted(loader: &Loader, source: impl Into<Source>, part: Part) -> (Loaded, usize) {
    let mut together = 0;
    let loaded = loader.load(source, &[part], &mut |so_far| {
        together = together.max(so_far.connections);
        ControlFlow::Continue(())
    });
    (loaded.expect("it loads"), together)
}

/// Memory for `len` bytes.
pub fn memory_for(len: usize) -> Dmabuf {
    Dmabuf::anonymous(len.next_multiple_of(4096).max(4096)).expect("memory")
}

/// The first `len` bytes of a source, for the start of `memory`.
pub fn whole(memory: &Dmabuf, len: usize) -> Part {
    Part {
        source: 0..len as u64,
        memory: memory.clone(),
        offset: 0,
    }
}

/// After so many bytes the pattern repeats. It is prime: no two blocks of 512 bytes in 32 MiB are the same.
const PERIOD: usize = 65_537;

/// Bytes that depend on their position. One period is computed, the rest copied: a closure for each byte takes seconds without optimisation.
pub fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let mut bytes: Vec<u8> = (0..len.min(PERIOD) as u64).map(byte).collect();
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}
