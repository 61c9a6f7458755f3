//! Drivers that are missing, old, broken or without devices.

use std::path::Path;

use devmem_cuda::{devices, open};
use devmem_gpu::driver::Version;
use devmem_gpu::{GpuError, LoadError};
use devmem_tcp::{Error, ErrorKind};
use netmem::in_child;

use super::support::{Api, on_each, told, with_stub};

#[test]
fn no_driver_is_an_error_that_names_the_file() {
    for api in Api::ALL {
        api.with_library(Path::new("/nowhere/libgpu.so.1"), "devices=9", || {
            let error = api.devices().unwrap_err();
            assert!(matches!(error, GpuError::Load(LoadError::NoLibrary { .. })));
            let text = told(&error);
            assert!(
                text.contains("/nowhere/libgpu.so.1 cannot be loaded"),
                "{text}"
            );
            assert!(text.contains(api.platform().variable), "{text}");
        });
    }
}

#[test]
fn an_old_driver_is_named_with_its_version() {
    with_stub("driver=11040", || {
        assert_eq!(
            open(0).unwrap_err().to_string(),
            "the driver supports CUDA 11.4; 12.0 is needed"
        );
    });
}

#[test]
fn a_missing_function_is_named() {
    with_stub("no=cuMemGetHandleForAddressRange", || {
        let error = told(&open(0).unwrap_err());
        assert!(
            error.starts_with("libcuda lacks cuMemGetHandleForAddressRange of CUDA 11.7"),
            "{error}"
        );
    });
}

#[test]
fn a_driver_without_devices_answers_with_its_own_error() {
    let body = |api: Api| {
        let error = told(&api.open(0).unwrap_err());
        let expected = format!("{} failed: {}", api.call("Init"), api.error(100));
        assert!(error.starts_with(&expected), "{error}");
        assert!(error.contains("-smi"), "{error}");
    };
    for api in Api::ALL {
        let plan = format!("fail={}:100", api.call("Init"));
        api.with_stub(&plan, || body(api));
    }
}

#[test]
fn a_module_of_another_version_is_explained() {
    with_stub("fail=cuInit:803", || {
        let error = told(&devices().unwrap_err());
        assert!(error.contains("reboot"), "{error}");
    });
}

#[test]
fn a_device_past_the_last_one_is_refused() {
    for api in Api::ALL {
        api.with_stub("devices=2", || {
            let expected = GpuError::NoDevice {
                platform: api.platform(),
                ordinal: 2,
                count: 2,
            };
            assert_eq!(api.open(2).unwrap_err(), expected);
        });
    }
}

#[test]
fn devices_are_described() {
    let plans = [
        (Api::Cuda, "driver=12080", Version(12, 8)),
        (Api::Hip, "driver=71452345", Version(7, 14)),
    ];
    for (api, driver, version) in plans {
        let log = api.with_stub(&format!("devices=2,{driver},memory=1073741824"), || {
            let found = api.devices().unwrap();
            assert_eq!(found.len(), 2);
            assert_eq!((found[1].ordinal, found[1].name.as_str()), (1, "Stub 1"));
            assert_eq!(found[1].pci_address, "0000:01:00.0");
            assert_eq!(
                (found[1].memory_bytes, found[1].version),
                (1 << 30, version)
            );
            assert!(found[1].dmabuf_supported);
            assert_eq!(found[1].batched_copies, api == Api::Cuda);
        });
        if let Some(log) = log {
            log.assert_all_freed();
        }
    }
}

#[test]
fn a_device_that_is_open_is_opened_once() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let again = api.open(0).unwrap();
        drop(device);
        again.alloc(4096).unwrap();
        drop(again);
        api.open(0).unwrap();
    };
    on_each("devices=1", body, |api, log| {
        let opened = log.count(&api.call("StreamCreateWithPriority"));
        assert_eq!(opened, 2 * 3, "closed in between");
    });
}

#[test]
fn a_child_by_fork_gets_errors_and_frees_nothing() {
    let body = |api: Api| {
        let device = api.open(0).unwrap();
        let [memory, source] = [(); 2].map(|()| super::support::memory(&device, 4096));
        let failed = in_child(|| {
            let copied = memory.copy_in(0, b"child");
            let opened = api.open(0);
            let is_refused = |text: String| text.contains(api.error(3));
            let copied = copied.unwrap_err();
            let gathered = memory.gather_from(&source, [0..2, 2..5], 0).unwrap_err();
            let is_forked = |error| Error::from(error).kind() == ErrorKind::Forked;
            let refused = is_forked(gathered)
                && is_forked(copied)
                && is_refused(copied.to_string())
                && is_refused(opened.unwrap_err().to_string());
            drop((memory.clone(), device.clone()));
            u8::from(!refused)
        });
        assert_eq!(failed, Some(0));
        memory.copy_in(0, b"parent").unwrap();
    };
    on_each("polls=0", body, |api, log| {
        assert_eq!(log.count(&api.call("MemFree")), 2, "by the parent");
    });
}
