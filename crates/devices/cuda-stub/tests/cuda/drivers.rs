//! Drivers that are missing, old, broken or without devices.

use std::path::Path;

use devmem_cuda::{GpuError, LoadError, PLATFORM, Version, devices, open};
use netmem::in_child;

use super::support::{with_library, with_stub};

#[test]
fn no_driver_is_an_error_that_names_the_file() {
    with_library(Path::new("/nowhere/libcuda.so.1"), "devices=9", || {
        let error = devices().unwrap_err();
        assert!(matches!(error, GpuError::Load(LoadError::NoLibrary { .. })));
        let text = error.to_string();
        assert!(
            text.contains("/nowhere/libcuda.so.1 cannot be loaded"),
            "{text}"
        );
        assert!(text.contains("DEVMEM_LIBCUDA"), "{text}");
    });
}

#[test]
fn an_old_driver_is_named_with_its_version() {
    with_stub("driver=11040", || {
        assert_eq!(
            open(0).unwrap_err().to_string(),
            "the driver supports CUDA 11.4; 12.0 is needed\n  install a newer driver"
        );
    });
}

#[test]
fn a_missing_function_is_named() {
    with_stub("no=cuMemGetHandleForAddressRange", || {
        let error = open(0).unwrap_err().to_string();
        assert!(
            error.starts_with("libcuda lacks cuMemGetHandleForAddressRange of CUDA 11.7"),
            "{error}"
        );
    });
}

#[test]
fn a_driver_without_devices_answers_with_its_own_error() {
    with_stub("fail=cuInit:100", || {
        let error = open(0).unwrap_err().to_string();
        assert!(
            error.starts_with("cuInit failed: CUDA_ERROR_NO_DEVICE (100)"),
            "{error}"
        );
        assert!(error.contains("nvidia-smi -L"), "{error}");
    });
}

#[test]
fn a_module_of_another_version_is_explained() {
    with_stub("fail=cuInit:803", || {
        let error = devices().unwrap_err().to_string();
        assert!(error.contains("reboot"), "{error}");
    });
}

#[test]
fn a_device_past_the_last_one_is_refused() {
    with_stub("devices=2", || {
        let error = open(2).unwrap_err();
        assert_eq!(
            error,
            GpuError::NoDevice {
                platform: &PLATFORM,
                ordinal: 2,
                count: 2
            }
        );
    });
}

#[test]
fn devices_are_described() {
    let log = with_stub("devices=2,driver=12080,memory=1073741824", || {
        let found = devices().unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].ordinal, found[1].name.as_str()), (1, "Stub 1"));
        assert_eq!(found[1].pci_address, "0000:01:00.0");
        assert_eq!(
            (found[1].memory_bytes, found[1].version),
            (1 << 30, Version(12, 8))
        );
        assert!(found[1].dmabuf_supported && found[1].batched_copies);
    });
    if let Some(log) = log {
        log.assert_all_freed();
    }
}

#[test]
fn a_device_that_is_open_is_opened_once() {
    let log = with_stub("devices=1", || {
        let device = open(0).unwrap();
        let again = open(0).unwrap();
        drop(device);
        again.alloc(4096).unwrap();
        drop(again);
        open(0).unwrap();
    });
    if let Some(log) = log {
        assert_eq!(
            log.count("cuDevicePrimaryCtxRetain"),
            2,
            "closed in between"
        );
        log.assert_all_freed();
    }
}

#[test]
fn a_child_by_fork_gets_errors_and_frees_nothing() {
    let log = with_stub("polls=0", || {
        let device = open(0).unwrap();
        let memory = super::support::memory(&device, 4096);
        let failed = in_child(|| {
            let copied = memory.copy_in(0, b"child");
            let opened = open(0);
            let is_refused = |text: String| text.contains("CUDA_ERROR_NOT_INITIALIZED (3)");
            let refused = is_refused(copied.unwrap_err().to_string())
                && is_refused(opened.unwrap_err().to_string());
            drop((memory.clone(), device.clone()));
            u8::from(!refused)
        });
        assert_eq!(failed, Some(0));
        memory.copy_in(0, b"parent").unwrap();
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuMemFree"), 1, "by the parent");
        log.assert_all_freed();
    }
}
