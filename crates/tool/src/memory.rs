//! `--memory`: the kind of device memory.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use devmem_tcp::{Dmabuf, cuda, hip};

use crate::output::Failure;

/// Bytes of a page: device memory is allocated in them.
pub const PAGE_BYTES: usize = 4096;

/// The option for the size of device memory, for its errors.
pub const MEM_SIZE: &str = "--mem-size";

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

    /// Allocates memory of this kind for what `option` asks for: the option that the user changes if there is not enough. Memory is
    /// touched when it is allocated, and `bytes` may be the choice of a peer: more than this process may use is refused.
    ///
    /// # Errors
    ///
    /// The refusal of the exporter or the device, with its remedy.
    pub fn allocate(self, bytes: usize, option: &str) -> Result<Dmabuf, Failure> {
        let of = |what: &str| format!("get {what} for {option}");
        let memory = match self {
            Self::Vulkan(ordinal) => return vulkan(ordinal, bytes),
            Self::Anonymous => Dmabuf::anonymous(bytes).with_context(|| of("device memory")),
            Self::Udmabuf => {
                devmem_tcp::memory::udmabuf(bytes).with_context(|| of("device memory"))
            }
            Self::Cuda(ordinal) => {
                cuda::alloc(ordinal, bytes).with_context(|| of("memory of the GPU"))
            }
            Self::Hip(ordinal) => {
                hip::alloc(ordinal, bytes).with_context(|| of("memory of the GPU"))
            }
        };
        Ok(memory?)
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
    fn more_memory_than_there_is_is_refused_with_the_option_that_asks_for_it() {
        // More than any machine has, and less than an address space.
        let refused = MemoryKind::Anonymous.allocate(1 << 46, "--mem-size");
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("get device memory for --mem-size: "),
            "{refused}"
        );
        assert!(refused.contains("; ask for less"), "{refused}");
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
