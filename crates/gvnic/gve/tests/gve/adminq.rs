//! Admin commands that a correct driver never sends.

use std::rc::Rc;

use crate::common::frames::Frame;
use crate::common::{Bench, RAM_BASE, take_all_rx, up_default};
use gve::RxOutcome;
use gve_defs::adminq::{
    AdminqStatus, ConfigureDeviceResources, ConfigureRss, CreateRxQueue, CreateTxQueue,
    DescribeDevice, DestroyQueue, ExtendedCommand, GetPtypeMap, QueryRss, ReportLinkSpeed,
    ReportStats, SetDriverParameter, VerifyDriverCompatibility, opcode,
};
use gve_defs::registers::{ADMINQ_DOORBELL, ADMINQ_EVENT_COUNTER};
use gve_driver::{BarAccess, Driver};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Returns a probed device without queues.
fn probed() -> (Bench, Driver) {
    let mut bench = Bench::new();
    let driver = Driver::probe(Rc::clone(&bench.ram), &mut bench).unwrap();
    (bench, driver)
}

fn status(
    bench: &mut Bench,
    driver: &mut Driver,
    opcode: u32,
    body: &(impl IntoBytes + Immutable + ?Sized),
) -> AdminqStatus {
    driver.command(bench, opcode, body).unwrap()
}

/// Addresses at which a struct is not, or not completely, in memory.
fn bad_addresses(bench: &Bench) -> [u64; 5] {
    let last = bench.ram.end() - 1;
    [0, RAM_BASE - 1, last, u64::MAX, u64::MAX - 7]
}

#[test]
fn unknown_commands_are_unimplemented() {
    let (mut bench, mut driver) = probed();
    let not_there = [
        0,
        opcode::REGISTER_PAGE_LIST,
        opcode::UNREGISTER_PAGE_LIST,
        opcode::REPORT_NIC_TIMESTAMP,
        0x13,
        0x101,
        u32::MAX,
    ];
    for opcode in not_there {
        let status = status(&mut bench, &mut driver, opcode, &[0xffu8; 56]);
        assert_eq!(status, AdminqStatus::UNIMPLEMENTED, "{opcode:#x}");
    }
}

#[test]
fn every_command_with_all_bits_set_is_refused() {
    let (mut bench, mut driver) = up_default();
    let may_pass = [opcode::DECONFIGURE_DEVICE_RESOURCES];
    for opcode in (0..0x200).filter(|opcode| !may_pass.contains(opcode)) {
        let status = status(&mut bench, &mut driver, opcode, &[0xffu8; 56]);
        assert_ne!(status, AdminqStatus::PASSED, "{opcode:#x}");
        assert_ne!(status, AdminqStatus::UNSET, "{opcode:#x}");
    }
    assert_eq!(
        bench.receive_plain(&Frame::tcp4(1).bytes()),
        RxOutcome::Delivered
    );
    assert_eq!(take_all_rx(&mut bench, &mut driver).len(), 1);
}

#[test]
fn interrupts_are_deconfigured_only_after_all_queues_are_destroyed() {
    let (mut bench, mut driver) = up_default();
    let deconfigure = opcode::DECONFIGURE_DEVICE_RESOURCES;
    let refused = status(&mut bench, &mut driver, deconfigure, &[0u8; 0]);
    assert_eq!(refused, AdminqStatus::FAILED_PRECONDITION);
    driver.down(&mut bench).unwrap();
    let passed = status(&mut bench, &mut driver, deconfigure, &[0u8; 0]);
    assert_eq!(passed, AdminqStatus::PASSED);
    let (addr, _) = driver.argument();
    let create = good_tx(addr);
    let refused = status(&mut bench, &mut driver, opcode::CREATE_TX_QUEUE, &create);
    assert_eq!(refused, AdminqStatus::FAILED_PRECONDITION);
}

