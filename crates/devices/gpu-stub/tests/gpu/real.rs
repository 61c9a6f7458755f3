//! A GPU, where one is: `DEVMEM_REQUIRE=cuda` or `=hip` makes it a failure that there is none.
//! `cargo test -p devmem-gpu-stub --test gpu real`.

use std::sync::Arc;

use devmem_gpu::Device;
use devmem_linux::test_util::skip;
use netmem::{Dmabuf, DmabufId, Lane, MemoryProvider, NiovSize, contract};

use super::adopted::{adopt, adopt_exported};
use super::support::{Api, copy_ten_bytes};

/// Returns the first GPU of each vendor; prints why there is none.
pub(super) fn gpus(test: &str) -> Vec<Device> {
    let open = |api: Api| match api.open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let reason = error.to_string().replace("\n ", ";");
            skip(test, api.platform().name, &reason);
            None
        }
    };
    Api::ALL.into_iter().filter_map(open).collect()
}

pub(super) fn memory(device: &Device, size: usize) -> Dmabuf {
    device.alloc(size).expect("memory").into_dmabuf()
}

#[test]
fn the_gpu_is_described() {
    for device in gpus("the_gpu_is_described") {
        let info = device.info().expect("facts");
        println!("{info:?}");
        assert!(info.memory_bytes > 0 && !info.name.is_empty() && info.pci_address.contains(':'));
    }
}

#[test]
fn bytes_survive_the_way_to_the_gpu_and_back() {
    for device in gpus("bytes_survive_the_way_to_the_gpu_and_back") {
        let memory = memory(&device, 4 << 20);
        let bytes: Vec<u8> = (0..4 << 20)
            .map(|at: u32| (at % 251) as u8 ^ (at >> 12) as u8)
            .collect();
        memory.copy_in(0, &bytes).expect("copied");
        assert!(memory.slice(0..bytes.len()).to_vec() == bytes);
        memory
            .copy_from(&memory, 1, 100_001, 3 << 20)
            .expect("overlapping");
        assert!(memory.slice(100_001..100_001 + (3 << 20)).to_vec() == bytes[1..1 + (3 << 20)]);
    }
}

#[test]
fn staged_batches_keep_the_contract_of_providers() {
    for device in gpus("staged_batches_keep_the_contract_of_providers") {
        let memory = memory(&device, 2 << 20);
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
    for device in gpus("a_gather_of_many_pieces_is_right_in_every_byte") {
        let (source, target) = (memory(&device, 2 << 20), memory(&device, 2 << 20));
        let bytes: Vec<u8> = (0..2 << 20).map(|at: u32| (at % 253) as u8).collect();
        source.copy_in(0, &bytes).expect("copied");
        let ranges: Vec<_> = (0..1024).map(|n| n * 2047..n * 2047 + 1448).collect();
        let gathered = target
            .gather_from(&source, ranges.clone(), 3)
            .expect("inside");
        gathered.expect("one device").wait().expect("copied");
        let expected: Vec<u8> = ranges
            .into_iter()
            .flat_map(|range| bytes[range].to_vec())
            .collect();
        assert!(target.slice(3..3 + expected.len()).to_vec() == expected);
    }
}

#[test]
fn vectors_are_added_as_the_cpu_adds_them() {
    for device in gpus("vectors_are_added_as_the_cpu_adds_them") {
        match device.adder() {
            Ok(adder) => super::added::check(&device, &adder, 5_000_003),
            Err(error) => assert!(device.platform() != Api::Cuda.platform(), "{error}"),
        }
    }
}

#[test]
fn checksums_of_the_gpu_are_those_of_the_cpu() {
    for device in gpus("checksums_of_the_gpu_are_those_of_the_cpu") {
        let is_nvidia = device.platform() == Api::Cuda.platform();
        let by_device = super::checksums::check(&device, &[0, 1, 4096, 1_000_003]);
        // Of 4096 bytes from an unaligned one on, there is no whole chunk.
        assert_eq!(by_device, if is_nvidia { 2 + 5 } else { 0 });
        // The kernel is started for 1 GiB at a time.
        let mut bytes = vec![7; (1 << 30) + (4 << 20)];
        bytes[1 << 30..][..10].copy_from_slice(b"next start");
        let memory = memory(&device, bytes.len());
        memory.copy_in(0, &bytes).expect("copied");
        let range = 1..bytes.len() - 2;
        let sum = memory.crc32c(range.clone()).expect("inside");
        assert_eq!(sum.value, crc32c::crc32c(&bytes[range]));
        assert_eq!(sum.device.is_some(), is_nvidia);
    }
}

#[test]
fn memory_is_exported_where_the_driver_can() {
    for device in gpus("memory_is_exported_where_the_driver_can") {
        let allocation = device.alloc(2 << 20).expect("memory");
        let supported = device.info().expect("facts").dmabuf_supported;
        match allocation.export() {
            Ok(fd) => println!("exported as {fd:?}"),
            Err(error) if !supported => {
                println!("the driver says that it cannot, and refuses: {error}")
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// As NCCL's plugin does it with memory of NCCL.
#[test]
fn memory_of_another_library_is_found_adopted_and_revoked() {
    let test = "memory_of_another_library_is_found_adopted_and_revoked";
    for device in gpus(test) {
        let theirs = device.alloc(2 << 20).expect("memory");
        let address = theirs.device_ptr();
        if device.platform() == Api::Cuda.platform() {
            let place = devmem_cuda::locate(address + 4096).expect("the driver knows it");
            assert_eq!(place.device, device.ordinal());
            assert_ne!(place.allocation, 0, "the driver numbers allocations");
        }
        let adopted = match theirs.export() {
            Ok(fd) => {
                let fd = fd.try_clone_to_owned().expect("dup");
                adopt_exported(&device, address, 2 << 20, fd)
            }
            Err(_) => adopt(&device, address, 2 << 20),
        };
        let adopted = Arc::new(adopted.expect("memory of this device"));
        let memory = adopted.dmabuf();
        memory.copy_in(1, b"ours").expect("copied");
        adopted.revoke();
        assert!(memory.copy_in(1, b"late").is_err());
        assert_eq!(theirs.into_dmabuf().slice(1..5).to_vec(), b"ours");
        let words = device.alloc_shared(65_552).expect("host memory");
        assert_ne!(words.device_ptr(), 0);
        words.publish(65_551, 1);
        let parts = device.alloc_adjacent(&[4 << 20, 1 << 20]).expect("memory");
        let first = parts[0].device_ptr();
        assert_eq!(parts[1].device_ptr(), first + (4 << 20));
    }
}

#[test]
fn waiting_fences_and_drops_in_any_order_are_harmless() {
    for device in gpus("waiting_fences_and_drops_in_any_order_are_harmless") {
        let memory = memory(&device, 1 << 20);
        drop(device);
        let engine = Arc::clone(memory.copy_engine().expect("it has one"));
        let submit = |_| copy_ten_bytes(&memory, Lane::Gather).expect("submitted");
        let fences: Vec<_> = (0..300).map(submit).collect();
        for fence in fences {
            engine.wait(fence).expect("done");
            assert_eq!(engine.is_done(fence), Ok(true));
        }
        drop(memory);
        drop(engine);
    }
}
