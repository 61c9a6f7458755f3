//! One error per operation: the facts as fields, the reason in the first line, then what to do.

mod bind;
mod errno;
mod kernel;
mod misplacement;

use std::io;

use devmem_linux::netlink::NetlinkError;
use devmem_linux::nic_setup::{ApplyError, PlanError};
use devmem_linux::socket::ControlProblem;
use devmem_linux::tap::TapError;
use devmem_uapi::{DmabufId, Errno};
use steer::{IndirectionTableError, RuleError};

pub use bind::{BindError, BindTxError, DeviceMemoryError, NoDmabuf};
pub use kernel::KernelError;
pub(crate) use kernel::connection_error;
pub use misplacement::Misplacement;

use crate::driver::NotReady;
use crate::link_spec::LinkSpecError;

/// Why a NIC could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not a link.
    #[error(transparent)]
    Link(#[from] LinkSpecError),
    /// The text is not an address with a prefix length.
    #[error(
        "'{text}' is no address with a prefix length\n  write it as 10.77.0.2/24 or fd77::2/64"
    )]
    Address {
        /// The text.
        text: String,
    },
    /// The kernel has no such interface.
    #[error(
        "there is no interface {name}: {source}\n  `ip link` lists those of this network namespace"
    )]
    NoInterface {
        /// The name.
        name: String,
        /// What the kernel said.
        source: NetlinkError,
    },
    /// The NIC was given no address.
    #[error("the NIC has no address\n  give it one, as in `.address(\"10.77.0.2/24\")`")]
    NoAddress,
    /// The TAP interface cannot be had.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The kernel's end of the TAP cannot be set up.
    #[error(
        "cannot set up {name}: {source}\n  this needs CAP_NET_ADMIN in its network namespace: run as root, or inside `unshare -rn`"
    )]
    Interface {
        /// The interface.
        name: String,
        /// What the kernel said.
        source: NetlinkError,
    },
    /// Nobody is at the other end of a UNIX wire, or somebody who is no wire.
    #[error(
        "the wire at {}: {source}\n  start its other end first: devmem-tcp nic --wire unix-listen:PATH, which takes one peer at a time", path.display()
    )]
    Unix {
        /// The socket.
        path: std::path::PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Two NICs are on this wire already.
    #[error(
        "the in-memory wire '{name}' has two ends already\n  choose another name, or drop one of its NICs"
    )]
    WireTaken {
        /// The wire.
        name: String,
    },
    /// The link cannot be made worse while it exchanges super-packets.
    #[error(transparent)]
    Impair(#[from] nic::OffloadsOn),
    /// The NIC refuses its options.
    #[error(transparent)]
    Nic(#[from] nic::NicError),
    /// The stack refuses its options.
    #[error(transparent)]
    Stack(#[from] stack::StackError),
    /// The system is out of something.
    #[error(
        "{call} failed: {source}\n  the process may be out of file descriptors or threads: see `ulimit -n` and `ulimit -u`"
    )]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The NIC is an interface of the kernel: there is no software NIC to look at or to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{interface} is an interface of the kernel, whose NIC is not in this process\n  ethtool reaches it: `ethtool -g {interface}`, `ethtool -x {interface}`, `ethtool -n {interface}`"
)]
pub struct KernelNic {
    /// The interface.
    pub interface: String,
}

/// The NIC, and everything made of it, belongs to the process that forked this one: nothing was done, to either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the NIC belongs to process {owner}, of which this one is a fork\n  open a NIC in this process, or fork before opening it"
)]
pub struct Forked {
    /// The process that opened the NIC.
    pub owner: u32,
}

impl From<Forked> for io::Error {
    fn from(forked: Forked) -> Self {
        let Errno(errno) = forked.errno();
        Self::new(Self::from_raw_os_error(errno).kind(), forked)
    }
}

