//! Memory: allocation, adoption, export, and the order in which things are dropped.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use devmem_gpu::{Allocation, GpuError};
use netmem::{Dmabuf, DmabufId, Exporter, MemoryProvider, NiovSize};

use super::adopted::{adopt, adopt_from_owner, synchronize_default_stream};
use super::support::{Api, memory, on_each, told};

/// The function that exports memory.
const EXPORT: &str = "MemGetHandleForAddressRange";

#[test]
fn memory_is_allocated_in_large_pages_and_freed_before_its_device() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        for size in [4096, 12_288, 2 << 20, (2 << 20) + 4096] {
            let memory = device.alloc(size).unwrap();
            assert_eq!(memory.size(), size);
            assert_eq!(memory.device_ptr() % (2 << 20), 0);
        }
    };
    on_each("devices=1", body, |api, log| {
        assert!(
            log.0
                .iter()
                .any(|line| line.starts_with(&api.call("MemAlloc")) && line.ends_with(" 4194304"))
        );
        assert_eq!(
            (
                log.count(&api.call("MemAlloc")),
                log.count(&api.call("MemFree"))
            ),
            (4, 4)
        );
        assert!(log.first(api.platform().enter) < log.first(&api.call("MemAlloc")));
    });
}

#[test]
fn sizes_that_are_no_pages_and_too_much_memory_are_refused() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        for size in [0, 1, 4095, 5000] {
            assert_eq!(device.alloc(size).unwrap_err(), GpuError::Size { size });
        }
        let error = told(&device.alloc(6 << 20).unwrap_err());
        assert!(
            error.starts_with(&format!(
                "{} failed: {}",
                api.call("MemAlloc"),
                api.error(2)
            )),
            "{error}"
        );
        assert!(error.contains("-smi"), "{error}");
        device
            .alloc(4 << 20)
            .expect("the refusal left nothing behind");
    };
    on_each("memory=4194304", body, |_, _| ());
}

#[test]
fn memory_outlives_handles_in_any_order() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let memory = memory(&device, 1 << 20);
        drop(device);
        let engine = Arc::clone(memory.copy_engine().unwrap());
        let niov = NiovSize::new(65_536).unwrap();
        let ring = MemoryProvider::pinned(1 << 20, niov, &engine).unwrap();
        assert_eq!(ring.area().count(), 16);
        memory.copy_in(5, b"still there").unwrap();
        drop(engine);
        drop(memory);
        drop(ring);
    };
    on_each("polls=2", body, |api, log| {
        assert!(log.first(&api.call("MemFree")) < log.first(&api.call("MemHostUnregister")));
    });
}

#[test]
fn an_export_is_made_once_and_kept() {
    let body = |api: Api| {
        let allocation = Arc::new(api.open(0).unwrap().alloc(8192).unwrap());
        let first = format!("{:?}", allocation.export().unwrap().as_fd());
        assert_eq!(
            format!("{:?}", Exporter::as_fd(allocation.as_ref()).unwrap()),
            first
        );
        let memory = Dmabuf::exported(allocation).unwrap();
        assert!(memory.as_fd().is_some());
        assert_eq!(memory.size(), 8192);
    };
    on_each("devices=1", body, |api, log| {
        // CUDA: with the flag for mapping by PCIe, which this driver does not know, then without.
        let calls = if api == Api::Cuda { 2 } else { 1 };
        // Exactly the bytes that the memory says it has: a NIC uses all that are exported.
        let sizes = log.arguments(&api.call(EXPORT), 2);
        assert_eq!(sizes, vec!["8192"; calls]);
    });
}

#[test]
fn a_refused_export_says_which_kernel_module_is_needed() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        // HIP 7.0 cannot tell before it is tried.
        let is_said = device.info().unwrap().dmabuf_supported;
        assert_eq!(is_said, api == Api::Hip);
        let error = told(&device.alloc(4096).unwrap().export().unwrap_err());
        assert!(
            error.starts_with(&format!("{} failed: {}", api.call(EXPORT), api.error(801))),
            "{error}"
        );
        let remedy = match api {
            Api::Cuda => "open kernel module",
            Api::Hip => "ROCm 7.0",
        };
        assert!(error.contains(remedy), "{error}");
        // The user-space stack needs no dma-buf.
        memory(&device, 4096).copy_in(0, b"staged").unwrap();
    };
    on_each("dmabuf=0", body, |_, _| ());
}

