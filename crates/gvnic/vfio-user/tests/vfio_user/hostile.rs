//! Faulty and hostile clients.

mod descriptors;
mod messages;
mod windows;

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl, ftruncate,
    memfd_create,
};
use vfio_user::{Command, Disconnect, DmaError, Event, MapError, ProtocolViolation, Session};

const MAP_RW: u32 = 3;
const ASSIGN: u32 = 0x24;

/// Nearly valid requests, and random bytes.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![Just(0u64), Just(0x1000), Just(0x2000), any::<u64>()];
    let body = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (0u32..8, small.clone(), small.clone(), small.clone())
            .prop_map(|(flags, offset, address, size)| dma_map(flags, offset, address, size)),
        (0u32..4, small.clone(), small.clone())
            .prop_map(|(flags, address, size)| dma_unmap(flags, address, size)),
        (
            0u32..10,
            small,
            0u32..0x2000,
            prop::collection::vec(any::<u8>(), 0..24)
        )
            .prop_map(|(region, offset, count, data)| access(region, offset, count, &data)),
        (
            prop_oneof![Just(0x21u32), Just(0x22), Just(0x24), any::<u32>()],
            0u32..5,
            0u32..5,
            0u32..5
        )
            .prop_map(|(flags, index, start, count)| set_irqs(flags, index, start, count)),
    ];
    (
        any::<u16>(),
        0u16..16,
        prop_oneof![9 => Just(0u32), 3 => Just(POSTED), 1 => any::<u32>()],
        body,
    )
        .prop_map(|(id, command, flags, body)| message(id, command, flags, &body))
}

proptest! {
    #[test]
    fn no_message_panics_the_session_and_every_reply_is_complete(messages in prop::collection::vec(any_message(), 0..40)) {
        let mut bench = Bench::new();
        let mut session = Session::default();
        let mut out = Vec::new();
        let mut bytes = message(0, VERSION, 0, &version_body());
        bytes.extend(messages.concat());
        let _ = session.on_bytes(&mut bench.device, bench.server.bus(), &bytes, &mut out);
        let mut rest = &out[..];
        while !rest.is_empty() {
            let size = usize::try_from(u32_at(rest, 4)).unwrap();
            prop_assert!((16..=rest.len()).contains(&size));
            rest = &rest[size..];
        }
        let dma = &bench.server.bus().dma;
        prop_assert!(dma.len() <= messages.len());
    }
}
