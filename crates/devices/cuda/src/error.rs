//! Errors: the driver that cannot be loaded, and calls that fail.

use netmem::{DeviceError, DeviceState};

/// Why the driver of NVIDIA GPUs cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error(
        "{name} cannot be loaded: {reason}\n  install the driver of the GPU, or name its library in DEVMEM_LIBCUDA"
    )]
    NoLibrary {
        /// File name.
        name: String,
        /// Reason of the loader.
        reason: String,
    },
    /// The driver is older than CUDA 12.0.
    #[error(
        "the driver supports CUDA {}.{}; {}.{} is needed\n  install a newer driver",
        version / 1000, version % 1000 / 10, Self::OLDEST / 1000, Self::OLDEST % 1000 / 10
    )]
    Old {
        /// As cuDriverGetVersion returns it.
        version: i32,
    },
    /// The library lacks a function.
    #[error("libcuda lacks {name} of CUDA {}.{}\n  install a newer driver", version / 1000, version % 1000 / 10)]
    NoFunction {
        /// Name of the function.
        name: &'static str,
        /// Version of CUDA that has it.
        version: i32,
    },
}

impl LoadError {
    /// The version whose functions are found by name and version (cuGetProcAddress_v2); dma-buf export is older.
    pub(crate) const OLDEST: i32 = 12_000;
}

/// Why a device, or memory of one, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call of the driver failed.
    #[error(transparent)]
    Call(#[from] DeviceError),
    /// There is no such device.
    #[error(
        "there is no device cuda:{ordinal}; this process sees {count}\n  `nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES hides some"
    )]
    NoDevice {
        /// The requested device.
        ordinal: u32,
        /// Number of devices.
        count: u32,
    },
    /// The size is 0 or not a multiple of the page.
    #[error("{size} bytes of device memory: take a positive multiple of 4096")]
    Size {
        /// The requested size.
        size: usize,
    },
    /// Memory to be adopted does not begin or end at a page.
    #[error(
        "{len} bytes at {address:#x} are not whole pages of 4096 bytes, and cannot be exported\n  adopt a multiple of pages of a larger allocation, or allocate here and use views"
    )]
    Misaligned {
        /// Address.
        address: u64,
        /// Bytes.
        len: usize,
    },
    /// An address is not one of device memory.
    #[error(
        "{address:#x} is not in memory of a device: {reason}\n  allocate it with cuMemAlloc, cudaMalloc or the CUDA allocator of the framework"
    )]
    Foreign {
        /// Address.
        address: u64,
        /// What it is.
        reason: &'static str,
    },
    /// The memory is on another device.
    #[error("{address:#x} is in the memory of cuda:{actual}, not cuda:{expected}")]
    OtherDevice {
        /// Address.
        address: u64,
        /// Device of the memory.
        actual: u32,
        /// Device that it was adopted for.
        expected: u32,
    },
    /// The range is longer than the allocation.
    #[error(
        "{len} bytes at {address:#x} end after the allocation, which has {available} bytes from there"
    )]
    TooLong {
        /// Address.
        address: u64,
        /// Bytes of the range.
        len: usize,
        /// Bytes of the allocation from the address.
        available: usize,
    },
}

/// Error number of a query of something that is not done.
pub(crate) const NOT_READY: i32 = 600;

/// Returns the error of a call with what to do about it.
pub(crate) fn device_error(call: &'static str, code: i32, name: &'static str) -> DeviceError {
    DeviceError {
        call,
        name,
        code,
        state: match is_fatal(code) {
            true => DeviceState::Lost,
            false => DeviceState::Usable,
        },
        remedy: remedy(call, code),
    }
}

/// Returns whether the process can no longer use the device (cuda.h: "leaves the process in an inconsistent state").
fn is_fatal(code: i32) -> bool {
    matches!(
        code,
        4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 911 | 999
    )
}

fn remedy(call: &str, code: i32) -> &'static str {
    match (call, code) {
        ("cuMemGetHandleForAddressRange", 801) => {
            "dma-bufs need NVIDIA's open kernel module: `modinfo -F license nvidia` must say MIT/GPL"
        }
        ("cuMemHostRegister", 712) => "the host memory is registered already; unregister it first",
        ("cuMemHostRegister", _) => {
            "raise the limit of locked memory (`ulimit -l`), or free host memory"
        }
        (_, 1) => {
            "a program error, or the driver does not know this request: install a newer driver"
        }
        (_, 2) => {
            "the device has less free memory than that: `nvidia-smi` shows which process uses it"
        }
        (_, 3) => {
            "CUDA does not work in a child by fork(2): start the process in another way (spawn)"
        }
        (_, 34) => "this libcuda is the development kit's stub: remove it from LD_LIBRARY_PATH",
        (_, 36 | 803) => {
            "library and kernel module of the driver differ: load the module again, or reboot"
        }
        (_, 46) => "another process uses the device exclusively: `nvidia-smi -q -d COMPUTE`",
        (_, 100 | 101) => {
            "no GPU is visible: see `nvidia-smi -L`, CUDA_VISIBLE_DEVICES and the container's devices"
        }
        (_, 802) => "start the fabric manager: `systemctl start nvidia-fabricmanager`",
        (_, 800 | 801) => "the device or its driver cannot do this: see `devmem-tcp doctor`",
        _ if is_fatal(code) => {
            "the device is lost for this process: read `dmesg` (lines with Xid), and restart the program"
        }
        _ => "see `devmem-tcp doctor` and `nvidia-smi`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_call_the_code_and_the_remedy() {
        let export = device_error(
            "cuMemGetHandleForAddressRange",
            801,
            "CUDA_ERROR_NOT_SUPPORTED",
        );
        assert_eq!(
            export.to_string(),
            "cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED (801)\n  dma-bufs need NVIDIA's open kernel \
             module: `modinfo -F license nvidia` must say MIT/GPL"
        );
        assert_eq!(export.state, DeviceState::Usable);
        let lost = device_error("cuEventQuery", 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(lost.state, DeviceState::Lost);
    }
}
