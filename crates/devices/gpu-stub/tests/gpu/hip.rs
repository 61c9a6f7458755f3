//! What ROCm's library does in another way than CUDA's.

use std::path::Path;

use netmem::{Exporter, Lane};

use super::adopted::adopt;
use super::support::{Api, copy_ten_bytes, library, told};

#[test]
fn an_old_rocm_is_named_with_its_version() {
    Api::Hip.with_stub("driver=50731921", || {
        assert_eq!(
            Api::Hip.open(0).unwrap_err().to_string(),
            "the driver supports HIP 5.7; 6.0 is needed"
        );
    });
}

#[test]
fn a_library_without_the_functions_is_named() {
    Api::Hip.with_library(Path::new("libc.so.6"), "devices=1", || {
        assert_eq!(
            Api::Hip.devices().unwrap_err().to_string(),
            "libamdhip64 lacks hipRuntimeGetVersion of HIP 6.0"
        );
    });
}

/// The version of a library that does not export memory itself.
const ROCM_6: &str = "driver=60342134";

#[test]
fn rocm_6_exports_whole_allocations_by_the_library_below_hip() {
    let log = Api::Hip.with_hsa(&library(), ROCM_6, || {
        let device = Api::Hip.open(0).unwrap();
        assert!(device.info().unwrap().dmabuf_supported);
        let memory = device.alloc(4 << 20).unwrap();
        memory.export().expect("a whole allocation");
        // A NIC would use the bytes before or after these.
        let address = memory.device_ptr();
        let parts = [
            device.alloc(4096).unwrap(),
            adopt(&device, address, 2 << 20).unwrap(),
            adopt(&device, address + (2 << 20), 2 << 20).unwrap(),
        ];
        for part in parts {
            let error = part.export().unwrap_err();
            assert_eq!(
                error.to_string(),
                "hsa_amd_portable_export_dmabuf failed: the dma-buf has other bytes, too (801)"
            );
            assert!(
                error
                    .remedy()
                    .is_some_and(|remedy| remedy.starts_with("before ROCm 7.0"))
            );
        }
    });
    if let Some(log) = log {
        assert_eq!(log.count("hsa_amd_portable_export_dmabuf"), 4);
        assert_eq!(log.count("hipMemGetHandleForAddressRange"), 0);
        log.assert_all_freed();
    }
}

#[test]
fn rocm_6_without_support_of_the_kernel_says_which_one_is_needed() {
    let plan = format!("{ROCM_6},dmabuf=0");
    Api::Hip.with_hsa(&library(), &plan, || {
        let device = Api::Hip.open(0).unwrap();
        assert!(!device.info().unwrap().dmabuf_supported);
        let error = device.alloc(2 << 20).unwrap().export().unwrap_err();
        let error = told(&error);
        let expected = "hsa_amd_portable_export_dmabuf failed: the library refuses (4096)\n";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("CONFIG_DMABUF_MOVE_NOTIFY"), "{error}");
    });
}

#[test]
fn rocm_7_exports_memory_itself() {
    let log = Api::Hip.with_hsa(&library(), "devices=1", || {
        Api::Hip
            .open(0)
            .unwrap()
            .alloc(4096)
            .unwrap()
            .export()
            .unwrap();
    });
    if let Some(log) = log {
        assert_eq!(log.count("hipMemGetHandleForAddressRange"), 1);
        assert!(log.0.iter().all(|line| !line.starts_with("hsa_")));
    }
}

#[test]
fn rocm_6_without_the_library_below_hip_exports_no_memory_and_copies() {
    Api::Hip.with_hsa(Path::new("/nowhere/libhsa.so.1"), ROCM_6, || {
        let device = Api::Hip.open(0).unwrap();
        assert!(!device.info().unwrap().dmabuf_supported);
        let error = device.alloc(4096).unwrap().export().unwrap_err();
        let error = told(&error);
        assert!(
            error.starts_with("hipMemGetHandleForAddressRange failed: not in this library (801)"),
            "{error}"
        );
        let remedy = "ROCm 7.0, or libhsa-runtime64.so.1 of ROCm 5.3 or newer";
        assert!(error.contains(remedy), "{error}");
        let memory = device.alloc_dmabuf(4096).unwrap();
        memory.copy_in(0, b"staged").unwrap();
        assert_eq!(memory.slice(0..6).to_vec(), b"staged");
    });
}

#[test]
fn nics_of_the_kernel_are_refused_with_the_reason() {
    Api::Hip.with_stub("devices=1", || {
        let memory = Api::Hip.open(0).unwrap().alloc(4096).unwrap();
        memory.export().expect("other users may have it");
        let error = told(&memory.as_dmabuf().unwrap_err());
        assert!(error.contains("the GPU does not see"), "{error}");
        assert!(error.contains("DEVMEM_AMD_STATIC_ATTACH=1"), "{error}");
    });
}

#[test]
fn a_user_can_permit_nics_of_the_kernel() {
    let permit = ("DEVMEM_AMD_STATIC_ATTACH", "1");
    Api::Hip.with_variable(permit, || {
        let memory = Api::Hip.open(0).unwrap().alloc(4096).unwrap();
        assert!(memory.as_dmabuf().unwrap().is_some());
    });
}

#[test]
fn the_device_that_a_thread_had_selected_is_selected_again() {
    let log = Api::Hip.with_stub("devices=2", || {
        Api::Hip.alloc(1, 4096).copy_in(0, b"x").unwrap();
    });
    if let Some(log) = log {
        let (mut selected, mut copies) = ("0", 0);
        for line in &log.0 {
            if let Some(device) = line.strip_prefix("hipSetDevice ") {
                selected = device;
            }
            if line.starts_with("hipMemcpy") {
                assert_eq!(selected, "1");
                copies += 1;
            }
        }
        assert_eq!((selected, copies), ("0", 1));
    }
}

#[test]
fn a_query_leaves_no_error_that_a_program_would_take_for_its_own() {
    let log = Api::Hip.with_stub("polls=3", || {
        let memory = Api::Hip.alloc(0, 4096);
        let engine = memory.copy_engine().unwrap();
        let fence = copy_ten_bytes(&memory, Lane::Gather).unwrap();
        while !engine.is_done(fence).unwrap() {}
    });
    if let Some(log) = log {
        let cleared = log.0.iter().filter(|line| *line == "hipGetLastError 600");
        assert_eq!((cleared.count(), log.count("hipEventQuery")), (3, 4));
    }
}
