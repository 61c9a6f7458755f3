//! TAP interfaces: the link between this kernel and our NIC.
//!
//! With the virtio-net header and the offloads of [`TapOffloads::Segmentation`] the kernel passes on super-packets of up to
//! 64 KiB with a partial TCP checksum, so the MTU does not limit the speed.

#[cfg(test)]
mod tests;

use devmem_uapi::text::Printable;
mod set_up;

use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::netif::{Interface, TunKind};
use crate::netlink::NetlinkError;
use crate::sys::tun::{self, IFNAMSIZ};

pub use set_up::TapSetUp;

/// Where TUN devices are opened.
const TUN_PATH: &std::ffi::CStr = c"/dev/net/tun";

/// Flags of `TUNSETIFF` and of `TUNSETOFFLOAD` (linux include/uapi/linux/if_tun.h).
const IFF_TAP: u16 = 0x0002;
const IFF_NAPI: u16 = 0x0010;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUN_F_CSUM: c_uint = 0x01;
const TUN_F_TSO4: c_uint = 0x02;
const TUN_F_TSO6: c_uint = 0x04;
/// `MAX_TAP_QUEUES` (linux drivers/net/tun.c).
const MAX_QUEUES: u16 = 256;

/// Packets that the kernel's end of a TAP queues for us; it drops further ones. The windows of a thousand connections hold
/// more packets than the kernel's default, 500 or 1,000. The queue itself takes 8 bytes per packet.
pub(crate) const TX_QUEUE_PACKETS: u32 = 10_000;

/// Returns whether this process may make TAP interfaces: there are TUN devices, and it has CAP_NET_ADMIN. Without, it may still attach to one that
/// was made for its user.
pub fn may_create() -> bool {
    /// `CAP_NET_ADMIN` (linux include/uapi/linux/capability.h).
    const CAP_NET_ADMIN: u32 = 12;
    let device = open(TUN_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok());
    device.is_ok() && effective.is_some_and(|caps| caps & (1 << CAP_NET_ADMIN) != 0)
}

/// Offloads that the kernel may use for packets that it sends to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapOffloads {
    /// Partial checksums and super-packets, for TCP over IPv4 and IPv6.
    Segmentation,
    /// None: every frame is complete, as on a cable. A link conditioner needs this.
    None,
}

/// Length of the virtio-net header before every packet (linux include/uapi/linux/virtio_net.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnetHeader {
    /// `struct virtio_net_hdr`, 10 bytes.
    Short,
    /// `struct virtio_net_hdr_mrg_rxbuf`, 12 bytes.
    Mergeable,
}

impl VnetHeader {
    /// Returns the length in bytes.
    pub const fn len_bytes(self) -> u8 {
        match self {
            Self::Short => 10,
            Self::Mergeable => 12,
        }
    }
}

/// How to open a TAP interface. Start from [`TapOptions::new`].
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Name of the interface, which is created if it does not exist. With `dm%d` the kernel chooses the number.
    pub name: String,
    /// Number of queues, one file descriptor each; more than one makes it multi-queue.
    pub queues: u16,
    /// Offloads that the kernel may use.
    pub offloads: TapOffloads,
    /// Form of the virtio-net header.
    pub vnet_header: VnetHeader,
    /// Makes the kernel receive our packets in a softirq (`IFF_NAPI`, Linux 4.15). The softirq first frees the memory of
    /// packets that receivers have read, so that the next packet is written to memory that is still in the cache; otherwise
    /// this memory is freed 32 packets at a time (linux net/core/dev.c `skb_defer_free_flush`). Faster for packets of more
    /// than 64 KiB and for small ones; packets of 64 KiB cost 10 % more.
    pub napi: bool,
}

impl TapOptions {
    /// Returns options for one queue with segmentation offload.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            queues: 1,
            offloads: TapOffloads::Segmentation,
            vnet_header: VnetHeader::Short,
            napi: false,
        }
    }

    /// Opens the interface; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn open(&self) -> Result<Tap, TapError> {
        let Self {
            name,
            queues,
            offloads,
            vnet_header,
            napi,
        } = self;
        check_name(name)?;
        if !(1..=MAX_QUEUES).contains(queues) {
            return Err(TapError::Queues {
                queues: *queues,
                limit: MAX_QUEUES,
            });
        }
        let existing = Interface::by_name(name).ok();
        let kind = existing.map(|mut interface| interface.tun_kind().ok().flatten());
        let mut flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        // One queue of a TAP that can have several works as a TAP with one.
        if *queues > 1 || kind == Some(Some(TunKind::MultiQueueTap)) {
            flags |= IFF_MULTI_QUEUE;
        }
        if *napi {
            flags |= IFF_NAPI;
        }
        let mut got = name.clone();
        let mut fds = Vec::with_capacity(usize::from(*queues));
        for _ in 0..*queues {
            let fd = open_tun()?;
            let bytes = tun::set_iff(fd.as_fd(), got.as_bytes(), flags)
                .map_err(|errno| TapError::attach(&got, errno, kind.flatten(), *queues))?;
            got = name_of(&bytes);
            set_up_queue(&fd, *offloads, *vnet_header).map_err(|(call, errno)| TapError::Call {
                name: got.clone(),
                call,
                errno,
            })?;
            fds.push(fd);
        }
        Ok(Tap {
            name: got,
            created: kind.is_none(),
            queues: fds,
            vnet_header: *vnet_header,
        })
    }
}

