//! The NIC of a run, and its memory.

use std::net::IpAddr;

use devmem_tcp::{Impairment, NiovSize};
use tool::memory::MemoryKind;
use tool::output::Failure;
use tool::parse::{check_mtu, parse_impairment, to_usize};
use tool::size::Size;

use crate::args;

/// Maximum number of bound queues.
pub(super) const MAX_QUEUES: u16 = 64;

/// Default sizes of device memory: for our stack, and for the kernel's, where udmabuf has a limit.
const MEM_SIZE: Size = Size(256 << 20);

pub(super) const KERNEL_MEM_SIZE: Size = Size(64 << 20);

/// Device memory that a short load binds, unless the queues need more.
const SHORT_LOAD_BYTES: usize = 16 << 20;

/// The MTU of a NIC of the kernel, usually, and the default of `--impair`.
pub(super) const MTU: u16 = 1500;

pub(super) const UNIMPAIRED: &str = "none";

/// Minimum memory of a queue: posted buffers for one super-packet, and the same amount in use.
const MIN_NIOVS_PER_QUEUE: usize = 8;

const MIN_BYTES_PER_QUEUE: usize = 256 << 10;

/// The NIC and its memory.
#[derive(Clone, Debug)]
pub struct NicPlan {
    /// Largest IP packet; `None`: the default of the link.
    pub mtu: Option<u16>,
    /// RX queues bound to device memory.
    pub queues: u16,
    /// Size of one net_iov.
    pub niov: NiovSize,
    /// Device memory to bind, in bytes.
    pub mem_bytes: usize,
    /// Device memory to bind at least, for a short load: as many bytes if the user has said how many.
    pub least_bytes: usize,
    /// Kind of that memory.
    pub memory: MemoryKind,
    /// Impairments of the link.
    pub impairment: Impairment,
    /// Payload bytes of every packet that stay in host memory.
    pub linear_bytes: usize,
}

impl NicPlan {
    /// Returns the plan of a NIC with an address of the version of `address`, and `shards` shards.
    pub(super) fn new(
        args: &args::NicArgs,
        linear: u16,
        address: IpAddr,
        shards: u16,
    ) -> Result<Self, Failure> {
        let args::NicArgs {
            mtu,
            queues,
            niov,
            mem_size,
            memory,
            impair,
        } = args;
        if let Some(mtu) = *mtu {
            check_mtu(mtu, address)?;
        }
        if !(1..=MAX_QUEUES).contains(queues) {
            return Err(Failure::usage(format!(
                "--queues {queues}: 1 to {MAX_QUEUES}"
            )));
        }
        let niov = parse_niov(*niov)?.unwrap_or_default();
        let is_chosen = mem_size.is_some();
        let mem_size = mem_size.unwrap_or(MEM_SIZE);
        let mem_bytes = to_usize("--mem-size", mem_size)?;
        let least = usize::from(shards)
            * usize::from(*queues)
            * (MIN_NIOVS_PER_QUEUE * niov.bytes()).max(MIN_BYTES_PER_QUEUE);
        if !mem_bytes.is_multiple_of(niov.bytes()) || mem_bytes < least {
            let size = Size(niov.bytes() as u64);
            let of_shards = match shards {
                1 => String::new(),
                several => format!(" of each of {several} shards"),
            };
            return Err(Failure::usage(format!(
                "--mem-size {mem_size}: with net_iovs of {size} it must be a multiple of that, and for {queues} queues{of_shards} at least {}",
                Size(least as u64)
            )));
        }
        let impairment = parse_impairment(impair)?;
        Ok(Self {
            mtu: *mtu,
            queues: *queues,
            niov,
            mem_bytes,
            least_bytes: match is_chosen {
                true => mem_bytes,
                false => least
                    .max(SHORT_LOAD_BYTES)
                    .next_multiple_of(niov.bytes())
                    .min(mem_bytes),
            },
            memory: memory.unwrap_or(MemoryKind::Anonymous),
            impairment,
            linear_bytes: usize::from(linear),
        })
    }
}

pub(super) fn parse_niov(niov: Option<Size>) -> Result<Option<NiovSize>, Failure> {
    let Some(niov) = niov else { return Ok(None) };
    let niov = NiovSize::new(to_usize("--niov", niov)?);
    niov.map(Some)
        .map_err(|error| Failure::usage(format!("--niov: {error}")))
}
