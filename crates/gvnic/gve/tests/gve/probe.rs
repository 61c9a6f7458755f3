//! Bring-up, reset and link changes, in the order of the Linux driver.

use std::rc::Rc;

use crate::common::frames::Frame;
use crate::common::{Bench, take_all_rx, up_default};
use gve::{LinkState, RxOutcome};
use gve_defs::adminq::stat_name;
use gve_defs::device_option::{
    BufferSizes, DeviceDescriptor, FEATURES, ID_BUFFER_SIZES, ID_DQO_RDA, ID_FLOW_STEERING,
    ID_JUMBO_FRAMES, ID_MODIFY_RING, ID_RSS_CONFIG, OptionHeader,
};
use gve_defs::registers::{
    ADMINQ_BASE_ADDRESS_LO, ADMINQ_EVENT_COUNTER, DEVICE_STATUS, STATUS_DEVICE_IS_RESET,
    STATUS_LINK_UP, STATUS_REPORT_STATS, STATUS_RESET_REQUESTED,
};
use gve_driver::{BarAccess, Driver, QueueOptions, TxRequest};
use zerocopy::FromBytes;

fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    while let Ok((header, rest)) = OptionHeader::read_from_prefix(bytes) {
        let (body, rest) = rest.split_at(header.option_length.get().into());
        assert_eq!(header.required_features_mask.get(), 0);
        options.push((header.option_id.get(), body.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    options
}

#[test]
fn probe_finds_every_option_of_the_specification() {
    let (_, driver) = up_default();
    let (descriptor, rest) = DeviceDescriptor::read_from_prefix(driver.description()).unwrap();
    assert_eq!(descriptor.mac, [2, 0, 0, 0, 0, 1]);
    assert_eq!(descriptor.mtu.get(), 1500);
    assert_eq!(descriptor.default_num_queues.get(), 4);
    let options = options(rest);
    assert_eq!(
        usize::from(descriptor.num_device_options.get()),
        options.len()
    );
    let ids: Vec<_> = options.iter().map(|(id, _)| *id).collect();
    let expected = [
        ID_DQO_RDA,
        ID_JUMBO_FRAMES,
        ID_BUFFER_SIZES,
        ID_MODIFY_RING,
        ID_FLOW_STEERING,
        ID_RSS_CONFIG,
    ];
    assert_eq!(ids, expected);
    assert_eq!(options[0].1[..4], FEATURES.to_be_bytes());
    assert_eq!(FEATURES, 0xb5);
    let sizes = BufferSizes::read_from_bytes(&options[2].1).unwrap();
    assert_eq!(sizes.packet_buffer_size.get(), 4096);
    assert_eq!(sizes.header_buffer_size.get(), 256);
}

#[test]
fn a_driver_can_probe_again_after_its_removal() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        let mut driver = Driver::probe(Rc::clone(&bench.ram), &mut bench).unwrap();
        driver.up(&mut bench, Default::default()).unwrap();
        driver.down(&mut bench).unwrap();
        driver.up(&mut bench, Default::default()).unwrap();
        driver.remove(&mut bench).unwrap();
    }
    assert_eq!(bench.stats().device.adminq_refused, 0);
    assert_eq!(bench.stats().device.bad_doorbells, 0);
}

#[test]
fn registers_can_be_read_with_any_width_and_offset() {
    let (bench, _) = up_default();
    let mut whole = [0xff; 4096];
    bench.device.read_bar(0, 0, &mut whole);
    assert_eq!(whole[0x2a..], [0; 4096 - 0x2a]);
    for offset in 0..48u64 {
        for width in [1usize, 2, 3, 4, 8] {
            let mut part = vec![0xff; width];
            bench.device.read_bar(0, offset, &mut part);
            let at = offset as usize;
            assert_eq!(part, whole[at..at + width]);
        }
    }
    for (bar, offset) in [(0, u64::MAX), (0, 4095), (1, 0), (2, 0), (9, 0)] {
        let mut part = [0xff; 4];
        bench.device.read_bar(bar, offset, &mut part);
        assert_eq!(part, [0; 4]);
    }
}

#[test]
fn registers_can_be_written_byte_by_byte() {
    let mut bench = Bench::new();
    for (at, byte) in (ADMINQ_BASE_ADDRESS_LO..).zip([0x12, 0x34, 0x56, 0x78]) {
        bench.write(0, at, &[byte]);
    }
    assert_eq!(bench.register(ADMINQ_BASE_ADDRESS_LO), 0x1234_5678);
    bench.write(0, u64::MAX, &[1, 2, 3, 4]);
    bench.write(0, DEVICE_STATUS, &[0xff; 4]);
    assert_eq!(bench.register(DEVICE_STATUS), STATUS_LINK_UP);
}

#[test]
fn the_status_has_the_reset_bit_from_a_driver_reset_to_the_next_start() {
    let (mut bench, mut driver) = up_default();
    bench.write(0, 4, &2u32.to_be_bytes());
    let status = bench.register(DEVICE_STATUS);
    assert_eq!(status, STATUS_DEVICE_IS_RESET | STATUS_LINK_UP);
    assert_eq!(bench.register(ADMINQ_EVENT_COUNTER), 0);
    driver.reset(&mut bench).unwrap();
    assert_eq!(bench.register(DEVICE_STATUS), STATUS_LINK_UP);
    assert_eq!(
        bench.receive_plain(&Frame::tcp4(10).bytes()),
        RxOutcome::Delivered
    );
    assert_eq!(take_all_rx(&mut bench, &mut driver).len(), 1);
}

