//! The NIC of `load` and `store`, which connect to a server: opened first, and bound to memory when the server is known. A load may use the kernel's sockets,
//! which need no privileges, and have no memory bound.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use devmem_linux::tap;
use devmem_tcp::{Dmabuf, Netdev, choice::Purpose};

use crate::args::BackendChoice;
use crate::backend::{self, Backend, SOCKETS};
use crate::kernel;
use crate::kernels_end;
use crate::load_failure::load_failure;
use crate::plan::{KernelPlan, LinkPlan, LoadPlan, NicPlan, TapPlan};
use crate::receiver::{BoundNic, open_nic};
use tool::memory::MEM_SIZE;
use tool::output::{Failure, note};
use tool::signals::StopFlag;
use transfer::load::Origin;

/// Bytes of bound memory for each byte of a short load: frags that are half full, and some that are posted.
const MEM_FACTOR: u64 = 4;

/// A NIC without bound memory.
#[derive(Debug)]
pub struct Client<'a> {
    pub nic: Netdev,
    /// Name of the backend in the report.
    pub backend: &'static str,
    /// Name of the link in the report.
    pub link: String,
    memory: Memory<'a>,
}

/// The address and the memory of the backend.
#[derive(Clone, Copy, Debug)]
enum Memory<'a> {
    /// Our address, and the plan.
    User(IpAddr, &'a NicPlan),
    /// The requested address, and the plan.
    Kernel(Option<IpAddr>, &'a KernelPlan),
    /// None is bound. The plan of the memory that bytes are loaded to.
    Sockets(&'a NicPlan),
}

impl<'a> Client<'a> {
    /// Chooses the backend and opens the NIC.
    ///
    /// # Errors
    ///
    /// The link is not available, or options conflict.
    pub fn open(
        link: &LinkPlan,
        nic: &'a NicPlan,
        kernel: &'a KernelPlan,
        purpose: Purpose,
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        match backend::choose(link, kernel.users_alone, purpose)? {
            Backend::User => {
                let opened = Self::on_link(&link.tap, nic, stop)?;
                if let Some(warning) = kernels_end::unreachable(&link.tap) {
                    note(warning);
                }
                Ok(opened)
            }
            Backend::Kernel(name) => {
                let nic = link.open_kernel(&name)?;
                kernel::check_support(&name, purpose)?;
                Ok(Self {
                    nic,
                    backend: "kernel",
                    link: name,
                    memory: Memory::Kernel(link.address, kernel),
                })
            }
            Backend::Sockets => backend::no_sockets("store"),
        }
    }

    /// Opens the NIC of a load. Without one that was asked for, the kernel's sockets are used where no TAP may be opened.
    ///
    /// # Errors
    ///
    /// The link is not available, or options conflict; there is no route to the server.
    pub fn of_load(plan: &'a LoadPlan, stop: &StopFlag) -> Result<Self, Failure> {
        let LoadPlan {
            link,
            nic,
            kernel,
            job,
            may_use_sockets,
            ..
        } = plan;
        if link.backend == BackendChoice::Sockets {
            backend::choose(link, kernel.users_alone, Purpose::Receive)?;
            note(match job.origin.is_encrypted() {
                true => "using the kernel's sockets: https is decrypted by the CPU in host memory",
                false => "using the kernel's sockets: payload passes through host memory",
            });
            return Self::on_sockets(&job.origin, nic, stop);
        }
        match Self::open(link, nic, kernel, Purpose::Receive, stop) {
            Err(refused) if *may_use_sockets && !tap::may_create() => {
                note(format_args!(
                    "using the kernel's sockets, payload passes through host memory: {refused}"
                ));
                Self::on_sockets(&job.origin, nic, stop)
            }
            opened => opened,
        }
    }

    fn on_sockets(origin: &Origin, nic: &'a NicPlan, stop: &StopFlag) -> Result<Self, Failure> {
        let opened = origin.kernel_nic(&mut || stop.control_flow());
        let opened = opened.map_err(|error| load_failure(error, origin, stop))?;
        Ok(Self {
            link: opened.interface().unwrap_or_default().to_owned(),
            nic: opened,
            backend: SOCKETS,
            memory: Memory::Sockets(nic),
        })
    }

    /// Opens a NIC of ours.
    ///
    /// # Errors
    ///
    /// The link is not available.
    pub fn on_link(tap: &TapPlan, nic: &'a NicPlan, stop: &StopFlag) -> Result<Self, Failure> {
        Ok(Self {
            nic: open_nic(tap.builder()?, nic, stop)?,
            backend: "user",
            link: tap.link.kind().to_string(),
            memory: Memory::User(tap.ours.address, nic),
        })
    }

    /// Returns our address for connections to `servers`, with port 0.
    ///
    /// # Errors
    ///
    /// The NIC has no address of the first server's IP version.
    pub fn local(&self, servers: &[SocketAddr]) -> Result<SocketAddr, Failure> {
        match (self.memory, servers) {
            // What the network gives; of the IP version of the server.
            (Memory::User(address, _), [SocketAddr::V6(_), ..]) if address.is_unspecified() => {
                Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))
            }
            (Memory::User(address, _) | Memory::Kernel(Some(address), _), _) => {
                Ok(SocketAddr::new(address, 0))
            }
            (Memory::Kernel(None, _) | Memory::Sockets(_), [first, ..]) => {
                kernel::local_to(&self.nic, first)
            }
            (Memory::Kernel(None, _) | Memory::Sockets(_), []) => {
                Err(Failure::failed("the server has no address"))
            }
        }
    }

    /// Binds `bytes` of memory for what `local` receives from `servers`; none for the kernel's sockets.
    ///
    /// # Errors
    ///
    /// The memory is not available, or the NIC cannot be set up.
    pub fn bind(
        &self,
        bytes: usize,
        local: SocketAddr,
        servers: &[SocketAddr],
    ) -> Result<Option<BoundNic>, Failure> {
        let nic = self.nic.clone();
        let bound = match self.memory {
            Memory::Sockets(_) => return Ok(None),
            // All connections of this NIC are ours.
            Memory::User(_, plan) => BoundNic::bind(nic, self.allocate(bytes)?, plan, local),
            Memory::Kernel(_, plan) => {
                let memory = self.allocate(bytes)?;
                let mut receive = nic.plan_receive(local);
                let is_alike = |it: &&SocketAddr| it.is_ipv4() == local.is_ipv4();
                for server in servers.iter().filter(is_alike) {
                    receive = receive.from_peer(*server);
                }
                BoundNic::on_kernel(nic, memory, plan, receive)
            }
        };
        bound.map(Some)
    }

    /// Allocates memory that the NIC can access.
    ///
    /// # Errors
    ///
    /// The refusal of the exporter.
    pub fn allocate(&self, bytes: usize) -> Result<Dmabuf, Failure> {
        match self.memory {
            Memory::User(_, plan) | Memory::Sockets(plan) => plan.memory.allocate(bytes, MEM_SIZE),
            Memory::Kernel(_, plan) => kernel::memory(plan.memory, bytes, plan.niov),
        }
    }

    /// Returns the bytes of memory to bind for a load of `bytes`: no more than can be in use, unless the user has said how many.
    pub fn mem_bytes_for(&self, bytes: u64) -> usize {
        let (most, niov) = self.mem_bytes();
        let least = match self.memory {
            Memory::User(_, plan) => plan.least_bytes,
            Memory::Kernel(..) | Memory::Sockets(_) => most,
        };
        let wanted = usize::try_from(bytes.saturating_mul(MEM_FACTOR)).unwrap_or(most);
        let wanted = wanted.checked_next_multiple_of(niov).unwrap_or(most);
        wanted.max(least).min(most)
    }

    /// Returns the bytes of memory to use, and the multiple of which bound memory must be.
    pub fn mem_bytes(&self) -> (usize, usize) {
        match self.memory {
            Memory::User(_, plan) | Memory::Sockets(plan) => (plan.mem_bytes, plan.niov.bytes()),
            Memory::Kernel(_, plan) => {
                let niov = plan
                    .niov
                    .map_or_else(rustix::param::page_size, |niov| niov.bytes());
                (plan.mem_bytes, niov)
            }
        }
    }
}
