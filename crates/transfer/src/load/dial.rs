//! Connecting to the host of a source.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use devmem_tcp::{ConnectOptions, Netdev, Stream};

use super::error::LoadError;

/// Time limit of one attempt to connect: a SYN and its repetitions after 1 and 3 seconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(7);

/// Returns the addresses of a host, of the IP versions that the NIC has, in the order of the system's resolver.
///
/// # Errors
/// [`LoadError::Resolve`] if there is none.
pub(crate) fn resolve(nic: &Netdev, host: &str, port: u16) -> Result<Vec<SocketAddr>, LoadError> {
    let failed = |source| LoadError::Resolve {
        host: host.to_owned(),
        source,
    };
    let ours = nic.addresses();
    let is_ours = |address: &SocketAddr| ours.iter().any(|ip| ip.is_ipv4() == address.is_ipv4());
    let found = (host, port).to_socket_addrs().map_err(failed)?;
    let found: Vec<_> = found.filter(is_ours).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(failed(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "none of the IP versions that the NIC has",
        ))),
    }
}

/// Connects to the first of `addresses` that answers.
///
/// # Errors
/// The error of the last one.
pub(crate) fn connect(nic: &Netdev, addresses: &[SocketAddr]) -> Result<Stream, LoadError> {
    let options = ConnectOptions::new().timeout(CONNECT_LIMIT);
    let mut failure = None;
    for &address in addresses {
        match nic.connect_with(address, &options) {
            Ok(stream) => {
                // Requests are small and follow each other.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(source) => failure = Some(LoadError::Connect { address, source }),
        }
    }
    Err(failure.unwrap_or_else(|| LoadError::Resolve {
        host: String::new(),
        source: io::ErrorKind::AddrNotAvailable.into(),
    }))
}
