//! Macvtap interfaces: one more station in the network of an Ethernet interface. A process reads and writes its frames as those
//! of a TAP.
//!
//! An interface that [`MacvtapOptions::open`] makes is in a network namespace that only this process has. It is removed with its
//! last descriptor, or by the kernel together with the namespace when the process ends in any way.

mod error;
mod node;

use std::os::fd::{AsFd, OwnedFd};

use crate::netif::{Interface, InterfaceFacts, InterfaceWatch, LEGACY_GSO_MAX_SIZE, NewMacvtap};
use crate::netns::NetNs;
use crate::packet::{self, PacketOptions, PacketSocket, Station};
use crate::sys;
use crate::tap::{self, TapOffloads, VnetHeader};

pub use crate::netif::MacvtapMode;
pub use error::MacvtapError;

/// Most queues of an interface: `MAX_TAP_QUEUES` (linux include/linux/if_tap.h).
const MAX_QUEUES: u16 = 256;

/// Name of an interface in its namespace, where there is no other.
const NAME: &str = "macvtap0";

/// How to open a macvtap interface. Start from [`MacvtapOptions::new`].
#[derive(Clone, Debug)]
pub struct MacvtapOptions {
    /// Name of an Ethernet interface, over which a macvtap interface is made, or of a macvtap interface that exists, which is
    /// used as it is. Both must be up.
    pub interface: String,
    /// Mode of an interface that is made; `None`: [`MacvtapMode::Bridge`].
    pub mode: Option<MacvtapMode>,
    /// MAC address of an interface that is made; `None`: a random one.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes of an interface that is made; `None`: that of the lower interface.
    pub mtu: Option<u16>,
    /// Number of queues, one descriptor each.
    pub queues: u16,
    /// Number of watches of the interface, which are read independently.
    pub watches: u16,
    /// Offloads that the kernel may use for frames to us.
    pub offloads: TapOffloads,
    /// Multicast addresses that our stack receives, beside broadcast.
    pub multicast: Vec<[u8; 6]>,
    /// Opens a socket to get addresses, too ([`Station::Auto`]).
    pub auto: bool,
}

/// An open macvtap interface.
#[derive(Debug)]
pub struct Macvtap {
    /// The queues, non-blocking. Each read and write is one frame after a virtio-net header of 10 bytes.
    pub queues: Vec<OwnedFd>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU in bytes.
    pub mtu: u32,
    /// [`InterfaceFacts::max_super_packet`](crate::netif::InterfaceFacts::max_super_packet).
    pub max_super_packet: u32,
    /// Watch the interface: [`MacvtapOptions::watches`] of them.
    pub watches: Vec<InterfaceWatch>,
    /// The socket to get addresses, if it was requested.
    pub auto: Option<PacketSocket>,
    /// Must live as long as the queues are in use.
    pub hold: MacvtapHold,
}

/// Keeps a macvtap interface ready to receive. Dropping it removes an interface that was made, and gives one that existed its queue
/// length back.
#[derive(Debug)]
pub struct MacvtapHold {
    made: Option<Interface>,
    /// The queue of an interface that existed.
    _lengthened: Option<Lengthened>,
    /// The memberships in multicast groups end with the socket.
    _groups: Option<OwnedFd>,
}

impl Drop for MacvtapHold {
    fn drop(&mut self) {
        if let Some(made) = self.made.take() {
            // Fails if it is gone already, together with its lower interface.
            let _ = made.delete();
        }
    }
}

/// An interface whose queue takes more packets than before. A queue of 500, the default, loses acknowledgements of a fast sender.
#[derive(Debug)]
struct Lengthened {
    interface: Interface,
    before: u32,
}

impl Lengthened {
    /// Makes the queue of `name` long enough. `None` if it is, or if only root may: then it stays as it is.
    fn queue_of(name: &str) -> Result<Option<Self>, MacvtapError> {
        let mut interface = Interface::by_name(name)?;
        let before = interface.tx_queue_len()?;
        let wanted = tap::TX_QUEUE_PACKETS;
        let is_longer = before < wanted && interface.set_tx_queue_len(wanted).is_ok();
        Ok(is_longer.then_some(Self { interface, before }))
    }
}

impl Drop for Lengthened {
    fn drop(&mut self) {
        // Fails if the interface is gone, which leaves nothing to restore.
        let _ = self.interface.set_tx_queue_len(self.before);
    }
}