#[test]
fn commands_with_an_answer_outside_of_memory_are_refused() {
    let (mut bench, mut driver) = probed();
    for addr in bad_addresses(&bench) {
        let describe = DescribeDevice {
            device_descriptor_addr: addr.into(),
            device_descriptor_version: 1.into(),
            available_length: 4096.into(),
        };
        let ptypes = GetPtypeMap {
            ptype_map_len: 2048.into(),
            ptype_map_addr: addr.into(),
        };
        let speed = ReportLinkSpeed {
            link_speed_address: addr.into(),
        };
        let query = QueryRss {
            available_length: 4096.into(),
            rss_descriptor_addr: addr.into(),
        };
        let verify = VerifyDriverCompatibility {
            driver_info_len: 304.into(),
            driver_info_addr: addr.into(),
        };
        let extended = ExtendedCommand {
            inner_opcode: opcode::CONFIGURE_FLOW_RULE.into(),
            inner_length: 92.into(),
            inner_command_addr: addr.into(),
        };
        let mut rss = ConfigureRss::new_zeroed();
        rss.hash_alg = 1;
        rss.hash_key_size = 40.into();
        rss.hash_key_addr = addr.into();
        for (opcode, body) in [
            (opcode::DESCRIBE_DEVICE, describe.as_bytes()),
            (opcode::GET_PTYPE_MAP, ptypes.as_bytes()),
            (opcode::REPORT_LINK_SPEED, speed.as_bytes()),
            (opcode::QUERY_RSS, query.as_bytes()),
            (opcode::VERIFY_DRIVER_COMPATIBILITY, verify.as_bytes()),
            (opcode::EXTENDED_COMMAND, extended.as_bytes()),
            (opcode::CONFIGURE_RSS, rss.as_bytes()),
        ] {
            let status = status(&mut bench, &mut driver, opcode, body);
            assert_eq!(
                status,
                AdminqStatus::INVALID_ARGUMENT,
                "{opcode:#x} at {addr:#x}"
            );
        }
    }
}

#[test]
fn commands_with_too_little_room_for_the_answer_are_refused() {
    let (mut bench, mut driver) = probed();
    let (addr, _) = driver.argument();
    let needed = driver.description().len() as u32;
    for (room, version, expected) in [
        (needed, 1, AdminqStatus::PASSED),
        (needed - 1, 1, AdminqStatus::INVALID_ARGUMENT),
        (0, 1, AdminqStatus::INVALID_ARGUMENT),
        (4096, 0, AdminqStatus::INVALID_ARGUMENT),
        (4096, 2, AdminqStatus::INVALID_ARGUMENT),
    ] {
        let describe = DescribeDevice {
            device_descriptor_addr: addr.into(),
            device_descriptor_version: version.into(),
            available_length: room.into(),
        };
        let got = status(&mut bench, &mut driver, opcode::DESCRIBE_DEVICE, &describe);
        assert_eq!(got, expected);
    }
    let query = QueryRss {
        available_length: 559.into(),
        rss_descriptor_addr: addr.into(),
    };
    let got = status(&mut bench, &mut driver, opcode::QUERY_RSS, &query);
    assert_eq!(got, AdminqStatus::INVALID_ARGUMENT);
}

#[test]
fn invalid_notification_blocks_are_refused() {
    let (mut bench, mut driver) = probed();
    let (addr, _) = driver.argument();
    let deconfigure = opcode::DECONFIGURE_DEVICE_RESOURCES;
    assert_eq!(
        status(&mut bench, &mut driver, deconfigure, &[0u8; 0]),
        AdminqStatus::PASSED
    );
    let good = ConfigureDeviceResources {
        counter_array: 0.into(),
        irq_db_addr: addr.into(),
        num_counters: 0.into(),
        num_irq_dbs: 8.into(),
        irq_db_stride: 64.into(),
        ntfy_blk_msix_base_idx: 0.into(),
        queue_format: 3,
        padding: [0; 7],
    };
    let spoils: [&dyn Fn(&mut ConfigureDeviceResources); 9] = [
        &|bad| bad.queue_format = 2,
        &|bad| bad.num_irq_dbs = 0.into(),
        &|bad| bad.num_irq_dbs = 9.into(),
        &|bad| bad.num_irq_dbs = u32::MAX.into(),
        &|bad| bad.ntfy_blk_msix_base_idx = 1.into(),
        &|bad| bad.ntfy_blk_msix_base_idx = 65_536.into(),
        &|bad| bad.irq_db_stride = 3.into(),
        &|bad| bad.irq_db_stride = u32::MAX.into(),
        &|bad| bad.irq_db_addr = u64::MAX.into(),
    ];
    let configure = opcode::CONFIGURE_DEVICE_RESOURCES;
    for (index, spoil) in spoils.iter().enumerate() {
        let mut bad = good;
        spoil(&mut bad);
        let got = status(&mut bench, &mut driver, configure, &bad);
        assert_eq!(got, AdminqStatus::INVALID_ARGUMENT, "spoil {index}");
    }
    assert_eq!(
        status(&mut bench, &mut driver, configure, &good),
        AdminqStatus::PASSED
    );
    let again = status(&mut bench, &mut driver, configure, &good);
    assert_eq!(again, AdminqStatus::ALREADY_EXISTS);
}

fn good_tx(memory: u64) -> CreateTxQueue {
    CreateTxQueue {
        queue_id: 0.into(),
        reserved: 0.into(),
        queue_resources_addr: memory.into(),
        tx_ring_addr: memory.into(),
        queue_page_list_id: u32::MAX.into(),
        ntfy_id: 0.into(),
        tx_comp_ring_addr: memory.into(),
        tx_ring_size: 256.into(),
        tx_comp_ring_size: 256.into(),
        padding: [0; 4],
    }
}

