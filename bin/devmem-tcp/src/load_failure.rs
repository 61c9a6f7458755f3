//! Why a load or a store failed, with the next command.

use std::net::SocketAddr;

use devmem_tcp::ErrorKind;
use tool::output::Failure;
use tool::signals::StopFlag;
use transfer::load::{LoadError, Origin, Url};

/// Returns the error of a load, with the next command.
pub fn load_failure(error: LoadError, origin: &Origin, stop: &StopFlag) -> Failure {
    let (text, remedy) = match &error {
        LoadError::Cancelled if stop.is_set() => return Failure::interrupted(),
        LoadError::NoFamily { .. } => (error.to_string(), "give it one: --addr ADDR/LEN".to_owned()),
        LoadError::Connect { address, error: why } => match why.kind() {
            // A route to a group of hosts does not help.
            ErrorKind::NetworkUnreachable if !address.ip().is_multicast() => (
                format!("there is no route to {}", address.ip()),
                "--gateway ADDR names the router to other networks".to_owned(),
            ),
            ErrorKind::ConnectionRefused if proxy_of(origin).is_some() => (
                format!("{address}, the proxy of the environment, refuses the connection"),
                "correct http_proxy or https_proxy, or name the host in no_proxy if it needs no proxy".to_owned(),
            ),
            ErrorKind::ConnectionRefused => (
                format!("{address} refuses the connection: no program listens there"),
                format!("start one, for example `{}`", server(origin, *address)),
            ),
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    Failure::failed(text).with_remedy(remedy)
}

fn proxy_of(origin: &Origin) -> Option<&Url> {
    match origin {
        Origin::Http(request) => request.proxy(),
        _ => None,
    }
}

/// Returns a command that starts a server on a port of an address.
fn server(origin: &Origin, at: SocketAddr) -> String {
    let port = at.port();
    // Their default is IPv4 alone, on many systems.
    let any = if at.is_ipv6() { " --bind ::" } else { "" };
    match origin {
        Origin::Nbd(_) => {
            format!("qemu-nbd --persistent --shared 16 --format raw{any} --port {port} FILE")
        }
        Origin::Nvme(_) => {
            format!("nvmetcli restore, with a port of addr_trtype tcp and addr_trsvcid {port}")
        }
        _ if origin.is_encrypted() => {
            format!("openssl s_server -WWW -accept {port} -cert CERT -key KEY")
        }
        _ => format!("python3 -m http.server {port}{any}"),
    }
}
