//! CRC-32Cs that the device computes: the stub interprets the PTX that a GPU would be given.

use std::sync::Arc;

use devmem_cuda::open;
use devmem_gpu::Device;
use netmem::{CopyError, DeviceError, DeviceState, Dmabuf, RangeCrc32c, in_child};

use super::support::{Api, OPENED_MODULES, memory, with_stub};

/// Bytes of which one thread computes the checksum.
const CHUNK: usize = 4096;

fn bytes(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns memory with other bytes in each place, and the bytes.
fn filled(device: &Device, size: usize) -> (Dmabuf, Vec<u8>) {
    let (memory, bytes) = (memory(device, size), bytes(size));
    memory.copy_in(0, &bytes).expect("copied");
    (memory, bytes)
}

/// Computes the checksums of ranges of these lengths from different bytes on, and compares them with those that the CPU computes. Returns how many of
/// them the device has computed.
pub(super) fn check(device: &Device, lengths: &[usize]) -> usize {
    let longest = lengths.iter().max().expect("a length");
    let (memory, bytes) = filled(device, (longest + 64).next_multiple_of(4096));
    let mut by_device = 0;
    for &len in lengths {
        for start in [0, 1, 15, 16, 33] {
            let range = start..start + len;
            let sum = memory.crc32c(range.clone()).expect("inside");
            assert_eq!(
                sum.value,
                crc32c::crc32c(&bytes[range]),
                "{len} bytes from {start}"
            );
            by_device += usize::from(sum.device == Some(memory.copy_engine().unwrap().device()));
        }
    }
    by_device
}

fn device_error(result: Result<RangeCrc32c, CopyError>) -> DeviceError {
    match result {
        Err(CopyError::Device(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_checksum_is_that_of_the_cpu_for_every_length_and_start() {
    let log = with_stub("polls=2", || {
        let device = open(0).unwrap();
        // From aligned bytes on only: two of the five starts.
        assert_eq!(check(&device, &[CHUNK]), 2);
        assert_eq!(check(&device, &[CHUNK + 1]), 2 + 1);
        let whole = [CHUNK + 15, 2 * CHUNK - 1, 2 * CHUNK, 3 * CHUNK + 5];
        assert_eq!(check(&device, &whole), whole.len() * 5);
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuModuleLoadData"), OPENED_MODULES + 1);
        assert_eq!(log.count("cuModuleUnload"), OPENED_MODULES + 1);
        log.assert_all_freed();
    }
}

#[test]
fn bytes_without_a_whole_chunk_are_read_back_and_no_code_is_loaded() {
    let log = with_stub("devices=1", || {
        let device = open(0).unwrap();
        assert_eq!(check(&device, &[0, 1, 15, CHUNK - 1]), 0);
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuModuleLoadData"), OPENED_MODULES);
        log.assert_all_freed();
    }
}

#[test]
fn chunks_of_several_blocks_are_summed_on_the_device() {
    let log = with_stub("devices=1", || {
        let (memory, bytes) = filled(&open(0).unwrap(), 300 * CHUNK);
        let sum = memory.crc32c(7..bytes.len()).unwrap();
        assert_eq!(sum.device.as_deref(), Some("cuda:0"));
        assert_eq!(sum.value, crc32c::crc32c(&bytes[7..]));
    });
    if let Some(log) = log {
        assert_eq!(log.arguments("cuLaunchKernel", 1), ["2"]);
        // Head, sums and tail: no other byte is copied to the host.
        let copied = log.arguments("cuMemcpyDtoHAsync", 2);
        assert_eq!(copied, ["9", "1196", "4080"]);
        log.assert_all_freed();
    }
}

#[test]
fn a_range_that_is_wrong_is_refused_before_the_driver_is_called() {
    let log = with_stub("devices=1", || {
        let (memory, _) = filled(&open(0).unwrap(), 2 * CHUNK);
        #[expect(clippy::reversed_empty_ranges, reason = "a wrong range")]
        let ranges = [1..2 * CHUNK + 1, 0..usize::MAX, CHUNK..0, usize::MAX..0];
        for range in ranges {
            let result = memory.crc32c(range);
            assert!(
                matches!(result, Err(CopyError::OutOfBounds(_))),
                "{result:?}"
            );
        }
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuModuleLoadData"), OPENED_MODULES);
    }
}

#[test]
fn code_that_the_driver_refuses_is_no_error_the_bytes_are_read_back() {
    for fail in [
        "cuModuleLoadData:218",
        "cuModuleLoadData:221",
        "cuModuleGetFunction:500",
    ] {
        expect_read_back(&format!("fail={fail}"), 40 * CHUNK);
    }
}

#[test]
fn a_device_without_room_for_the_sums_is_read_back() {
    expect_read_back("memory=4194304", 4 << 20);
}

/// Expects that the CPU computes the checksum of memory of a stub that behaves by `plan`.
fn expect_read_back(plan: &str, len: usize) {
    let log = with_stub(plan, || {
        let (memory, bytes) = filled(&open(0).unwrap(), len);
        let sum = memory.crc32c(3..bytes.len()).unwrap();
        assert_eq!(sum.device, None);
        assert_eq!(sum.value, crc32c::crc32c(&bytes[3..]));
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 0);
        log.assert_all_freed();
    }
}

#[test]
fn a_start_that_the_driver_refuses_is_an_error_and_the_device_goes_on() {
    let log = with_stub("fail=cuLaunchKernel:1", || {
        let (memory, bytes) = filled(&open(0).unwrap(), CHUNK);
        let error = device_error(memory.crc32c(0..CHUNK));
        assert_eq!((error.call, error.code), ("cuLaunchKernel", 1));
        assert_eq!(error.state, DeviceState::Usable);
        assert!(memory.slice(0..CHUNK).to_vec() == bytes);
    });
    if let Some(log) = log {
        log.assert_all_freed();
    }
}

#[test]
fn a_kernel_that_fails_loses_the_device_for_good() {
    with_stub("fail=cuStreamSynchronize:700", || {
        let memory = memory(&open(0).unwrap(), CHUNK);
        for _ in 0..2 {
            let error = device_error(memory.crc32c(0..CHUNK));
            assert_eq!((error.code, error.state), (700, DeviceState::Lost));
        }
    });
}

#[test]
fn memory_that_was_revoked_has_no_checksum() {
    let log = with_stub("devices=1", || {
        let allocation = Arc::new(open(0).unwrap().alloc(CHUNK).unwrap());
        let memory = allocation.dmabuf();
        memory.fill(0..CHUNK, 0).unwrap();
        allocation.revoke();
        for range in [0..CHUNK, 0..1] {
            let error = device_error(memory.crc32c(range));
            assert!(error.to_string().contains("taken away"), "{error}");
        }
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 0);
        log.assert_all_freed();
    }
}

#[test]
fn the_memory_of_amd_is_read_back() {
    Api::Hip.with_stub("devices=1", || {
        let (memory, bytes) = filled(&Api::Hip.open(0).unwrap(), 40 * CHUNK);
        let sum = memory.crc32c(5..bytes.len()).unwrap();
        assert_eq!(sum.device, None);
        assert_eq!(sum.value, crc32c::crc32c(&bytes[5..]));
    });
}

#[test]
fn a_child_by_fork_computes_nothing() {
    let log = with_stub("devices=1", || {
        let (memory, _) = filled(&open(0).unwrap(), CHUNK);
        memory.crc32c(0..CHUNK).unwrap();
        let failed = in_child(|| {
            let error = device_error(memory.crc32c(0..CHUNK));
            u8::from(error.state != DeviceState::Forked)
        });
        assert_eq!(failed, Some(0));
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 1);
        assert_eq!(log.count("cuModuleUnload"), OPENED_MODULES + 1);
        log.assert_all_freed();
    }
}