fn good_rx(memory: u64) -> CreateRxQueue {
    CreateRxQueue {
        queue_id: 0.into(),
        index: 0.into(),
        reserved: 0.into(),
        ntfy_id: 4.into(),
        queue_resources_addr: memory.into(),
        rx_desc_ring_addr: memory.into(),
        rx_data_ring_addr: memory.into(),
        queue_page_list_id: u32::MAX.into(),
        rx_ring_size: 256.into(),
        packet_buffer_size: 4096.into(),
        rx_buff_ring_size: 256.into(),
        enable_rsc: 0,
        padding1: 0,
        header_buffer_size: 256.into(),
        padding2: [0; 2],
    }
}

#[test]
fn invalid_tx_queues_are_refused() {
    let (mut bench, mut driver) = probed();
    let memory = bench.ram.alloc(1 << 16);
    let good = good_tx(memory);
    let create = opcode::CREATE_TX_QUEUE;
    let mut refuse = |spoil: &dyn Fn(&mut CreateTxQueue)| {
        let mut bad = good;
        spoil(&mut bad);
        let got = status(&mut bench, &mut driver, create, &bad);
        assert_eq!(got, AdminqStatus::INVALID_ARGUMENT, "{bad:?}");
    };
    for size in [0, 1, 128, 255, 257, 300, 8192, u16::MAX] {
        refuse(&|bad| bad.tx_ring_size = size.into());
        refuse(&|bad| bad.tx_comp_ring_size = size.into());
    }
    let end = (64 << 20) + RAM_BASE;
    for addr in [
        0,
        end - 16,
        end,
        u64::MAX,
        u64::MAX - 15,
        u64::MAX - 4095,
        memory + 4,
    ] {
        refuse(&|bad| bad.tx_ring_addr = addr.into());
        refuse(&|bad| bad.tx_comp_ring_addr = addr.into());
    }
    for id in [4, 5, 65_536, u32::MAX] {
        refuse(&|bad| bad.queue_id = id.into());
    }
    for id in [8, 65_536, u32::MAX] {
        refuse(&|bad| bad.ntfy_id = id.into());
    }
    refuse(&|bad| bad.queue_page_list_id = 0.into());
    refuse(&|bad| bad.queue_resources_addr = 0.into());
    assert_eq!(
        status(&mut bench, &mut driver, create, &good),
        AdminqStatus::PASSED
    );
    let again = status(&mut bench, &mut driver, create, &good);
    assert_eq!(again, AdminqStatus::ALREADY_EXISTS);
}

#[test]
fn invalid_rx_queues_are_refused() {
    let (mut bench, mut driver) = probed();
    let memory = bench.ram.alloc(1 << 16);
    let good = good_rx(memory);
    let create = opcode::CREATE_RX_QUEUE;
    let mut refuse = |spoil: &dyn Fn(&mut CreateRxQueue)| {
        let mut bad = good;
        spoil(&mut bad);
        let got = status(&mut bench, &mut driver, create, &bad);
        assert_eq!(got, AdminqStatus::INVALID_ARGUMENT, "{bad:?}");
    };
    for size in [0, 1, 255, 257, 8192, u16::MAX] {
        refuse(&|bad| bad.rx_ring_size = size.into());
        refuse(&|bad| bad.rx_buff_ring_size = size.into());
    }
    for addr in [0, u64::MAX, u64::MAX - 31, memory + 16] {
        refuse(&|bad| bad.rx_desc_ring_addr = addr.into());
        refuse(&|bad| bad.rx_data_ring_addr = addr.into());
    }
    for size in [0, 1, 2047, 4097, u16::MAX] {
        refuse(&|bad| bad.packet_buffer_size = size.into());
    }
    for size in [1024, u16::MAX] {
        refuse(&|bad| bad.header_buffer_size = size.into());
    }
    refuse(&|bad| bad.queue_id = 4.into());
    refuse(&|bad| bad.ntfy_id = 8.into());
    refuse(&|bad| bad.queue_page_list_id = 1.into());
    refuse(&|bad| bad.queue_resources_addr = u64::MAX.into());
    assert_eq!(
        status(&mut bench, &mut driver, create, &good),
        AdminqStatus::PASSED
    );
    let again = status(&mut bench, &mut driver, create, &good);
    assert_eq!(again, AdminqStatus::ALREADY_EXISTS);
}

