//! Arguments of a NIC and its memory.

use clap::Args;

use tool::memory::MemoryKind;
use tool::size::Size;

/// The NIC and its memory.
#[derive(Debug, Args)]
pub struct NicArgs {
    /// MTU: largest IP packet [default: 1500; with packet:NAME or macvtap:NAME that of the interface]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u16>,
    /// RX queues bound to device memory; connections are spread over them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u16,
    /// Size of one net_iov: a power of two from 4K to 2M [default: 64K; with the kernel's stack: a page, and other sizes need Linux
    /// 7.3, mlx5_core or bnxt_en, and memory in pieces of that size, as of huge pages]
    #[arg(long, alias = "niov-size", value_name = "SIZE")]
    pub niov: Option<Size>,
    /// Device memory to bind [default: 256M; with the kernel's stack: 64M, the default limit of udmabuf]
    #[arg(long, value_name = "SIZE")]
    pub mem_size: Option<Size>,
    /// Kind of that memory: anonymous, udmabuf, cuda:N or hip:N for GPU N, or vulkan:N for Vulkan device N [default: anonymous; with the kernel's stack: udmabuf]
    #[arg(long, value_name = "KIND")]
    pub memory: Option<MemoryKind>,
    /// Impairments of the link, in both directions; `devmem-tcp wire --help` lists them
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
}
