//! The host to send to.

use std::net::{IpAddr, SocketAddr};

use devmem_tcp::link::LinkKind;

use super::LinkPlan;
use crate::args::BackendChoice;
use tool::output::Failure;

/// Port of `demo` and `recv`.
const DEFAULT_PORT: u16 = 5201;

/// Parses an address with or without a port; the port may also be a separate argument.
///
/// # Errors
///
/// A usage error with what to write instead.
pub(super) fn parse(text: &str, port: Option<u16>, link: &LinkPlan) -> Result<SocketAddr, Failure> {
    let to = match (text.parse::<SocketAddr>(), port) {
        (Ok(to), None) => to,
        (Ok(to), Some(port)) if to.port() != port => {
            let text = format!("{text} {port}: two different ports");
            return Err(Failure::usage(text).with_remedy("give one of them"));
        }
        (Ok(to), Some(_)) => to,
        (Err(_), port) => {
            let address = text.parse::<IpAddr>().map_err(|_| no_address(text, link))?;
            SocketAddr::new(address, port.unwrap_or(DEFAULT_PORT))
        }
    };
    if to.port() == 0 {
        return Err(Failure::usage("PORT 0: must be 1 to 65535"));
    }
    if to.ip().is_loopback() {
        return Err(on_the_loopback(text, link));
    }
    Ok(to)
}

/// Returns the error of a text that is not an address.
fn no_address(text: &str, link: &LinkPlan) -> Failure {
    let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
    if name == "localhost" {
        return on_the_loopback(text, link);
    }
    Failure::usage(format!("{text:?} is not an IP address")).with_remedy(format!(
        "`getent ahosts {name}` prints the addresses of a host"
    ))
}

/// Returns the error of an address of the loopback interface, which device memory does not pass.
fn on_the_loopback(text: &str, link: &LinkPlan) -> Failure {
    let failure = Failure::usage(format!("{text} is the kernel's loopback interface"));
    if link.backend == BackendChoice::Kernel {
        return failure
            .with_remedy("give an address that is reached through the interface of --if");
    }
    let name = link.tap.link.kind();
    if !matches!(name, LinkKind::Tap(_)) {
        return failure.with_remedy(format!(
            "{name} reaches other hosts; to reach this one, send over a TAP: devmem-tcp send --link tap:dm0 --addr 10.77.0.2/24 \
             --peer-addr 10.77.0.1/24 10.77.0.1"
        ));
    }
    let theirs = link.tap.peers.unwrap_or_else(|| link.tap.ours.neighbour());
    failure.with_remedy(format!(
        "to reach this host through the TAP: devmem-tcp send --peer-addr {theirs} {}",
        theirs.address
    ))
}
