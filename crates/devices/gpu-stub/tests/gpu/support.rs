//! A process of its own for each test: the driver is loaded once in a process.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use devmem_gpu::driver::Platform;
use devmem_gpu::{Device, DeviceInfo, GpuError};
use devmem_linux::test_util::built_library;
use netmem::{CopyPiece, CopyWay, DeviceError, Dmabuf, Fence, Lane};

/// Returns the reason of an error, and its remedy on a line below.
pub fn told(error: &(dyn Error + 'static)) -> String {
    let remedy = devmem_tcp::Remedy::of(error);
    let remedy = remedy.map_or_else(String::new, |remedy| format!("\n  {remedy}"));
    format!("{error}{remedy}")
}

/// The library of a vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    Cuda,
    Hip,
}

impl Api {
    pub const ALL: [Self; 2] = [Self::Cuda, Self::Hip];

    pub fn open(self, ordinal: u32) -> Result<Device, GpuError> {
        match self {
            Self::Cuda => devmem_cuda::open(ordinal),
            Self::Hip => devmem_hip::open(ordinal),
        }
    }

    pub fn devices(self) -> Result<Vec<DeviceInfo>, GpuError> {
        match self {
            Self::Cuda => devmem_cuda::devices(),
            Self::Hip => devmem_hip::devices(),
        }
    }

    pub fn alloc(self, ordinal: u32, size: usize) -> Dmabuf {
        self.open(ordinal).unwrap().alloc_dmabuf(size).unwrap()
    }