#[test]
fn destroying_a_missing_queue_is_refused() {
    let (mut bench, mut driver) = probed();
    for opcode in [opcode::DESTROY_TX_QUEUE, opcode::DESTROY_RX_QUEUE] {
        for id in [0, 3, 4, u32::MAX] {
            let destroy = DestroyQueue {
                queue_id: id.into(),
            };
            let got = status(&mut bench, &mut driver, opcode, &destroy);
            assert_eq!(got, AdminqStatus::NOT_FOUND);
        }
    }
}

#[test]
fn parameters_and_reports_are_range_checked() {
    let (mut bench, mut driver) = probed();
    for (kind, value, expected) in [
        (1, 1500, AdminqStatus::PASSED),
        (1, 9000, AdminqStatus::PASSED),
        (1, 9001, AdminqStatus::INVALID_ARGUMENT),
        (1, 67, AdminqStatus::INVALID_ARGUMENT),
        (1, u64::MAX, AdminqStatus::INVALID_ARGUMENT),
        (2, 0, AdminqStatus::UNIMPLEMENTED),
    ] {
        let set = SetDriverParameter {
            parameter_type: kind.into(),
            reserved: [0; 4],
            parameter_value: value.into(),
        };
        let got = status(&mut bench, &mut driver, opcode::SET_DRIVER_PARAMETER, &set);
        assert_eq!(got, expected, "{kind} {value}");
    }
    for (len, addr, interval, expected) in [
        (0, 0, 0, AdminqStatus::PASSED),
        (7, RAM_BASE, 0, AdminqStatus::INVALID_ARGUMENT),
        (u64::MAX, RAM_BASE, 0, AdminqStatus::INVALID_ARGUMENT),
        (64, u64::MAX, 0, AdminqStatus::INVALID_ARGUMENT),
        (64, 0, u64::MAX, AdminqStatus::PASSED),
        (1 << 40, RAM_BASE, 1, AdminqStatus::PASSED),
    ] {
        let report = ReportStats {
            stats_report_len: len.into(),
            stats_report_addr: addr.into(),
            interval: interval.into(),
        };
        let got = status(&mut bench, &mut driver, opcode::REPORT_STATS, &report);
        assert_eq!(got, expected, "{len} {addr:#x} {interval}");
        if let Some(due) = bench.device.poll_at() {
            bench.now = due;
            bench.poll();
        }
    }
}

#[test]
fn the_link_speed_is_reported() {
    let (mut bench, mut driver) = probed();
    let (addr, _) = driver.argument();
    let report = ReportLinkSpeed {
        link_speed_address: addr.into(),
    };
    let got = status(&mut bench, &mut driver, opcode::REPORT_LINK_SPEED, &report);
    assert_eq!(got, AdminqStatus::PASSED);
    assert_eq!(bench.ram.get(addr, 8), 100_000u64.to_be_bytes());
}

#[test]
fn a_doorbell_past_the_size_of_the_admin_queue_is_ignored() {
    let (mut bench, mut driver) = probed();
    let done = bench.register(ADMINQ_EVENT_COUNTER);
    let before = bench.stats().device;
    bench.write(0, ADMINQ_DOORBELL, &(done + 65).to_be_bytes());
    assert_eq!(bench.register(ADMINQ_EVENT_COUNTER), done + 65);
    let after = bench.stats().device;
    assert_eq!(after.adminq_broken, before.adminq_broken + 1);
    assert_eq!(after.adminq_commands, before.adminq_commands);
    driver.reset(&mut bench).unwrap();
}

#[test]
fn an_admin_queue_outside_of_guest_memory_executes_nothing() {
    for (len, base) in [
        (0u16, RAM_BASE),
        (63, RAM_BASE),
        (96, RAM_BASE),
        (4096, u64::MAX - 64),
        (4096, 0),
    ] {
        let mut bench = Bench::new();
        bench.write(0, 0x20, &((base >> 32) as u32).to_be_bytes());
        bench.write(0, 0x24, &(base as u32).to_be_bytes());
        bench.write(0, 0x28, &len.to_be_bytes());
        bench.write(0, 4, &1u32.to_be_bytes());
        for count in [1u32, 2, 66, 0, u32::MAX] {
            bench.write(0, ADMINQ_DOORBELL, &count.to_be_bytes());
        }
        assert_eq!(bench.stats().device.adminq_commands, 0);
        assert!(bench.stats().device.adminq_broken > 0);
    }
}

#[test]
fn the_event_counter_of_commands_wraps() {
    let (mut bench, mut driver) = probed();
    for _ in 0..300 {
        let got = status(
            &mut bench,
            &mut driver,
            opcode::REPORT_LINK_SPEED,
            &[0u8; 8],
        );
        assert_eq!(got, AdminqStatus::INVALID_ARGUMENT);
    }
}
