//! `packet:NAME`: a link to an Ethernet interface of this machine.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use devmem_linux::packet::{self, PacketError, PacketOptions, Presence};
use devmem_uapi::Errno;
use nic::{LinkState, PacketLink, PacketLinkOptions, PacketSocketStatus};
use wire::MacAddr;

use crate::error::{ErrorKind, OpenError, Refusal};

/// Opens a link with the MAC address `mac`, beside that of the interface.
pub(super) fn open(
    name: &str,
    mac: MacAddr,
    addresses: &[(IpAddr, u8)],
) -> Result<PacketLink, OpenError> {
    let groups = addresses.iter().filter_map(|(address, _)| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address.octets()),
    });
    // Neighbour discovery (RFC 4861): solicited-node groups end in the last three bytes of the address (RFC 2464 7).
    let solicited = groups.map(|[.., a, b, c]| [0x33, 0x33, 0xff, a, b, c]);
    let socket = PacketOptions {
        interface: name.to_owned(),
        mac: mac.0,
        multicast: solicited.collect(),
    }
    .open()
    .map_err(|error| refused(name, error))?;
    let options = PacketLinkOptions {
        ifindex: socket.index(),
        // The MTU of an Ethernet interface is at most 65,535 (linux include/uapi/linux/if_ether.h ETH_MAX_MTU).
        mtu: u16::try_from(socket.mtu()).unwrap_or(u16::MAX),
        look,
    };
    PacketLink::new(socket.into_fd(), options).map_err(OpenError::system("epoll"))
}

fn look(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<PacketSocketStatus> {
    let state = match packet::presence(socket, ifindex)? {
        Presence::Up => LinkState::Up,
        Presence::Down => LinkState::Down,
        Presence::Gone => LinkState::Gone,
    };
    let lost = packet::take_drops(socket)?.into();
    Ok(PacketSocketStatus { state, lost })
}

fn refused(name: &str, error: PacketError) -> OpenError {
    let errno = Errno(error.errno().raw_os_error());
    let kind = match error {
        PacketError::NoInterface { source, .. } => return OpenError::no_interface(name, source),
        PacketError::NotRaw { .. } => ErrorKind::PermissionDenied,
        PacketError::Unsupported { .. } => ErrorKind::Unsupported,
        PacketError::NotEthernet { .. } => ErrorKind::InvalidInput,
        PacketError::Down { .. } | PacketError::Netlink(_) | PacketError::Call { .. } => {
            ErrorKind::of_errno(errno)
        }
    };
    Refusal::new(kind, errno, error.to_string())
        .with_remedy(error.remedy().unwrap_or_default())
        .on(name)
        .caused_by(io::Error::from(error.errno()))
        .into()
}

/// The error of an impairment on a packet link.
pub(super) fn cannot_be_impaired(name: &str) -> Refusal {
    let reason = format!(
        "packet:{name} cannot be impaired: the kernel merges its packets, and an impairment works on single ones"
    );
    Refusal::new(ErrorKind::InvalidInput, Errno::EINVAL, reason).with_remedy(format!(
        "impair the interface: tc qdisc add dev {name} root netem loss 1%, or use a TAP link"
    ))
}
