//! A process of its own for each test: the driver is loaded once in a process.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use devmem_cuda::Device;
use netmem::Dmabuf;

/// Runs `body` in a child of this program that runs the calling test alone, with the stub behaving by `plan`; returns the
/// log of calls. In that child, runs `body` and returns nothing.
pub fn with_stub(plan: &str, body: impl FnOnce()) -> Option<Log> {
    with_library(&library(), plan, body)
}

/// As [`with_stub`], with any file as the driver.
pub fn with_library(library: &Path, plan: &str, body: impl FnOnce()) -> Option<Log> {
    if let Some(ours) = env::var_os("STUB_CUDA") {
        // A test with several plans has one child for each of them.
        if ours == plan {
            body();
        }
        return None;
    }
    let test = thread::current();
    let test = test.name().expect("libtest names its threads");
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let output = Command::new(env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("STUB_CUDA", plan)
        .env("STUB_CUDA_LOG", log.path())
        .env("DEVMEM_LIBCUDA", library)
        .output()
        .expect("the test can be started again");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "with {plan:?}: {text}");
    assert!(text.contains("1 passed"), "{test} ran: {text}");
    let text = fs::read_to_string(log.path()).expect("the log");
    Some(Log(text.lines().map(str::to_owned).collect()))
}

/// Where cargo put the stub: beside this test, or one folder up.
pub fn library() -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let mut places = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libdevmem_cuda_stub.so"));
    let found = places.find(|place| place.exists());
    found.expect("cargo builds the stub before the test")
}

/// Device memory as the stack uses it.
pub fn memory(device: &Device, size: usize) -> Dmabuf {
    device.alloc(size).unwrap().into_dmabuf()
}

/// The calls of a run, in order.
pub struct Log(pub Vec<String>);

impl Log {
    pub fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|line| is_call(line, name)).count()
    }

    /// Returns the position of the first call.
    pub fn first(&self, name: &str) -> usize {
        let found = self.0.iter().position(|line| is_call(line, name));
        found.unwrap_or_else(|| panic!("{name} was not called: {:#?}", self.0))
    }

    /// Checks that nothing was left when the device was closed for the last time.
    pub fn assert_all_freed(&self) {
        let last = self.0.iter().rfind(|line| line.starts_with("left "));
        let clean = "left memory=0 registered=0 streams=0 events=0 contexts=0";
        assert_eq!(last.map(String::as_str), Some(clean));
    }
}

fn is_call(line: &str, name: &str) -> bool {
    line.strip_prefix(name)
        .is_some_and(|rest| rest.starts_with(' '))
}
