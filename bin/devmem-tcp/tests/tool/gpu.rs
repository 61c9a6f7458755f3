//! GPUs of NVIDIA and AMD, with the stand-in for the libraries of both (`devmem-gpu-stub`).

use devmem_linux::test_util::built_library;

use crate::common::{Finished, assert_all_right, start_command, tool};

/// The kinds of memory, the variables that name their libraries, and the texts that those have for an export that they refuse.
const VENDORS: [(&str, &str, &str); 2] = [
    (
        "cuda",
        "DEVMEM_LIBCUDA",
        "cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED (801)",
    ),
    (
        "hip",
        "DEVMEM_LIBAMDHIP",
        "hipMemGetHandleForAddressRange failed: hipErrorNotSupported (801)",
    ),
];

/// Runs the tool with the stub as the libraries of all vendors.
fn run(line: &str, plan: &str) -> Finished {
    let mut command = tool();
    command
        .args(line.split_whitespace())
        .env("STUB_GPU", plan)
        .envs(VENDORS.map(|(_, variable, _)| (variable, built_library("libdevmem_gpu_stub.so"))));
    start_command(command).finish()
}

#[test]
fn every_byte_of_a_demo_is_right_in_memory_of_a_gpu() {
    for (kind, ..) in VENDORS {
        for direction in ["tx", "loopback"] {
            let line = format!(
                "demo --link wire --json --bytes 8M --memory {kind}:1 --direction {direction}"
            );
            let json = run(&line, "devices=2,polls=2").json();
            assert_all_right(&json, 8 << 20);
        }
    }
}

#[test]
fn the_doctor_lists_each_gpu_and_tries_the_export() {
    let table = |plan| String::from_utf8(run("doctor", plan).stdout).expect("text");
    let able = table("devices=2,memory=85899345920");
    for (kind, title) in [("cuda", "CUDA 13.0"), ("hip", "HIP 7.0")] {
        for ordinal in [0, 1] {
            let row = format!(
                "{kind}:{ordinal} is Stub {ordinal} at 0000:0{ordinal}:00.0, 80 GiB, {title}, exports dma-bufs"
            );
            assert!(able.contains(&row), "no {row:?} in:\n{able}");
        }
    }
    let refusing = table("dmabuf=0");
    for (kind, _, refusal) in VENDORS {
        let row = format!("{kind}:0 is Stub 0 at");
        assert!(refusing.contains(&row), "{refusing}");
        let found = refusing.contains(&format!("no dma-buf: {refusal}"));
        assert!(found, "no {refusal:?} in:\n{refusing}");
    }
    assert!(refusing.contains("open kernel module"), "{refusing}");
}

#[test]
fn a_gpu_that_is_missing_or_full_is_an_error_with_the_remedy() {
    for (kind, variable, _) in VENDORS {
        let line = format!("demo --link wire --memory {kind}:5");
        run(&line, "devices=2").failed_with(
            1,
            &format!("there is no device {kind}:5; this process sees 2"),
        );
        let line = format!("demo --link wire --memory {kind}:0 --mem-size 64M");
        run(&line, "memory=4194304").failed_with(1, "the device has less free memory than that");
        let mut command = tool();
        command
            .args(line.split_whitespace())
            .env(variable, "/missing");
        let failed = start_command(command).finish();
        failed.failed_with(1, "/missing cannot be loaded: ");
    }
}
