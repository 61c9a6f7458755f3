//! What a link is made of.

use std::fmt;
use std::path::PathBuf;

use devmem_uapi::text::Printable;

use crate::error::{Error, Remedy};

/// Longest interface name: IFNAMSIZ less its NUL (linux include/uapi/linux/if.h).
const MAX_IFNAME: usize = 15;

/// Longest path of a UNIX socket: `sun_path` less its NUL (linux include/uapi/linux/un.h).
const MAX_UNIX_PATH: usize = 107;

/// Kind of a link, and what it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// `tap:NAME`: a TAP interface of this network namespace, created if it does not exist. Its other end is the
    /// kernel's network stack. Options: `ADDRESS/LENGTH`, an address for that end, as
    /// [`NetdevBuilder::peer_address`](crate::NetdevBuilder::peer_address), and `mac=`.
    Tap(String),
    /// `packet:NAME`: an Ethernet interface of this network namespace that exists, usually a NIC, through a packet socket. The
    /// NIC has a MAC address beside that of the interface: it is one more station of the interface's network, which programs
    /// on this machine cannot reach through this interface. Needs CAP_NET_RAW. Options:
    /// `mac=02:00:00:00:00:02`, as [`NetdevBuilder::mac`](crate::NetdevBuilder::mac), and `ports=5201-5210`, as
    /// [`NetdevBuilder::share_ports`](crate::NetdevBuilder::share_ports). Frames with a VLAN tag are not received: name the VLAN's
    /// interface (eth0.100) for a link in it.
    Packet(String),
    /// `macvtap:NAME`: a macvtap interface. If `NAME` is one, it is used as it is, with its MAC address; no other program may have
    /// it open. Otherwise `NAME` is an Ethernet interface of this network namespace, over which one is made, in a network
    /// namespace that only this process has: it ends with the NIC, also when the process is killed. The NIC is one more station,
    /// as on a packet link, and can have several queues ([`NetdevBuilder::tap_queues`](crate::NetdevBuilder::tap_queues)). Needs
    /// root. Options: `mac=02:00:00:00:00:02`, and `mode=private`, as
    /// [`NetdevBuilder::macvtap_mode`](crate::NetdevBuilder::macvtap_mode).
    Macvtap(String),
    /// `unix:PATH`: a UNIX socket (SOCK_SEQPACKET) on which the other end of the wire listens, such as an emulated NIC
    /// started with `devmem-tcp nic --wire unix-listen:PATH`, or a NIC with the link `unix-listen:PATH`.
    ///
    /// When the other end has left, the link is gone ([`LinkState::Gone`](crate::LinkState::Gone)): the connections that use it end at once, after
    /// what had arrived.
    Unix(PathBuf),
    /// `unix-listen:PATH`: the end of such a wire that listens. It creates the socket file, replaces one that nothing listens on,
    /// and removes it with the NIC. The link is down until the other end has connected; when that has left, the next one may
    /// connect. There is one at a time.
    ///
    /// Between two NICs of this library, such as those of two processes, the wire shares memory, unless one of them is impaired:
    /// payload crosses it by reference, in super-packets of up to 512 KiB, and is copied once by the receiving NIC, straight to the
    /// memory or the place where it belongs. For that, each process maps memory of the other one for reading: memory of the wire, to
    /// which payload is copied before it is sent. It contains only what was sent to this process; the next process that connects
    /// gets new memory. No other memory of the program can be read, unless it asks for it:
    ///
    /// - Device memory that was made by [`Dmabuf::shared_memfd`](crate::Dmabuf::shared_memfd) is read where it is, without that copy. The
    ///   other process can read all of it, not only what was sent, and may keep its mapping as long as it likes.
    /// - With [`NetdevBuilder::share_send_memory`](crate::NetdevBuilder::share_send_memory), in text `unix-listen:PATH,share=send`, so are
    ///   bytes that the program sends from its own memory.
    ///
    /// An impaired end takes no super-packets. If it connects to a listening end that is not impaired, it is refused, with an error;
    /// the listening end counts the drop `rx_peer_refused`. Let the impaired end listen, or impair both.
    UnixListen(PathBuf),
    /// `mem:NAME`: an in-memory wire between two NICs of this process. The first NIC creates it, the second one joins it.
    ///
    /// When one of them is dropped, the link of the other one is gone ([`LinkState::Gone`](crate::LinkState::Gone)), as with `unix:PATH`, and
    /// the name is free: further NICs get another wire.
    Memory(String),
}

impl LinkKind {
    /// Parses a link without options.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let refuse = |why| Err(no_link(text, why));
        let Some((kind, name)) = text.split_once(':') else {
            return refuse("there is no kind before a colon");
        };
        match kind {
            "tap" | "packet" | "macvtap" => match (interface_fault(name), kind) {
                (Some(why), _) => refuse(why),
                (None, "tap") => Ok(Self::Tap(name.to_owned())),
                (None, "packet") => Ok(Self::Packet(name.to_owned())),
                (None, _) => Ok(Self::Macvtap(name.to_owned())),
            },
            "unix" | "unix-listen" if name.is_empty() => refuse("the socket has no path"),
            "unix" | "unix-listen" if name.len() > MAX_UNIX_PATH || name.contains('\0') => {
                refuse("the socket's path is too long, or has a NUL")
            }
            "unix" => Ok(Self::Unix(PathBuf::from(name))),
            "unix-listen" => Ok(Self::UnixListen(PathBuf::from(name))),
            "mem" if name.is_empty() => refuse("the wire has no name"),
            "mem" => Ok(Self::Memory(name.to_owned())),
            _ => refuse("this kind of link is not known"),
        }
    }
}

/// The error for a text that cannot be parsed as a link.
fn no_link(text: &str, why: &str) -> Error {
    let reason = format!("'{}' names no link: {why}", Printable(text));
    Error::invalid(reason).with_remedy(Remedy::WriteLink)
}

/// Returns why no interface can have the name.
fn interface_fault(name: &str) -> Option<&'static str> {
    let is_bad = |byte: u8| byte == b'/' || byte.is_ascii_whitespace() || byte == 0;
    match name {
        "" => Some("the interface has no name"),
        _ if name.len() > MAX_IFNAME => Some("the interface name is too long"),
        _ if name.bytes().any(is_bad) => Some("an interface name has no slash, space or NUL"),
        _ => None,
    }
}

/// Writes it as text, without options.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Packet(name) => write!(f, "packet:{name}"),
            Self::Macvtap(name) => write!(f, "macvtap:{name}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::UnixListen(path) => write!(f, "unix-listen:{}", path.display()),
            Self::Memory(name) => write!(f, "mem:{name}"),
        }
    }
}