impl MacvtapOptions {
    /// Returns options for one queue with segmentation offload.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mode: None,
            mac: None,
            mtu: None,
            queues: 1,
            watches: 1,
            offloads: TapOffloads::Segmentation,
            multicast: Vec::new(),
            auto: false,
        }
    }

    /// Opens the interface, or makes one over it.
    ///
    /// # Errors
    ///
    /// See [`MacvtapError`].
    pub fn open(&self) -> Result<Macvtap, MacvtapError> {
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return Err(MacvtapError::Queues {
                queues: self.queues,
                limit: MAX_QUEUES,
            });
        }
        let (mut found, facts) = packet::find(&self.interface)?;
        if found.is_macvtap()? {
            return self.attach(found);
        }
        if let Some(mtu) = self.mtu.filter(|mtu| u32::from(*mtu) > facts.mtu) {
            return Err(MacvtapError::Mtu {
                interface: self.interface.clone(),
                mtu,
                limit: facts.mtu,
            });
        }
        if self.mode == Some(MacvtapMode::Passthru) && self.mac.is_some() {
            return Err(MacvtapError::PassthruMac {
                interface: self.interface.clone(),
            });
        }
        in_thread(|| self.make(found, &facts))
    }

    /// Opens an interface that exists.
    fn attach(&self, found: Interface) -> Result<Macvtap, MacvtapError> {
        let option = match (self.mode, self.mac) {
            (Some(_), _) => Some("mode"),
            (None, Some(_)) => Some("mac"),
            (None, None) => None,
        };
        match option {
            Some(option) => Err(MacvtapError::Exists {
                interface: self.interface.clone(),
                option,
            }),
            None => {
                let lengthened = Lengthened::queue_of(&self.interface)?;
                let mut opened = self.open_queues(found, |_it| None)?;
                opened.hold._lengthened = lengthened;
                Ok(opened)
            }
        }
    }

    /// Makes an interface over `lower` in a new network namespace, to which the calling thread moves.
    fn make(&self, mut lower: Interface, facts: &InterfaceFacts) -> Result<Macvtap, MacvtapError> {
        sys::namespace::unshare_network().map_err(MacvtapError::Namespace)?;
        let namespace = NetNs::current()?;
        let new = NewMacvtap {
            name: NAME,
            namespace: namespace.as_fd(),
            mode: self.mode.unwrap_or_default(),
            mac: self.mac,
            mtu: self.mtu.map(u32::from),
        };
        let lower_name = || self.interface.clone();
        lower
            .create_macvtap(&new)
            .map_err(|error| MacvtapError::NotMade {
                interface: lower_name(),
                error,
            })?;
        let mut made = Interface::by_name(NAME)?;
        // Received frames go to the queues, but the kernel's IPv6 would send some on the interface.
        made.quiet_ipv6();
        if facts.gso_limit() > LEGACY_GSO_MAX_SIZE {
            // It has the limit of the lower interface for IPv6 only. The kernel may refuse it: then packets are shorter.
            let _ = made.set_gso_max_size(facts.gso_limit());
        }
        // Before its queue is opened, which takes the length from here.
        made.set_tx_queue_len(tap::TX_QUEUE_PACKETS)?;
        made.set_up()?;
        self.open_queues(made, Some)
    }

    /// Opens the queues of an interface of the calling thread's network namespace. `owned` returns it if it is to be removed.
    fn open_queues(
        &self,
        mut interface: Interface,
        owned: impl FnOnce(Interface) -> Option<Interface>,
    ) -> Result<Macvtap, MacvtapError> {
        let (name, index) = (interface.name().to_owned(), interface.index());
        let facts = interface.facts()?;
        let watches = (0..self.watches).map(|_| InterfaceWatch::new(index));
        let watches = watches.collect::<Result<_, _>>()?;
        let mut hold = MacvtapHold {
            made: owned(interface),
            _lengthened: None,
            _groups: None,
        };
        if !self.multicast.is_empty() {
            hold._groups = Some(packet::join_groups(&name, index, &self.multicast)?);
        }
        let mac = facts.mac.unwrap_or_default();
        let auto = PacketOptions {
            interface: name.clone(),
            station: Station::Auto { mac },
        };
        let auto = self.auto.then(|| auto.open()).transpose()?;
        let device = node::device_of(&name, index)?;
        let mut queues = Vec::with_capacity(usize::from(self.queues));
        for _ in 0..self.queues {
            let queue = node::open(device, index)?;
            tap::set_up_queue(&queue, self.offloads, VnetHeader::Short).map_err(
                |(call, errno)| MacvtapError::Call {
                    interface: self.interface.clone(),
                    call,
                    errno,
                },
            )?;
            queues.push(queue);
        }
        Ok(Macvtap {
            queues,
            mac,
            mtu: facts.mtu,
            max_super_packet: facts.max_super_packet(),
            watches,
            auto,
            hold,
        })
    }
}

/// Makes a macvtap interface over one end of a veth pair in a new network namespace, to find out whether this process may. All
/// of it is removed.
///
/// # Errors
///
/// As [`MacvtapOptions::open`].
pub fn try_open() -> Result<(), MacvtapError> {
    let attempt = || {
        sys::namespace::unshare_network().map_err(MacvtapError::Namespace)?;
        let (mut lower, mut other) = Interface::create_veth_pair("lower", "other")?;
        lower.set_up()?;
        other.set_up()?;
        MacvtapOptions::new(lower.name()).open().map(|_closed| ())
    };
    in_thread(attempt)
}

/// Runs `work` in a separate thread, because a thread that has moved to another namespace cannot always move back.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