/// An open TAP interface. If this created it, it is removed when its last file descriptor is closed.
#[derive(Debug)]
pub struct Tap {
    name: String,
    created: bool,
    queues: Vec<OwnedFd>,
    vnet_header: VnetHeader,
}

impl Tap {
    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether opening created the interface.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns the form of the virtio-net header on these descriptors.
    pub fn vnet_header(&self) -> VnetHeader {
        self.vnet_header
    }

    /// Finds the interface of this TAP, to set up the kernel's end of it.
    ///
    /// # Errors
    ///
    /// `ENODEV` from a thread that has left the TAP's network namespace.
    pub fn interface(&self) -> Result<Interface, NetlinkError> {
        Interface::by_name(&self.name)
    }

    /// Sets up the kernel's end: MTU in bytes, a queue that is long enough for the windows of many connections, IPv6 without
    /// automatic traffic, addresses with their prefix lengths, and sets it up. An interface that existed before has its former
    /// settings again when the returned value is dropped.
    ///
    /// # Errors
    ///
    /// The error of rtnetlink, or as [`interface`](Self::interface).
    pub fn set_up_interface(
        &self,
        mtu: u16,
        addresses: &[(IpAddr, u8)],
    ) -> Result<TapSetUp, NetlinkError> {
        let mut set_up = TapSetUp::of(self.interface()?, self.created)?;
        set_up.apply(mtu, addresses)?;
        Ok(set_up)
    }

    /// Sets whether the interface remains when its descriptors are closed.
    ///
    /// # Errors
    ///
    /// The errno of the ioctl.
    pub fn set_persistent(&self, persistent: bool) -> Result<(), TapError> {
        let refused = |errno| TapError::Call {
            name: self.name.clone(),
            call: "TUNSETPERSIST",
            errno,
        };
        // This is a setting of the interface, so any of its descriptors can be used.
        match self.queues.first() {
            Some(fd) => tun::set_persist(fd.as_fd(), persistent).map_err(refused),
            None => Ok(()),
        }
    }

    /// Returns the descriptors, one per queue, non-blocking.
    pub fn into_queues(self) -> Vec<OwnedFd> {
        self.queues
    }
}

