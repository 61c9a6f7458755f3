//! `--memory`: the kind of device memory.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use devmem_tcp::{Dmabuf, cuda, hip};

use crate::output::Failure;
use crate::size::Size;

/// Bytes of a page: device memory is allocated in them.
pub const PAGE_BYTES: usize = 4096;

/// Kind of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Memory of this process. A NIC of the kernel cannot be bound to it.
    Anonymous,
    /// Ordinary memory as a dma-buf, from /dev/udmabuf.
    Udmabuf,
    /// Memory of an NVIDIA GPU.
    Cuda(u32),
    /// Memory of an AMD GPU.
    Hip(u32),
    /// Memory of a Vulkan device.
    Vulkan(u32),
}

impl MemoryKind {
    /// The names of the kinds, without the number of a device.
    pub const NAMES: [&str; 5] = ["anonymous", "udmabuf", "cuda", "hip", "vulkan"];

    /// Returns whether the CPU can access memory of this kind.
    pub fn is_mapped(self) -> bool {
        match self {
            Self::Anonymous | Self::Udmabuf => true,
            // Some of it is, on some devices; benchmarks do not depend on that.
            Self::Cuda(_) | Self::Hip(_) | Self::Vulkan(_) => false,
        }
    }

    /// Allocates memory of this kind.
    ///
    /// # Errors
    ///
    /// The refusal of the exporter or the device, with its remedy.
    pub fn allocate(self, bytes: usize) -> Result<Dmabuf, Failure> {
        let memory = match self {
            Self::Vulkan(ordinal) => return vulkan(ordinal, bytes),
            Self::Anonymous => Dmabuf::anonymous(bytes).context("get device memory"),
            Self::Udmabuf => devmem_tcp::udmabuf(bytes).context("get device memory"),
            Self::Cuda(ordinal) => cuda::alloc(ordinal, bytes).context("get memory of the GPU"),
            Self::Hip(ordinal) => hip::alloc(ordinal, bytes).context("get memory of the GPU"),
        };
        Ok(memory?)
    }

    /// Refuses a size that this machine has no memory for: memory is touched when it is allocated, and `bytes` may be the
    /// choice of a peer.
    ///
    /// # Errors
    ///
    /// There is not enough. Memory of GPUs is not checked: the driver refuses by itself.
    pub fn check_free(self, bytes: usize) -> Result<(), Failure> {
        if !self.is_mapped() {
            return Ok(());
        }
        let text = std::fs::read_to_string("/proc/meminfo");
        match available(&text.unwrap_or_default()) {
            Some(free) if bytes as u64 > free => {
                let (size, free) = (Size(bytes as u64), Size(free));
                let text = format!("{size} do not fit into the free memory of {free}");
                Err(Failure::failed(text))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(feature = "vulkan")]
fn vulkan(ordinal: u32, bytes: usize) -> Result<Dmabuf, Failure> {
    let memory = devmem_tcp::vulkan::alloc(ordinal, bytes);
    Ok(memory.context("get memory of the Vulkan device")?)
}

#[cfg(not(feature = "vulkan"))]
fn vulkan(_ordinal: u32, _bytes: usize) -> Result<Dmabuf, Failure> {
    let text = "memory of Vulkan devices is not part of this build";
    Err(Failure::unsupported(text).with_remedy(
        "the Debian package has it; `cargo build --release -p devmem-tcp-cli --features vulkan` builds it",
    ))
}

/// Returns the free bytes by the text of /proc/meminfo (proc_meminfo(5)).
fn available(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Udmabuf => f.write_str("udmabuf"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Hip(ordinal) => write!(f, "hip:{ordinal}"),
            Self::Vulkan(ordinal) => write!(f, "vulkan:{ordinal}"),
        }
    }
}

impl FromStr for MemoryKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        match (kind, ordinal.parse()) {
            _ if text == "anonymous" => Ok(Self::Anonymous),
            _ if text == "udmabuf" => Ok(Self::Udmabuf),
            ("cuda", Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
            ("hip", Ok(ordinal)) => Ok(Self::Hip(ordinal)),
            ("vulkan", Ok(ordinal)) => Ok(Self::Vulkan(ordinal)),
            _ => Err(
                "takes anonymous, udmabuf, cuda:N or hip:N for GPU N, or vulkan:N for Vulkan device N"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_and_too_much_is_refused() {
        let text = "MemTotal:       100 kB\nMemAvailable:    7 kB\n";
        assert_eq!(available(text), Some(7 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        let refused = MemoryKind::Anonymous.check_free(usize::MAX / 2);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("do not fit into the free memory"),
            "{refused}"
        );
    }

    #[test]
    fn kinds_are_parsed_and_printed_alike() {
        for text in [
            "anonymous",
            "udmabuf",
            "cuda:0",
            "cuda:11",
            "hip:3",
            "vulkan:1",
        ] {
            assert_eq!(text.parse::<MemoryKind>().unwrap().to_string(), text);
            assert!(MemoryKind::NAMES.contains(&text.split(':').next().unwrap()));
        }
        assert_eq!("cuda".parse(), Ok(MemoryKind::Cuda(0)));
        assert_eq!("hip".parse(), Ok(MemoryKind::Hip(0)));
        assert_eq!("vulkan".parse(), Ok(MemoryKind::Vulkan(0)));
        for text in [
            "",
            "cuda:",
            "hip:x",
            "cuda:-1",
            "gpu",
            "gpu:0",
            "Cuda:0",
            "udmabuf:0",
        ] {
            assert!(text.parse::<MemoryKind>().is_err(), "{text}");
        }
    }
}
