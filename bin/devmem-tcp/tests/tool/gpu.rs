//! GPUs of NVIDIA and AMD, with the stand-in for the libraries of both (`devmem-gpu-stub`).

use std::io::Write;

use devmem_linux::test_util::{built_library, in_netns};
use rustix::process::{Signal, kill_process};

use crate::common::{
    Finished, Running, assert_all_right, connect, recv_addr, repeating, start_command, tool,
};

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

/// Starts the tool with the stub as the libraries of all vendors.
fn start(line: &str, plan: &str) -> Running {
    let mut command = tool();
    command
        .args(line.split_whitespace())
        .env("STUB_GPU", plan)
        .envs(VENDORS.map(|(_, variable, _)| (variable, built_library("libdevmem_gpu_stub.so"))));
    start_command(command)
}

/// Runs the tool with the stub as the libraries of all vendors.
fn run(line: &str, plan: &str) -> Finished {
    start(line, plan).finish()
}

#[test]
fn every_byte_of_a_demo_is_right_in_memory_of_a_gpu() {
    for (kind, ..) in VENDORS {
        for options in [
            "--direction tx",
            "--direction loopback",
            "--direction loopback --connections 3",
            // Memory that is used up again and again.
            "--direction loopback --mem-size 512K",
        ] {
            let line = format!("demo --link wire --json --bytes 8M --memory {kind}:1 {options}");
            let json = run(&line, "devices=2,polls=2").json();
            assert_all_right(&json, 8 << 20);
        }
    }
}

#[test]
fn bytes_in_memory_of_a_gpu_are_verified_without_waiting_for_more() {
    let body = || {
        for (kind, ..) in VENDORS {
            let line =
                format!("recv --peer-addr 10.77.0.1/24 -l -v 7 -i 0.1 --json --memory {kind}:0");
            let mut recv = start(&line, "polls=2");
            recv.until("listening on");
            let mut stream = connect(recv_addr());
            stream.write_all(&repeating(7, 0, 70_000)).expect("sent");
            // The first interval whose bytes were verified.
            recv.until(" KiB ");
            kill_process(recv.pid(), Signal::INT).expect("it runs");
            let json = recv.finish().interrupted_json();
            assert_all_right(&json, 70_000);
        }
    };
    in_netns(
        "gpu::bytes_in_memory_of_a_gpu_are_verified_without_waiting_for_more",
        body,
    );
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
        failed.failed_with(3, "/missing cannot be loaded: ");
    }
}

/// Runs `demo --exchange` with the stub; returns the report, the notes, and the calls of the stub.
fn exchange(options: &str, plan: &str) -> (serde_json::Value, String, Vec<String>) {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = tool();
    command
        .args(["demo", "--exchange", "--json"])
        .args(options.split_whitespace())
        .env("STUB_GPU", plan)
        .env("STUB_GPU_LOG", log.path())
        .envs(VENDORS.map(|(_, variable, _)| (variable, built_library("libdevmem_gpu_stub.so"))));
    let finished = start_command(command).finish();
    let notes = finished.stderr.clone();
    let json = finished.json();
    for collective in ["all_reduce", "all_gather"] {
        assert_eq!(json[collective]["wrong"], 0, "{json}");
    }
    let calls = std::fs::read_to_string(log.path()).expect("the log");
    (json, notes, calls.lines().map(str::to_owned).collect())
}

fn count(calls: &[String], name: &str) -> usize {
    let is_call = |line: &&String| line.split(' ').next() == Some(name);
    calls.iter().filter(is_call).count()
}

/// Counts the starts of the kernel that adds: others copy.
fn sums(calls: &[String]) -> usize {
    let is_sum = |line: &&String| *line == "launched devmem_add_f32";
    calls.iter().filter(is_sum).count()
}

#[test]
fn an_exchange_is_added_by_the_gpu_where_there_is_one() {
    let runs = [
        ("--bytes 80020", "cuda:0"),
        ("--bytes 16 --ipv6", "cuda:0"),
        ("--bytes 20000 --impair loss=1%,reorder=1%,seed=3", "cuda:0"),
        ("--bytes 20000 --memory cuda:1", "cuda:1"),
    ];
    for (options, memory) in runs {
        let (json, notes, calls) = exchange(options, "devices=2,polls=2");
        assert_eq!(json["memory"], memory, "{json}");
        assert_eq!(json["reduction"], "gpu", "{json}");
        let is_chosen = !options.contains("--memory");
        let told = notes.contains("cuda:0 holds the vectors and adds them");
        assert_eq!(told, is_chosen, "{notes}");
        // Each of four ranks adds three blocks in six rounds. The program tries it first.
        assert_eq!(sums(&calls), 4 * 3 * 6, "{options}");
        // The code that copies, and the one that adds. The ranks are not waited for when they have reported, so what they free is not counted.
        let loaded = 2 * (4 + usize::from(is_chosen));
        assert_eq!(count(&calls, "cuModuleLoadData"), loaded, "{options}");
    }
}

#[test]
fn an_exchange_is_added_by_the_cpu_in_other_memory() {
    for (options, plan, memory) in [
        ("--bytes 80020 --memory hip:0", "polls=2", "hip:0"),
        ("--bytes 80020 --memory anonymous", "devices=1", "anonymous"),
        ("--bytes 80020", "fail=cuInit:100", "anonymous"),
    ] {
        let (json, notes, calls) = exchange(options, plan);
        assert_eq!(json["memory"], memory, "{json}");
        assert_eq!(json["reduction"], "cpu", "{json}");
        assert_eq!(sums(&calls), 0, "{options}");
        let told = notes.contains("the CPU adds the vectors, in host memory: no GPU does (cuInit");
        assert_eq!(told, !options.contains("--memory"), "{notes}");
    }
}

#[test]
fn an_exchange_whose_code_the_gpu_refuses_is_added_by_the_cpu_or_an_error() {
    let refusals = [
        (
            "fail=cuModuleLoadData:218",
            "cuModuleLoadData failed: CUDA_ERROR_INVALID_PTX (218)",
        ),
        (
            "fail=cuModuleLoadData:209",
            "CUDA_ERROR_NO_BINARY_FOR_GPU (209)",
        ),
        ("fail=cuModuleGetFunction:500", "CUDA_ERROR_NOT_FOUND (500)"),
        ("memory=8388608", "CUDA_ERROR_OUT_OF_MEMORY (2)"),
    ];
    for (plan, cause) in refusals {
        let (json, notes, _) = exchange("--bytes 80020", plan);
        assert_eq!(json["reduction"], "cpu", "{json}");
        assert!(notes.contains(cause), "{notes}");
        let options = "demo --exchange --bytes 16M --memory cuda:0";
        run(options, plan).failed_with(1, cause);
    }
    // An error of the GPU in the middle of it is the error of the run.
    let lost = run(
        "demo --exchange --bytes 80020 --memory cuda:0",
        "fail=cuLaunchKernel:719",
    );
    lost.failed_with(1, "add on the GPU: cuLaunchKernel failed");
}
