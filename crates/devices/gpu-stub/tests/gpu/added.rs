//! Vectors that the device adds: the stub interprets the PTX that a GPU would be given.

use std::sync::Arc;

use devmem_cuda::{Adder, Floats, open};
use devmem_gpu::driver::is_fatal;
use devmem_gpu::{Allocation, Device, GpuError};
use netmem::{DeviceState, in_child};

use super::support::{Api, OPENED_MODULES, told, with_stub};

/// Floats whose sums are rounded, subnormal, infinite or signed zeros.
fn floats(seed: u32, count: usize) -> Vec<f32> {
    let special = [
        0.0,
        -0.0,
        f32::MIN_POSITIVE / 3.0,
        -f32::MIN_POSITIVE / 7.0,
        f32::MAX,
        f32::INFINITY,
        16_777_216.0,
        1.0,
    ];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let value = |at: usize, random: u32| match at % 3 {
        0 => special[random as usize % special.len()],
        // Exponents of all sizes, and no NaN.
        1 => f32::from_bits(random << 7 & 0xbfff_ffff),
        _ => random as f32 / 1024.0,
    };
    (0..count).map(|at| value(at, next())).collect()
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

/// Adds vectors of `count` floats that begin inside of their memory, and compares all of both memories.
pub(super) fn check(device: &Device, adder: &Adder, count: usize) {
    let size = (4 * count + 200).next_multiple_of(4096);
    let memory = || Arc::new(device.alloc(size).expect("memory"));
    let (sums, summands) = (memory(), memory());
    let (ours, theirs) = (floats(1, size / 4), floats(2, size / 4));
    sums.dmabuf().copy_in(0, &bytes(&ours)).expect("copied");
    let source = bytes(&theirs);
    summands.dmabuf().copy_in(0, &source).expect("copied");
    let at = |memory, offset| Floats { memory, offset };
    let added = adder.add(at(&sums, 12), at(&summands, 100), count);
    added.expect("both are inside");
    let mut expected = ours;
    for (sum, summand) in expected[3..3 + count].iter_mut().zip(&theirs[25..]) {
        *sum += summand;
    }
    let got = sums.dmabuf().slice(0..size).to_vec();
    let wrong = got
        .chunks_exact(4)
        .zip(&expected)
        .position(|(got, expected)| {
            let got = f32::from_ne_bytes(got.try_into().expect("4 bytes"));
            got.to_bits() != expected.to_bits() && !(got.is_nan() && expected.is_nan())
        });
    assert_eq!(wrong, None, "of {count}");
    assert!(summands.dmabuf().slice(0..size).to_vec() == source);
}

#[test]
fn sums_are_those_of_the_cpu_bit_by_bit() {
    let log = with_stub("polls=2", || {
        let device = open(0).unwrap();
        let adder = device.adder().unwrap();
        // Less than a block, whole blocks, one more; more than all blocks have threads.
        for count in [1, 255, 256, 257, 70_001, 4096 * 256 + 3] {
            check(&device, &adder, count);
        }
        drop(device);
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuModuleLoadData"), OPENED_MODULES + 1);
        let blocks = log.arguments("cuLaunchKernel", 1);
        assert_eq!(blocks, ["1", "1", "1", "2", "274", "4096"]);
        assert_eq!(log.count("cuModuleUnload"), OPENED_MODULES + 1);
        log.assert_all_freed();
    }
}

#[test]
fn no_float_is_no_call() {
    let log = with_stub("devices=1", || {
        let device = open(0).unwrap();
        let memory = device.alloc(4096).unwrap();
        let place = Floats {
            memory: &memory,
            offset: 4096,
        };
        device.adder().unwrap().add(place, place, 0).unwrap();
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 0);
    }
}

#[test]
fn ranges_that_are_wrong_are_refused_before_the_driver_is_called() {
    let log = with_stub("devices=2", || {
        let [device, other] = [0, 1].map(|ordinal| open(ordinal).unwrap());
        let adder = device.adder().unwrap();
        let [memory, second] = [(); 2].map(|()| device.alloc(4096).unwrap());
        let far = other.alloc(4096).unwrap();
        let add = |sums: (&Allocation, usize), summands: (&Allocation, usize), count| {
            let [sums, summands] =
                [sums, summands].map(|(memory, offset)| Floats { memory, offset });
            adder.add(sums, summands, count).unwrap_err().to_string()
        };
        let outside = "a range is not inside the memory";
        let cases = [
            (add((&memory, 4), (&second, 0), 1024), outside),
            (add((&memory, 0), (&second, 4096), 1), outside),
            (add((&memory, 0), (&second, 0), usize::MAX / 2), outside),
            (add((&memory, 0), (&far, 0), 1), outside),
            (add((&far, 0), (&memory, 0), 1), outside),
            (add((&memory, 0), (&second, 2), 1), "a multiple of 4"),
            (add((&memory, 0), (&memory, 40), 11), "overlap"),
            (add((&memory, 40), (&memory, 0), 11), "overlap"),
            (add((&memory, 0), (&memory, 0), 1), "overlap"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
        // Next to each other.
        let [sums, summands] = [0, 40].map(|offset| Floats {
            memory: &memory,
            offset,
        });
        adder.add(sums, summands, 10).unwrap();
        second.revoke();
        let error = add((&memory, 0), (&second, 0), 1);
        assert!(error.contains("taken away"), "{error}");
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuLaunchKernel"), 1);
        log.assert_all_freed();
    }
}

#[test]
fn code_that_the_driver_refuses_is_an_error_with_the_remedy() {
    let plans = [
        ("cuModuleLoadData:218", "INVALID_PTX", "newer driver"),
        (
            "cuModuleLoadData:209",
            "NO_BINARY_FOR_GPU",
            "newer driver, or add on the CPU",
        ),
        (
            "cuModuleLoadData:221",
            "JIT_COMPILER_NOT_FOUND",
            "libnvidia-ptxjitcompiler.so.1",
        ),
        ("cuModuleGetFunction:500", "NOT_FOUND", "doctor"),
    ];
    for (fail, name, remedy) in plans {
        let log = with_stub(&format!("fail={fail}"), || {
            let error = told(&open(0).unwrap().adder().unwrap_err());
            assert!(error.contains(&format!("CUDA_ERROR_{name}")), "{error}");
            assert!(error.contains(remedy), "{error}");
        });
        // What was loaded is unloaded.
        if let Some(log) = log {
            log.assert_all_freed();
        }
    }
}

#[test]
fn a_kernel_that_fails_loses_the_device_for_good() {
    with_stub("fail=cuStreamSynchronize:700", || {
        assert!(is_fatal(700));
        let device = open(0).unwrap();
        let adder = device.adder().unwrap();
        let [sums, summands] = [(); 2].map(|()| device.alloc(4096).unwrap());
        let [sums, summands] = [&sums, &summands].map(|memory| Floats { memory, offset: 0 });
        for _ in 0..2 {
            let error = adder.add(sums, summands, 1).unwrap_err();
            let GpuError::Call(error) = error else {
                panic!("{error}")
            };
            assert_eq!((error.code, error.state), (700, DeviceState::Lost));
        }
    });
}

#[test]
fn amd_has_no_addition() {
    Api::Hip.with_stub("devices=1", || {
        let error = Api::Hip.open(0).unwrap().adder().unwrap_err();
        assert!(matches!(error, GpuError::NoAddition { .. }));
        assert!(told(&error).ends_with("add on the CPU"), "{error}");
    });
}

#[test]
fn a_child_by_fork_adds_nothing() {
    let log = with_stub("devices=1", || {
        let device = open(0).unwrap();
        let adder = device.adder().unwrap();
        let [memory, other] = [(); 2].map(|()| device.alloc(4096).unwrap());
        let failed = in_child(|| {
            let [sums, summands] = [&memory, &other].map(|memory| Floats { memory, offset: 0 });
            let error = told(&adder.add(sums, summands, 1).unwrap_err());
            u8::from(!error.contains("CUDA_ERROR_NOT_INITIALIZED"))
        });
        assert_eq!(failed, Some(0));
    });
    if let Some(log) = log {
        assert_eq!(log.count("cuModuleUnload"), OPENED_MODULES + 1);
        assert_eq!(log.count("cuLaunchKernel"), 0);
    }
}
