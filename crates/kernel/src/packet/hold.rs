//! The TCP ports that a stack in this process has at addresses of this machine.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::{PacketError, SharedStation};
use crate::netif;
use crate::nftables::HiddenPorts;

/// Keeps programs of this machine from using some ports, and the kernel from answering segments to them. Both end when this
/// value is dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct HeldPorts {
    _hidden: HiddenPorts,
    /// A bound socket for each port at each address.
    _sockets: Vec<OwnedFd>,
}

impl HeldPorts {
    pub(super) fn new(
        interface: &str,
        index: u32,
        station: &SharedStation,
    ) -> Result<Self, PacketError> {
        /// Makes the names of the tables of one process different.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let SharedStation { addresses, ports } = station;
        if *ports.start() == 0 || !(1..=SharedStation::MAX_PORTS).contains(&ports.len()) {
            let ports = ports.clone();
            return Err(PacketError::BadPorts { ports });
        }
        let of_interface = netif::addresses(index)?;
        let mut sockets = Vec::with_capacity(ports.len() * addresses.len());
        for address in addresses {
            if !of_interface.contains(address) {
                return Err(PacketError::NotItsAddress {
                    interface: interface.to_owned(),
                    address: *address,
                });
            }
            for port in ports.clone() {
                sockets.push(hold(*address, port, index)?);
            }
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let table = format!("devmem-tcp-{}-{number}", std::process::id());
        let hidden = HiddenPorts::new(&table, interface, addresses, ports)
            .map_err(PacketError::NotHidden)?;
        Ok(Self {
            _hidden: hidden,
            _sockets: sockets,
        })
    }
}

/// Binds a socket of the kernel to a port. It does not listen, and no other program can use the port.
fn hold(address: IpAddr, port: u16, index: u32) -> Result<OwnedFd, PacketError> {
    let (family, to) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, SocketAddr::new(address, port)),
        IpAddr::V6(v6) => {
            let scope = if v6.is_unicast_link_local() { index } else { 0 };
            let to = SocketAddrV6::new(v6, port, 0, scope);
            (AddressFamily::INET6, to.into())
        }
    };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| bind(&socket, &to).map(|()| socket))
        .map_err(|errno| match errno {
            Errno::ADDRINUSE => PacketError::PortInUse { address, port },
            errno => PacketError::NotHeld {
                address,
                port,
                errno,
            },
        })
}