/// Why a TAP interface could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// The kernel has no TUN driver, the driver is not loaded, or the device file does not exist.
    #[error("this machine has no usable /dev/net/tun: {errno}")]
    NoTun {
        /// The error of open(2).
        errno: Errno,
    },
    /// This user may not open /dev/net/tun.
    #[error("no permission to open /dev/net/tun: {errno}")]
    Device {
        /// The error of open(2).
        errno: Errno,
    },
    /// The process may not attach: that needs CAP_NET_ADMIN in the network namespace, or ownership of the persistent TAP.
    #[error("no permission to attach to TAP {name}", name = Printable(.name))]
    NotAdmin {
        /// The interface.
        name: String,
    },
    /// Another process uses the interface's queue.
    #[error("TAP {name} is in use by another process", name = Printable(.name))]
    Busy {
        /// The interface.
        name: String,
    },
    /// The interface of that name is not a TAP.
    #[error("{name} exists and is not a TAP", name = Printable(.name))]
    NotATap {
        /// The interface.
        name: String,
    },
    /// The interface of that name is a TUN: it has IP packets and no Ethernet frames.
    #[error("{name} is a TUN, which has no Ethernet frames", name = Printable(.name))]
    Tun {
        /// The interface.
        name: String,
    },
    /// The TAP was made for one queue, and several were requested.
    #[error("{name} is a TAP with one queue, and {queues} were requested", name = Printable(.name))]
    OneQueue {
        /// The interface.
        name: String,
        /// The requested value.
        queues: u16,
    },
    /// The interface name is invalid.
    #[error("{name:?} cannot be an interface name: 1 to 15 bytes, no slash, colon or white space")]
    BadName {
        /// The requested value.
        name: String,
    },
    /// More queues than a TAP can have, or none.
    #[error("{queues} queues were requested; a TAP has 1 to {limit}")]
    Queues {
        /// The requested value.
        queues: u16,
        /// The kernel's limit.
        limit: u16,
    },
    /// A set-up call was refused.
    #[error("{call} on TAP {name}: {errno}", name = Printable(.name))]
    Call {
        /// The interface.
        name: String,
        /// The ioctl's name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl TapError {
    /// The error of attaching one of `queues` queues to an interface of this `kind`.
    fn attach(name: &str, errno: Errno, kind: Option<TunKind>, queues: u16) -> Self {
        let name = name.to_owned();
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotAdmin { name },
            Errno::BUSY => Self::Busy { name },
            Errno::INVAL => match kind {
                Some(TunKind::Tun) => Self::Tun { name },
                Some(TunKind::Tap) if queues > 1 => Self::OneQueue { name, queues },
                Some(TunKind::Tap | TunKind::MultiQueueTap) => Self::Call {
                    name,
                    call: "TUNSETIFF",
                    errno,
                },
                None => Self::NotATap { name },
            },
            errno => Self::Call {
                name,
                call: "TUNSETIFF",
                errno,
            },
        }
    }

    /// Returns whether the cause is the machine or the user's privileges, and not this request.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::NoTun { .. } | Self::Device { .. } | Self::NotAdmin { .. }
        )
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoTun { .. } => Some(
                "load the driver (modprobe tun), or in a container pass the device \
                 (--device /dev/net/tun)",
            ),
            Self::Device { .. } => Some(
                "run as root, or let users open it (chmod 0666 /dev/net/tun, or a udev rule); a user \
                 namespace alone does not help",
            ),
            Self::NotAdmin { .. } => Some(
                "run as root, or let root create the TAP for you: ip tuntap add dev NAME mode tap user \
                 $USER vnet_hdr",
            ),
            Self::Busy { .. } => Some(
                "stop the other process, or name another TAP; `fuser /dev/net/tun` lists users",
            ),
            Self::NotATap { .. } => {
                Some("name another interface, or one that does not exist: it is created")
            }
            Self::Tun { .. } => {
                Some("name another interface, or make it as a TAP: ip tuntap add NAME mode tap")
            }
            Self::OneQueue { .. } => Some(
                "use one queue (--shards 1), or make the TAP with several: ip tuntap add NAME mode tap multi_queue",
            ),
            Self::BadName { .. } | Self::Queues { .. } | Self::Call { .. } => None,
        }
    }
}

/// Opens the TUN device, without attaching to an interface.
pub(crate) fn open_tun() -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(TUN_PATH, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => TapError::Device { errno },
        errno => TapError::NoTun { errno },
    })
}

/// Sets up a queue of a TAP or of a macvtap interface; an error names the ioctl.
pub(crate) fn set_up_queue(
    fd: &OwnedFd,
    offloads: TapOffloads,
    vnet_header: VnetHeader,
) -> Result<(), (&'static str, Errno)> {
    let wanted = match offloads {
        TapOffloads::Segmentation => TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
        TapOffloads::None => 0,
    };
    tun::set_offload(fd.as_fd(), wanted).map_err(|e| ("TUNSETOFFLOAD", e))?;
    let len = c_int::from(vnet_header.len_bytes());
    tun::set_vnet_header_len(fd.as_fd(), len).map_err(|e| ("TUNSETVNETHDRSZ", e))?;
    // A persistent TAP keeps the limit that its last user set. Set the kernel's default, no limit: our NIC never has more
    // in flight than its queue (linux drivers/net/tun.c tun_set_iff).
    tun::set_send_buffer(fd.as_fd(), c_int::MAX).map_err(|e| ("TUNSETSNDBUF", e))
}

/// Checks a name by the rules of `dev_valid_name` (linux net/core/dev.c); the only pattern allowed is `%d`.
fn check_name(name: &str) -> Result<(), TapError> {
    let bad = name.is_empty()
        || name.len() >= IFNAMSIZ
        || name == "."
        || name == ".."
        || name
            .chars()
            .any(|c| c == '/' || c == ':' || c == '\0' || c.is_whitespace())
        || name.replacen("%d", "", 1).contains('%');
    if bad {
        Err(TapError::BadName {
            name: name.to_owned(),
        })
    } else {
        Ok(())
    }
}

fn name_of(bytes: &[u8; IFNAMSIZ]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(IFNAMSIZ);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
