//! Four-tuples are those of received packets: the peer is the source.

use std::net::SocketAddr;

use wire::FourTuple;

/// Returns the four-tuple of packets from `remote` to `local`.
pub(crate) fn four_tuple(local: SocketAddr, remote: SocketAddr) -> FourTuple {
    FourTuple {
        src_ip: remote.ip(),
        dst_ip: local.ip(),
        src_port: remote.port(),
        dst_port: local.port(),
    }
}

/// Returns the endpoints of a four-tuple of received packets.
pub(crate) fn endpoints(tuple: &FourTuple) -> tcp::Endpoints {
    tcp::Endpoints {
        local: SocketAddr::new(tuple.dst_ip, tuple.dst_port),
        remote: SocketAddr::new(tuple.src_ip, tuple.src_port),
    }
}
