//! Memory that another library has allocated and exported, as a network plugin gets it: found, adopted with its dma-buf, and revoked.

use std::os::fd::AsFd;
use std::sync::Arc;

use devmem_gpu::GpuError;
use netmem::Dmabuf;

use super::adopted::adopt_exported;
use super::support::{Api, OPENED_LISTS, on_each, with_stub};

#[test]
fn exported_memory_is_adopted_with_its_dmabuf_and_exported_no_more() {
    let body = || {
        let device = devmem_cuda::open(0).unwrap();
        let theirs = device.alloc(2 << 20).unwrap();
        let fd = || theirs.export().unwrap().try_clone_to_owned().unwrap();
        let start = theirs.device_ptr();
        // Bytes that are no whole pages, of a longer dma-buf.
        let adopted = adopt_exported(&device, start, 10_001, fd()).unwrap();
        assert!(adopted.export().is_ok());
        let adopted = adopted.into_dmabuf();
        assert_eq!(adopted.size(), 2 << 20);
        adopted.copy_in(10_000, b"!").unwrap();
        assert!(adopted.copy_in(10_000, b"!?").is_err(), "behind the range");
        for len in [0, usize::MAX] {
            let refused = adopt_exported(&device, start, len, fd()).unwrap_err();
            assert!(matches!(
                refused,
                GpuError::Misaligned { .. } | GpuError::Foreign { .. }
            ));
        }
        let short = Dmabuf::memfd(4096).unwrap();
        let short = short.as_fd().unwrap().try_clone_to_owned().unwrap();
        let refused = adopt_exported(&device, start, 4097, short).unwrap_err();
        assert!(
            matches!(refused, GpuError::NotExported { size: 4096, .. }),
            "{refused}"
        );
        let (pipe, _other) = std::io::pipe().unwrap();
        let refused = adopt_exported(&device, start, 4096, pipe.into()).unwrap_err();
        assert!(
            matches!(refused, GpuError::NotExported { size: 0, .. }),
            "{refused}"
        );
    };
    if let Some(log) = with_stub("devices=1", body) {
        assert_eq!(log.count("cuMemGetHandleForAddressRange"), 2);
        log.assert_all_freed();
    }
}

#[test]
fn revoked_memory_is_copied_no_more() {
    let body = || {
        let device = devmem_cuda::open(0).unwrap();
        let theirs = device.alloc(1 << 20).unwrap();
        let fd = theirs.export().unwrap().as_fd().try_clone_to_owned();
        let adopted = adopt_exported(&device, theirs.device_ptr(), 8192, fd.unwrap());
        let adopted = Arc::new(adopted.unwrap());
        let memory = adopted.dmabuf();
        let source = device.alloc_dmabuf(8192).unwrap();
        source.copy_in(0, b"gathered").unwrap();
        // Copies that are running end before `revoke` returns.
        let running = memory.gather_from(&source, [0..4, 4..8], 0).unwrap();
        adopted.revoke();
        running.unwrap().wait().unwrap();
        let theirs = theirs.into_dmabuf();
        assert_eq!(theirs.slice(0..8).to_vec(), b"gathered");
        // Later ones do not begin, in any direction.
        let mut out = [0; 8];
        let refusals = [
            memory.copy_in(0, b"too late").unwrap_err().to_string(),
            memory.copy_out(0, &mut out).unwrap_err().to_string(),
            memory
                .gather_from(&source, [0..4, 4..8], 0)
                .map(drop)
                .unwrap_err()
                .to_string(),
        ];
        for refusal in refusals {
            assert!(refusal.contains("taken away"), "{refusal}");
        }
        assert_eq!(theirs.slice(0..8).to_vec(), b"gathered");
        // The device goes on.
        source.copy_out(0, &mut out).unwrap();
    };
    if let Some(log) = with_stub("polls=3", body) {
        log.assert_all_freed();
    }
}

#[test]
fn an_address_tells_its_device_and_its_allocation() {
    let body = || {
        assert_eq!(devmem_cuda::exporting().unwrap(), [true, true]);
        assert_eq!(devmem_cuda::selected().unwrap(), None);
        let (first, second) = (
            devmem_cuda::open(0).unwrap().alloc(4096).unwrap(),
            devmem_cuda::open(1).unwrap().alloc(8192).unwrap(),
        );
        let of = |address| devmem_cuda::locate(address).unwrap();
        assert_eq!(of(first.device_ptr()).device, 0);
        let place = of(second.device_ptr() + 8191);
        assert_eq!(place.device, 1);
        assert_eq!(place, of(second.device_ptr()));
        assert_ne!(place.allocation, of(first.device_ptr()).allocation);
        let refused = devmem_cuda::locate(4096).unwrap_err();
        assert!(matches!(refused, GpuError::Foreign { .. }), "{refused}");
    };
    with_stub("devices=2", body);
}

#[test]
fn a_device_that_exports_nothing_says_so_without_being_opened() {
    let body = || assert_eq!(devmem_cuda::exporting().unwrap(), [false]);
    if let Some(log) = with_stub("dmabuf=0", body) {
        assert_eq!(log.count("cuDevicePrimaryCtxRetain"), 0);
    }
}

#[test]
fn adjacent_memory_is_one_allocation_and_shared_words_are_registered() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let parts = device.alloc_adjacent(&[8192, 4096]).unwrap();
        assert_eq!(parts[1].device_ptr(), parts[0].device_ptr() + 8192);
        let [first, second] = <[_; 2]>::try_from(parts)
            .unwrap()
            .map(|it| it.into_dmabuf());
        assert_eq!((first.size(), second.size()), (8192, 4096));
        first.copy_in(8188, b"gaps").unwrap();
        second.copy_in(0, b"none").unwrap();
        assert!(first.copy_in(8190, b"gap").is_err());
        // The second one keeps the bytes of both.
        drop(first);
        assert_eq!(second.slice(0..4).to_vec(), b"none");
        for sizes in [&[4096, 100][..], &[0, 4096], &[usize::MAX, 4096]] {
            let refused = device.alloc_adjacent(sizes).unwrap_err();
            assert!(matches!(refused, GpuError::Size { .. }), "{refused}");
        }
        let shared = device.alloc_shared(3).unwrap();
        assert_ne!(shared.device_ptr(), 0);
        shared.write(2, &[7, 8, 9]);
        shared.publish(3, 1);
        assert!(device.alloc_shared(0).is_err());
        assert!(device.alloc_shared(usize::MAX).is_err());
    };
    on_each("devices=1", body, |api, log| {
        let (frees, lists) = match api {
            Api::Cuda => ("cuMemFreeHost", OPENED_LISTS),
            Api::Hip => ("hipHostFree", 0),
        };
        assert_eq!(log.count(frees), lists + 1);
    });
}

#[test]
fn calls_are_relaxed_while_another_thread_captures_a_graph() {
    let body = || drop(devmem_cuda::open(0).unwrap().alloc(4096).unwrap());
    if let Some(log) = with_stub("devices=1", body) {
        let pushes = log.count("cuCtxPushCurrent");
        assert!(pushes > 0);
        assert_eq!(
            log.count("cuThreadExchangeStreamCaptureMode"),
            2 * pushes,
            "set after each push, and set back"
        );
    }
}
