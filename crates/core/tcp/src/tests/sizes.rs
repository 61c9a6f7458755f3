//! Memory of a connection, without its payload.

use core::mem::size_of;
use std::sync::Arc;

use super::harness::{established_with, plain};
use crate::state::syn::SynReceived;
use crate::test_payload::Bytes;
use crate::test_socket::TestSocket;
use crate::*;

#[test]
fn the_memory_of_each_connection_is_bounded() {
    let sizes = [
        size_of::<Connection<Bytes>>(),
        size_of::<SynReceived>(),
        size_of::<ConnectionConfig>(),
    ];
    let bounds = [1392, 136, 32];
    assert!(
        sizes.iter().zip(bounds).all(|(size, bound)| *size <= bound),
        "connection, half-open entry, configuration: {sizes:?} bytes, allowed {bounds:?}"
    );
}

#[test]
fn connections_share_the_settings_of_their_stack() {
    let config = plain();
    let now = wire::Instant::ZERO;
    let connections = [1, 2, 3].map(|iss| TestSocket::connect(&config, SeqNum(iss), now));
    // Ours, and one of each connection.
    assert_eq!(Arc::strong_count(&config.shared), 1 + connections.len());
    let open = established_with(&config);
    assert_eq!(Arc::strong_count(&config.shared), 2 + connections.len());
    drop((open, connections));
    assert_eq!(Arc::strong_count(&config.shared), 1);
}