#[test]
fn twenty_resets_during_a_transfer_lose_only_frames_in_flight() {
    let (mut bench, mut driver) = up_default();
    for round in 0..20u16 {
        let frame = Frame::tcp4(100).with_port(1000 + round).bytes();
        bench.wire.room = 0;
        driver
            .send(&mut bench, 0, &TxRequest::plain(&frame))
            .unwrap();
        assert!(bench.device.tx_blocked());
        bench.receive_plain(&frame);
        bench.with_env(|device, env| device.request_reset(env));
        let status = bench.register(DEVICE_STATUS);
        assert_eq!(status & STATUS_RESET_REQUESTED, STATUS_RESET_REQUESTED);
        assert_eq!(bench.take_irqs().last(), Some(&8));
        driver.reset(&mut bench).unwrap();
        assert_eq!(bench.register(DEVICE_STATUS) & STATUS_RESET_REQUESTED, 0);
        assert!(!bench.device.tx_blocked());
        bench.wire.room = usize::MAX;
        driver
            .send(&mut bench, 0, &TxRequest::plain(&frame))
            .unwrap();
        assert_eq!(bench.take_sent().len(), 1);
        bench.receive_plain(&frame);
        assert_eq!(
            take_all_rx(&mut bench, &mut driver).len(),
            1,
            "round {round}"
        );
    }
    assert_eq!(bench.stats().device.driver_resets, 20);
    assert_eq!(bench.stats().device.reset_requests, 20);
}

#[test]
fn a_bus_reset_removes_queues_rss_settings_and_the_admin_queue() {
    let (mut bench, mut driver) = up_default();
    driver
        .configure_rss(&mut bench, Some(&[7; 40]), None)
        .unwrap();
    bench.device.reset();
    assert_eq!(bench.register(ADMINQ_BASE_ADDRESS_LO), 0);
    assert_ne!(bench.device.steering().rss.key.0, [7; 40]);
    let frame = Frame::tcp4(10).bytes();
    let dropped = RxOutcome::Dropped(gve::DropReason::NoQueue);
    assert_eq!(bench.receive_plain(&frame), dropped);
}

#[test]
fn link_changes_raise_the_management_vector() {
    let (mut bench, mut driver) = up_default();
    bench.take_irqs();
    let frame = Frame::tcp4(10).bytes();
    for _ in 0..3 {
        bench.set_link(LinkState::Down);
        bench.set_link(LinkState::Down);
        assert_eq!(bench.take_irqs(), [8]);
        assert_eq!(bench.register(DEVICE_STATUS) & STATUS_LINK_UP, 0);
        let dropped = RxOutcome::Dropped(gve::DropReason::LinkDown);
        assert_eq!(bench.receive_plain(&frame), dropped);
        bench.set_link(LinkState::Up);
        assert_eq!(bench.take_irqs(), [8]);
        assert_eq!(
            bench.register(DEVICE_STATUS) & STATUS_LINK_UP,
            STATUS_LINK_UP
        );
        assert_eq!(bench.receive_plain(&frame), RxOutcome::Delivered);
        bench.take_irqs();
        take_all_rx(&mut bench, &mut driver);
    }
}

#[test]
fn without_a_driver_the_link_changes_silently() {
    let mut bench = Bench::new();
    bench.set_link(LinkState::Down);
    assert_eq!(bench.take_irqs(), [] as [u16; 0]);
    assert_eq!(bench.register(DEVICE_STATUS) & STATUS_LINK_UP, 0);
    bench.set_link(LinkState::Up);
    let mut driver = Driver::probe(Rc::clone(&bench.ram), &mut bench).expect("probe");
    driver.up(&mut bench, QueueOptions::default()).expect("up");
    bench.take_irqs();
    bench.set_link(LinkState::Down);
    assert_eq!(bench.take_irqs(), [8]);
}

#[test]
fn the_driver_is_asked_for_statistics() {
    let (mut bench, _driver) = up_default();
    bench.take_irqs();
    bench.with_env(|device, env| device.request_stats(env));
    assert_eq!(bench.take_irqs(), [8]);
    let status = bench.register(DEVICE_STATUS);
    assert_eq!(status, STATUS_REPORT_STATS | STATUS_LINK_UP);
}

#[test]
fn statistics_of_the_device_are_at_the_end_of_the_area() {
    let (mut bench, mut driver) = up_default();
    let mut bad = Frame::tcp4(10).bytes();
    *bad.last_mut().unwrap() ^= 1;
    bench.receive_plain(&bad);
    let queue = (0..4).find(|queue| !driver.poll_rx(*queue).unwrap().is_empty());
    assert_eq!(driver.device_stats(4)[0].stat_name.get(), 0);
    bench.now = bench.device.poll_at().expect("a report is due");
    bench.poll();
    let stats = driver.device_stats(4);
    let names: Vec<_> = stats.iter().map(|stat| stat.stat_name.get()).collect();
    assert_eq!(names[..4], [65, 66, 67, 68]);
    assert_eq!(stats.len(), 16);
    for (at, stat) in stats.iter().enumerate() {
        assert_eq!(stat.queue_id.get() as usize, at / stat_name::PER_RX_QUEUE);
    }
    let at = usize::from(queue.unwrap()) * stat_name::PER_RX_QUEUE + 3;
    assert_eq!(stats[at].value.get(), 1);
    driver.stop_rx(&mut bench, 3).unwrap();
    bench.now = bench.device.poll_at().expect("the next report is due");
    bench.poll();
    assert_eq!(driver.device_stats(3)[0].queue_id.get(), 0);
}
