//! Receiving: header split, coalescing, segmentation, several buffers, and none.

mod backlog;
mod split;
mod super_packets;

use std::num::NonZeroU32;

use crate::common::frames::{Frame, checked, payload};
use crate::common::{Bench, take_all_rx, take_rx, up, up_default};
use gve::{ChecksumState, DropReason, Faults, Offload, RxOutcome};
use gve_defs::desc_dqo::{
    RX_CSUM_IP_ERR, RX_CSUM_L4_ERR, RX_HEADER_BUFFER_OVERFLOW, RX_IPV6_EX, RX_L3_L4_PROCESSED,
    l3_type, l4_type,
};
use gve_driver::{Driver, QueueOptions, RxPacket};

fn receive_one(bench: &mut Bench, driver: &mut Driver, bytes: &[u8]) -> RxPacket {
    receive_one_with(bench, driver, bytes, Offload::default())
}

fn receive_one_with(
    bench: &mut Bench,
    driver: &mut Driver,
    bytes: &[u8],
    offload: Offload,
) -> RxPacket {
    assert_eq!(bench.receive(bytes, offload), RxOutcome::Delivered);
    let mut packets = take_all_rx(bench, driver);
    assert_eq!(packets.len(), 1);
    packets.remove(0)
}

fn one_queue(options: QueueOptions) -> (Bench, Driver) {
    up(QueueOptions {
        pairs: 1,
        ..options
    })
}

fn partial(frame: &Frame) -> Offload {
    Offload {
        checksum: ChecksumState::Partial(frame.checksum()),
        gso: None,
    }
}