#[test]
fn adopted_memory_is_used_and_not_freed() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let theirs = device.alloc(1 << 20).unwrap();
        let address = theirs.device_ptr() + 8192;
        let adopted = Dmabuf::exported(Arc::new(adopt(&device, address, 4096).unwrap())).unwrap();
        adopted.copy_in(1, b"adopted").unwrap();
        drop(adopted);
        let theirs = Dmabuf::exported(Arc::new(theirs)).unwrap();
        assert_eq!(theirs.slice(8193..8200).to_vec(), b"adopted");
    };
    on_each("devices=1", body, |api, log| {
        assert_eq!(log.count(&api.call("MemFree")), 1);
    });
}

/// Counts its drops.
struct Counted(Arc<Allocation>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(Arc::strong_count(&self.0), 1, "nothing else keeps it");
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_owner_of_adopted_memory_is_dropped_after_its_last_user() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = || dropped.load(Ordering::Relaxed);
        let owner = || {
            let allocation = Arc::new(device.alloc(2 << 20).unwrap());
            Counted(allocation, Arc::clone(&dropped))
        };
        let theirs = owner();
        let address = theirs.0.device_ptr();
        let memory = adopt_from_owner(&device, address, 8192, theirs).unwrap();
        let memory = memory.into_dmabuf();
        synchronize_default_stream(&device).unwrap();
        memory.copy_in(0, b"theirs").unwrap();
        let niov = NiovSize::MIN;
        let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov).unwrap();
        drop(memory);
        assert_eq!(count(), 0, "a binding uses it");
        drop(provider);
        assert_eq!(count(), 1);
        // Refused, it is not kept.
        let theirs = owner();
        let address = theirs.0.device_ptr();
        adopt_from_owner(&device, address + 1, 4096, theirs).unwrap_err();
        assert_eq!(count(), 2);
    };
    on_each("devices=1", body, |api, log| {
        let frees = log.count(&api.call("MemFree"));
        assert_eq!(frees, 2, "by the owners");
        let waited = format!("{} 0x0", api.call("StreamSynchronize"));
        assert!(log.0.contains(&waited));
    });
}

#[test]
fn memory_that_cannot_be_adopted_is_refused_with_the_reason() {
    let body = |api: Api| {
        let (device, other) = (api.open(0).unwrap(), api.open(1).unwrap());
        let theirs = device.alloc(2 << 20).unwrap();
        let address = theirs.device_ptr();
        for (start, len) in [(address + 1, 4096), (address, 4095), (address, 0)] {
            let error = adopt(&device, start, len).unwrap_err();
            assert_eq!(
                error,
                GpuError::Misaligned {
                    address: start,
                    len
                }
            );
        }
        let foreign = adopt(&device, 4096, 4096).unwrap_err().to_string();
        assert!(
            foreign.contains("0x1000 is not in memory of a device"),
            "{foreign}"
        );
        let moved = adopt(&other, address, 4096).unwrap_err();
        let expected = GpuError::OtherDevice {
            platform: api.platform(),
            address,
            actual: 0,
            expected: 1,
        };
        assert_eq!(moved, expected);
        let end = address + (2 << 20) - 4096;
        let long = adopt(&device, end, 8192).unwrap_err();
        let expected = GpuError::TooLong {
            address: end,
            len: 8192,
            available: 4096,
        };
        assert_eq!(long, expected);
    };
    on_each("devices=2", body, |_, _| ());
}

#[test]
fn memory_that_moves_is_not_adopted() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let theirs = device.alloc(4096).unwrap();
        let error = adopt(&device, theirs.device_ptr(), 4096).unwrap_err();
        assert!(error.to_string().contains("managed memory"), "{error}");
    };
    on_each("managed=1", body, |_, _| ());
}