    pub fn platform(self) -> &'static Platform {
        match self {
            Self::Cuda => &devmem_cuda::PLATFORM,
            Self::Hip => &devmem_hip::PLATFORM,
        }
    }

    /// Returns the name of a function by that of CUDA, without `cu`.
    pub fn call(self, name: &str) -> String {
        match (self, name) {
            (Self::Cuda, _) => format!("cu{name}"),
            (Self::Hip, "MemAlloc") => "hipMalloc".to_owned(),
            (Self::Hip, "MemFree") => "hipFree".to_owned(),
            (Self::Hip, "MemHostUnregister") => "hipHostUnregister".to_owned(),
            (Self::Hip, "MemHostRegister") => "hipHostRegister".to_owned(),
            (Self::Hip, "MemHostAlloc") => "hipHostMalloc".to_owned(),
            (Self::Hip, _) => format!("hip{name}"),
        }
    }

    /// Returns the text that errors contain for a number.
    pub fn error(self, code: i32) -> &'static str {
        match (self, code) {
            (Self::Cuda, 2) => "CUDA_ERROR_OUT_OF_MEMORY (2)",
            (Self::Cuda, 3) => "CUDA_ERROR_NOT_INITIALIZED (3)",
            (Self::Cuda, 100) => "CUDA_ERROR_NO_DEVICE (100)",
            (Self::Cuda, 700) => "CUDA_ERROR_ILLEGAL_ADDRESS (700)",
            (Self::Cuda, 801) => "CUDA_ERROR_NOT_SUPPORTED (801)",
            (Self::Hip, 2) => "hipErrorOutOfMemory (2)",
            (Self::Hip, 3) => "hipErrorNotInitialized (3)",
            (Self::Hip, 100) => "hipErrorNoDevice (100)",
            (Self::Hip, 700) => "hipErrorIllegalAddress (700)",
            (Self::Hip, 801) => "hipErrorNotSupported (801)",
            other => panic!("{other:?}"),
        }
    }

    /// Runs `body` in a child of this program that runs the calling test alone, with the stub behaving by `plan`; returns the
    /// log of calls. In that child, runs `body` and returns nothing.
    pub fn with_stub(self, plan: &str, body: impl FnOnce()) -> Option<Log> {
        self.with_library(&library(), plan, body)
    }

    /// As [`with_stub`](Self::with_stub), with any file as the library.
    pub fn with_library(self, library: &Path, plan: &str, body: impl FnOnce()) -> Option<Log> {
        let library = library.to_str().expect("a path in UTF-8");
        self.with_variables(
            &[("STUB_GPU", plan), (self.platform().variable, library)],
            body,
        )
    }

    /// As [`with_stub`](Self::with_stub), with an environment variable and no plan.
    pub fn with_variable(self, variable: (&str, &str), body: impl FnOnce()) -> Option<Log> {
        let library = library();
        let library = library.to_str().expect("a path in UTF-8");
        self.with_variables(&[variable, (self.platform().variable, library)], body)
    }

    /// As [`with_stub`](Self::with_stub), with a file as the library below HIP.
    pub fn with_hsa(self, hsa: &Path, plan: &str, body: impl FnOnce()) -> Option<Log> {
        let (library, hsa) = (library(), hsa.to_str().expect("a path in UTF-8"));
        let library = library.to_str().expect("a path in UTF-8");
        let variables = [
            ("STUB_GPU", plan),
            ("DEVMEM_LIBHSA", hsa),
            (self.platform().variable, library),
        ];
        self.with_variables(&variables, body)
    }

    fn with_variables(self, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Log> {
        let place = format!("{self:?} {variables:?}");
        if let Some(ours) = env::var_os("STUB_GPU_PLACE") {
            // A test with several plans has one child for each of them.
            if ours == *place {
                body();
            }
            return None;
        }
        let test = thread::current();
        let test = test.name().expect("libtest names its threads");
        let log = tempfile::NamedTempFile::new().expect("a temporary file");
        let output = Command::new(env::current_exe().expect("this program has a path"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .envs(variables.iter().copied())
            .env("STUB_GPU_PLACE", &place)
            .env("STUB_GPU_LOG", log.path())
            .output()
            .expect("the test can be started again");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {text}");
        assert!(text.contains("1 passed"), "{test} ran: {text}");
        let text = fs::read_to_string(log.path()).expect("the log");
        Some(Log(text.lines().map(str::to_owned).collect()))
    }
}

/// Runs `body` with the stub as CUDA's library, as [`Api::with_stub`] does.
pub fn with_stub(plan: &str, body: impl FnOnce()) -> Option<Log> {
    Api::Cuda.with_stub(plan, body)
}

/// Runs `body` with the stub as each library, and passes the log to `check`; also checks that everything was freed.
pub fn on_each(plan: &str, body: impl Fn(Api), check: impl Fn(Api, &Log)) {
    for api in Api::ALL {
        if let Some(log) = api.with_stub(plan, || body(api)) {
            check(api, &log);
            log.assert_all_freed();
        }
    }
}

/// Where cargo put the stub.
pub fn library() -> PathBuf {
    built_library("libdevmem_gpu_stub.so")
}

/// Device memory as the stack uses it.
pub fn memory(device: &Device, size: usize) -> Dmabuf {
    device.alloc(size).unwrap().into_dmabuf()
}

/// Starts a copy of 10 bytes within memory of a device.
pub fn copy_ten_bytes(memory: &Dmabuf, lane: Lane) -> Result<Fence, DeviceError> {
    let exporter = memory.exporter().unwrap().as_ref();
    let way = CopyWay::Within {
        from: exporter,
        to: exporter,
    };
    let piece = CopyPiece {
        from: 0,
        to: 100,
        len: 10,
    };
    memory.copy_engine().unwrap().submit(lane, way, &[piece])
}

/// Modules that opening a device of CUDA loads: that of the copies.
pub const OPENED_MODULES: usize = 1;

/// Allocations of host memory that opening one makes: the lists for those copies, of each lane.
pub const OPENED_LISTS: usize = 3;

/// The calls of a run, in order.
pub struct Log(pub Vec<String>);

impl Log {
    pub fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|line| is_call(line, name)).count()
    }

    /// Returns one argument of each call.
    pub fn arguments(&self, name: &str, index: usize) -> Vec<&str> {
        let calls = self.0.iter().filter(|line| is_call(line, name));
        calls
            .filter_map(|line| line.split(' ').nth(1 + index))
            .collect()
    }

    /// Returns the position of the first call.
    pub fn first(&self, name: &str) -> usize {
        let found = self.0.iter().position(|line| is_call(line, name));
        found.unwrap_or_else(|| panic!("{name} was not called: {:#?}", self.0))
    }

    /// Checks that nothing was left when the device was closed for the last time.
    pub fn assert_all_freed(&self) {
        let last = self.0.iter().rfind(|line| line.starts_with("left "));
        let clean = "left memory=0 registered=0 streams=0 events=0 modules=0 contexts=0";
        assert_eq!(last.map(String::as_str), Some(clean));
    }
}

fn is_call(line: &str, name: &str) -> bool {
    line.strip_prefix(name)
        .is_some_and(|rest| rest.starts_with(' '))
}
