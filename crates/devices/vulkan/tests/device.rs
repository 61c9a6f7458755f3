//! A Vulkan device, where one is; Mesa's software driver is one (Debian: `apt install libvulkan1 mesa-vulkan-drivers`).
//! `DEVMEM_REQUIRE=vulkan` makes it a failure that there is none.

use std::sync::Arc;

use devmem_linux::test_util::skip;
use devmem_vulkan::{Allocation, Device, VulkanError, devices};
use netmem::{
    CopyError, CopyPiece, CopyWay, DeviceState, Dmabuf, DmabufId, Exporter, Lane, MemoryProvider,
    NiovSize, contract, in_child,
};

/// Returns the first device; prints why there is none.
fn device(test: &str) -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let reason = error.to_string().replace("\n ", ";");
            skip(test, "vulkan", &reason);
            None
        }
    }
}

/// Memory that the CPU maps, if the device has such, and memory that it does not access.
fn both(device: &Device, size: usize) -> [Dmabuf; 2] {
    let memory = |made: Result<Allocation, VulkanError>| made.expect("memory").into_dmabuf();
    [
        memory(device.alloc(size)),
        memory(device.alloc_unmapped(size)),
    ]
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251) as u8 ^ (at >> 12) as u8)
        .collect()
}

#[test]
fn the_devices_are_described_and_others_are_refused() {
    let Some(device) = device("the_devices_are_described_and_others_are_refused") else {
        return;
    };
    let all = devices().expect("there is one");
    let info = device.info();
    assert_eq!(all[0], info);
    assert!(info.memory_bytes > 0 && !info.name.is_empty(), "{info:?}");
    let count = u32::try_from(all.len()).expect("few");
    let refused = Device::open(count).expect_err("one too far");
    let ordinal = count;
    assert_eq!(refused, VulkanError::NoDevice { ordinal, count });
    for size in [0, 1, 4097] {
        let refused = device.alloc(size).expect_err("no pages");
        assert_eq!(refused, VulkanError::Size { size });
    }
    let refused = device.alloc(1 << 50).expect_err("a petabyte").to_string();
    assert!(refused.starts_with("vk"), "{refused}");
}

#[test]
fn bytes_survive_the_way_to_the_device_and_back() {
    let Some(device) = device("bytes_survive_the_way_to_the_device_and_back") else {
        return;
    };
    let bytes = pattern(1 << 20);
    for memory in both(&device, 1 << 20) {
        memory.copy_in(0, &bytes).expect("copied");
        assert!(memory.slice(0..bytes.len()).to_vec() == bytes);
        memory
            .copy_from(&memory, 1, 100_001, 800_000)
            .expect("overlapping");
        assert!(memory.slice(100_001..900_001).to_vec() == bytes[1..800_001]);
        memory.fill(3..500_000, 7).expect("inside");
        assert!(memory.slice(3..500_000).to_vec() == vec![7; 499_997]);
        assert_eq!(memory.slice(0..4).to_vec(), [&bytes[..3], &[7]].concat());
    }
}

#[test]
fn memory_keeps_the_contract_of_providers() {
    let Some(device) = device("memory_keeps_the_contract_of_providers") else {
        return;
    };
    for memory in both(&device, 1 << 20) {
        for niov in [4096, 65_536] {
            let niov = NiovSize::new(niov).expect("a size");
            let provider =
                MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov).expect("whole net_iovs");
            let provider: Arc<MemoryProvider> = Arc::new(provider);
            contract::check(&provider);
        }
    }
}

#[test]
fn a_gather_of_many_pieces_is_right_in_every_byte() {
    let Some(device) = device("a_gather_of_many_pieces_is_right_in_every_byte") else {
        return;
    };
    let bytes = pattern(2 << 20);
    let ranges: Vec<_> = (0..1024).map(|n| n * 2047..n * 2047 + 1448).collect();
    let expected: Vec<u8> = ranges
        .iter()
        .flat_map(|range| bytes[range.clone()].to_vec())
        .collect();
    for source in both(&device, 2 << 20) {
        source.copy_in(0, &bytes).expect("copied");
        for target in both(&device, 2 << 20) {
            let gathered = target
                .gather_from(&source, ranges.clone(), 3)
                .expect("inside");
            let mut gathered = gathered.expect("memory of one device");
            assert!(gathered.fence().is_some(), "the device copies");
            while !gathered.is_done().expect("it copies") {}
            assert!(target.slice(3..3 + expected.len()).to_vec() == expected);
        }
    }
}

#[test]
fn memory_is_exported_where_the_driver_can() {
    let Some(device) = device("memory_is_exported_where_the_driver_can") else {
        return;
    };
    let allocation = device.alloc(2 << 20).expect("memory");
    let supported = device.info().dmabuf_supported;
    match allocation.export() {
        Ok(fd) => println!("exported as {fd:?}"),
        Err(error) if !supported => {
            let text = error.to_string();
            assert!(text.starts_with("vkGetMemoryFdKHR failed: "), "{text}");
            let refused = allocation.as_dmabuf().expect_err("the same");
            assert_eq!(VulkanError::Call(refused), error);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn memory_is_dropped_in_any_order_and_ranges_are_checked() {
    let Some(device) = device("memory_is_dropped_in_any_order_and_ranges_are_checked") else {
        return;
    };
    let memory = device
        .alloc_unmapped(1 << 20)
        .expect("memory")
        .into_dmabuf();
    drop(device);
    let exporter: &Arc<dyn Exporter> = memory.exporter().expect("it has one");
    let engine = Arc::clone(memory.copy_engine().expect("it has one"));
    let way = CopyWay::Within {
        from: exporter.as_ref(),
        to: exporter.as_ref(),
    };
    let piece = |len| CopyPiece {
        from: 0,
        to: 4096,
        len,
    };
    // More than can be in flight.
    let fences: Vec<_> = (0..200)
        .map(|_| engine.submit(Lane::Gather, way, &[piece(4096)]))
        .collect();
    for fence in fences {
        let fence = fence.expect("submitted");
        engine.wait(fence).expect("done");
        assert_eq!(engine.is_done(fence), Ok(true));
    }
    let host = Dmabuf::anonymous(4096).expect("memory");
    let foreign = CopyWay::Within {
        from: &host,
        to: exporter.as_ref(),
    };
    let refused = engine
        .submit(Lane::In, foreign, &[piece(1)])
        .expect_err("of no device");
    assert_eq!(refused.call, "copy");
    for refused in [0, 4097, usize::MAX] {
        let refused = engine
            .submit(Lane::In, way, &[piece(refused)])
            .expect_err("no range");
        assert_eq!(refused.call, "copy");
    }
    engine
        .submit(Lane::Gather, way, &[piece(4096)])
        .expect("in flight");
    drop(memory);
    drop(engine);
}

#[test]
fn a_child_by_fork_gets_errors_and_frees_nothing() {
    let Some(device) = device("a_child_by_fork_gets_errors_and_frees_nothing") else {
        return;
    };
    for (memory, dropped) in both(&device, 4096).into_iter().zip(both(&device, 4096)) {
        memory.copy_in(0, b"of the parent").expect("inside");
        let code = in_child(|| {
            let refused = memory.copy_in(0, b"of the child").expect_err("forked");
            let CopyError::Device(refused) = refused else {
                panic!("{refused}");
            };
            assert_eq!(refused.state, DeviceState::Forked);
            assert_eq!(Device::open(0).expect_err("forked"), VulkanError::Forked);
            drop(dropped);
            0
        });
        assert_eq!(code, Some(0));
        assert_eq!(memory.slice(0..13).to_vec(), b"of the parent");
    }
}