/// Why there is no software NIC to look at or to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSoftwareNic {
    /// It is an interface of the kernel.
    #[error(transparent)]
    Kernel(#[from] KernelNic),
    /// It is in another process.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a receiver's settings could not be made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Queue 0 stays with host memory, so fewer queues than there are can take device memory.
    #[error("{wanted} queues cannot take device memory: the NIC has {channels} and keeps queue 0\n  ask for 1 to {}, or open the NIC with more queues", channels.saturating_sub(1))]
    Queues {
        /// Asked for.
        wanted: u16,
        /// The NIC's RX queues.
        channels: u16,
    },
    /// The NIC refuses header split.
    #[error(transparent)]
    Rings(#[from] nic::SetRingsError),
    /// The NIC refuses the RSS table.
    #[error(transparent)]
    Rss(#[from] IndirectionTableError),
    /// The NIC refuses a steering rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// An interface of the kernel cannot be prepared.
    #[error("{0}\n  `devmem-tcp doctor` says what it has and what it lacks")]
    Plan(Box<PlanError>),
    /// The kernel refused a setting; those made before were put back.
    #[error("{0}\n  `devmem-tcp doctor` says what it has and what it lacks")]
    Apply(Box<ApplyError>),
}

/// Why a connection could not be shut down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::ShutdownError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why nothing can listen there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Not an address.
    #[error("not an address: {0}\n  write it as 10.77.0.2:5201 or [fd77::2]:5201")]
    Address(io::Error),
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::ListenError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why no connection came out of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Not an address.
    #[error("not an address: {0}\n  write it as 10.77.0.1:5201 or [fd77::1]:5201")]
    Address(io::Error),
    /// The stack refuses, or the peer did.
    #[error(transparent)]
    Refused(#[from] stack::ConnectError),
    /// Refused, reset, unreachable or unanswered.
    #[error(transparent)]
    Ended(#[from] stack::RecvError),
    /// No answer.
    #[error("the peer did not answer")]
    TimedOut,
    /// What a task waits by cannot be had.
    #[error("cannot wait for the connection: {0}")]
    System(io::Error),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why no connection was accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// None waits, and the listener is non-blocking.
    #[error("no connection waits to be accepted")]
    WouldBlock,
    /// None came within the time given.
    #[error("no connection came within the time given")]
    TimedOut,
    /// What a task waits by cannot be had: the connection is closed.
    #[error("cannot wait for what the connection brings: {0}")]
    System(io::Error),
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::AcceptError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Nothing is there, and the stream is non-blocking.
    #[error("nothing to receive yet")]
    WouldBlock,
    /// Nothing came within the time given.
    #[error("nothing came within the time given")]
    TimedOut,
    /// Under [`Placement::Strict`](crate::Placement::Strict): the next bytes are in host memory. They are still
    /// queued.
    #[error("{}", misplacement::words(*.bytes, .cause.as_deref()))]
    Misplaced {
        /// Bytes in host memory at the head of the queue, as far as they lie in one piece.
        bytes: usize,
        /// Why, as far as the kernel's settings tell; the user-space stack does not ask.
        cause: Option<Box<Misplacement>>,
    },
    /// The connection has ended, or the call is not possible on it.
    #[error(transparent)]
    Refused(#[from] stack::RecvError),
    /// What the batch held before could not be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// What the kernel said of the bytes does not add up: some are lost, and the connection is of no more use.
    #[error("recv on {interface}: {problem}\n  close the connection; its bytes are not complete")]
    Control {
        /// The interface.
        interface: String,
        /// What does not add up.
        problem: ControlProblem,
    },
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The send queue is full, and the stream is non-blocking.
    #[error("the send queue is full")]
    WouldBlock,
    /// The send queue stayed full for the time given.
    #[error("the send queue stayed full for the time given")]
    TimedOut,
    /// The memory is bound on another NIC than the stream's.
    #[error(
        "dma-buf {dmabuf} is bound on another NIC than the stream's\n  bind the memory on the stream's NIC, too: `bind_tx` there, and name that"
    )]
    OtherNetdev {
        /// The binding.
        dmabuf: DmabufId,
    },
    /// The connection has ended, or the call is not possible on it.
    #[error(transparent)]
    Refused(#[from] stack::SendError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why nothing is known of a send's completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The send is not complete, and the stream is non-blocking.
    #[error("the send is not complete yet")]
    WouldBlock,
    /// It did not complete within the time given.
    #[error("the send did not complete within the time given")]
    TimedOut,
    /// The socket has no error queue.
    #[error(transparent)]
    Refused(#[from] stack::RecvError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why device memory did not all go home.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Tokens were returned by somebody else.
    #[error(
        "{lent} frags were lent but {freed} came home\n  their tokens were returned twice, or behind the library's back"
    )]
    Missing {
        /// Frags of the batch.
        lent: usize,
        /// Frags that the stack freed.
        freed: usize,
    },
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::DontneedError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why a batch could not be gathered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// The NIC is another process's.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The target is too small.
    #[error(
        "{needed} bytes do not fit at offset {offset} of {size} bytes\n  gather at a smaller offset or into larger memory"
    )]
    DoesNotFit {
        /// Bytes of the batch.
        needed: usize,
        /// Where they should go.
        offset: usize,
        /// Size of the target.
        size: usize,
    },
    /// The memory of a frag is gone: its tokens were returned behind the library's back.
    #[error(
        "the memory bound as {dmabuf:?} is gone\n  a frag's token was returned while the batch still held it"
    )]
    Gone {
        /// The binding.
        dmabuf: DmabufId,
    },
    /// A range is outside its memory, or the memory cannot be synchronised for the CPU.
    #[error(transparent)]
    Copy(#[from] netmem::CopyError),
}

impl From<netmem::OutOfBounds> for GatherError {
    fn from(error: netmem::OutOfBounds) -> Self {
        Self::Copy(error.into())
    }
}

macro_rules! from_not_ready {
    ($($error:ty),*) => {$(
        impl From<NotReady> for $error {
            fn from(reason: NotReady) -> Self {
                match reason {
                    NotReady::WouldBlock => Self::WouldBlock,
                    NotReady::TimedOut => Self::TimedOut,
                    NotReady::Forked(forked) => Self::Forked(forked),
                }
            }
        }
    )*};
}

from_not_ready!(AcceptError, CompletionError, RecvError, SendError);

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        match error {
            SendError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            SendError::TimedOut => io::ErrorKind::TimedOut.into(),
            error => {
                let Errno(errno) = error.errno();
                io::Error::new(io::Error::from_raw_os_error(errno).kind(), error)
            }
        }
    }
}
