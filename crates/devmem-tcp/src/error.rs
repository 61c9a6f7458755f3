//! One error per operation: the facts as fields, the reason in the first line, then what to do.

use std::fmt;
use std::io;

use devmem_linux::dmabuf::ExportError;
use devmem_linux::errors::Cause;
use devmem_linux::netlink::NetlinkError;
use devmem_linux::nic_setup::{ApplyError, PlanError};
use devmem_linux::socket::ControlProblem;
use devmem_linux::tap::TapError;
use devmem_uapi::{DmabufId, Errno};
use netmem::DmabufError;
use steer::{IndirectionTableError, RuleError};
use tcp::TcpError;

use crate::driver::NotReady;
use crate::link_spec::LinkSpecError;

/// What the kernel refused, and what that means here. `Display` is the reason, then what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// What was tried, and where: "recv on eth1".
    pub operation: String,
    /// What the kernel returned.
    pub errno: Errno,
    /// Why, and what to do.
    pub cause: Box<Cause>,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            errno,
            cause,
        } = self;
        write!(f, "{operation}: {errno}: {cause}")?;
        write_hint(f, cause)
    }
}

impl std::error::Error for KernelError {}

/// What to do, a line or several, below the reason.
fn write_hint(f: &mut fmt::Formatter<'_>, cause: &Cause) -> fmt::Result {
    let lines = cause.hint.as_deref().unwrap_or_default().lines();
    lines
        .into_iter()
        .try_for_each(|line| write!(f, "\n  {line}"))
}

/// An error with its cause's hint below it.
struct Hinted<'a, E>(&'a E, &'a Cause);

impl<E: fmt::Display> fmt::Display for Hinted<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        write_hint(f, self.1)
    }
}

/// How a connection ended, if that is what `errno` says: both backends tell it in the same words.
pub(crate) fn connection_error(errno: Errno) -> Option<TcpError> {
    Some(match errno {
        Errno::ECONNREFUSED => TcpError::Refused,
        Errno::ECONNRESET => TcpError::Reset,
        Errno::ETIMEDOUT => TcpError::TimedOut,
        Errno::EHOSTUNREACH => TcpError::HostUnreachable,
        Errno::ENETUNREACH => TcpError::NetUnreachable,
        Errno::ECONNABORTED => TcpError::Aborted,
        _ => return None,
    })
}

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

/// Why a receiver's settings could not be made. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
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
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::ShutdownError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why device memory could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The exporter refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
    /// The descriptor is not a dma-buf.
    #[error("the descriptor is not an open dma-buf: {0}")]
    NotADmabuf(io::Error),
    /// The CPU cannot map it.
    #[error(transparent)]
    Map(#[from] DmabufError),
}

impl From<ExportError> for DeviceMemoryError {
    fn from(error: ExportError) -> Self {
        Self::Export(Box::new(error))
    }
}

/// Why memory is not a dma-buf that the kernel could bind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDmabuf {
    /// Anonymous memory has no file descriptor.
    #[error(
        "anonymous memory is not a dma-buf and cannot be bound to a NIC of the kernel\n  make it with `devmem_tcp::udmabuf`, \
         `devmem_tcp::dma_heap` or `Dmabuf::memfd`"
    )]
    Anonymous,
    /// The memory's file cannot be made a dma-buf.
    #[error("{}", Hinted(.0, &.0.cause))]
    Export(Box<ExportError>),
}

impl NoDmabuf {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            // What the kernel says of a descriptor that is no dma-buf.
            Self::Anonymous => Errno::EINVAL,
            Self::Export(error) => error.errno,
        }
    }
}

/// Why memory could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::BindRxError),
    /// The kernel refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The memory is none that the kernel could bind.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel has no call for it.
    #[error(transparent)]
    NoFamily(Box<KernelError>),
}

impl BindError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(error) => error.errno(),
            Self::Kernel(error) => error.errno,
            Self::Memory(error) => error.errno(),
            Self::NoFamily(error) => error.errno,
        }
    }
}

/// Why memory could not be bound for sending.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindTxError {
    /// The stack refuses.
    #[error(transparent)]
    Refused(#[from] stack::BindTxError),
    /// The kernel refuses.
    #[error("{}", Hinted(.0, &.0.cause))]
    Kernel(Box<devmem_linux::netdev::BindError>),
    /// The memory is none that the kernel could bind.
    #[error(transparent)]
    Memory(NoDmabuf),
    /// The kernel has no call for it.
    #[error(transparent)]
    NoFamily(Box<KernelError>),
}

impl BindTxError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(error) => error.errno(),
            Self::Kernel(error) => error.errno,
            Self::Memory(error) => error.errno(),
            Self::NoFamily(error) => error.errno,
        }
    }
}

/// Why nothing can listen there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
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
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(Box<KernelError>),
}

/// Why no connection was accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// None waits, and the listener is non-blocking.
    #[error("no connection waits to be accepted")]
    WouldBlock,
    /// None came within the time given.
    #[error("no connection came within the time given")]
    TimedOut,
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
    /// Nothing is there, and the stream is non-blocking.
    #[error("nothing to receive yet")]
    WouldBlock,
    /// Nothing came within the time given.
    #[error("nothing came within the time given")]
    TimedOut,
    /// Under [`Placement::Strict`](crate::Placement::Strict): the next bytes are in host memory. They are still
    /// queued.
    #[error("{}", misplaced_words(*.bytes, .cause.as_deref()))]
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

/// Why bytes are in host memory although device memory is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplacement {
    /// The interface.
    pub interface: String,
    /// The binding where they should be, if there is one.
    pub dmabuf: Option<DmabufId>,
    /// Why, in one line.
    pub reason: String,
    /// What mends it.
    pub hint: String,
}

fn misplaced_words(bytes: usize, cause: Option<&Misplacement>) -> String {
    let Some(cause) = cause else {
        return format!(
            "{bytes} bytes arrived in host memory, not in device memory\n  the flow is not steered to a bound queue, or \
             the NIC left payload with the headers; `set_placement(Placement::Mixed)` delivers them"
        );
    };
    let Misplacement {
        interface,
        dmabuf,
        reason,
        hint,
    } = cause;
    let memory = match dmabuf {
        Some(dmabuf) => format!("dma-buf {dmabuf}"),
        None => "device memory".to_owned(),
    };
    format!(
        "recv on {interface}: {bytes} bytes arrived in host memory, not in {memory}\n  {reason}\n  {hint}"
    )
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
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
                }
            }
        }
    )*};
}

from_not_ready!(AcceptError, CompletionError, RecvError, SendError);

/// The errno of an error of Rust's own, or of what it means.
fn io_errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0))
}

impl ListenError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Address(error) => io_errno(error),
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ConnectError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Address(error) => io_errno(error),
            Self::Refused(refused) => refused.errno(),
            Self::Ended(ended) => ended.errno(),
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Kernel(error) => error.errno,
        }
    }
}

impl AcceptError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl RecvError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::Misplaced { .. } => Errno::EFAULT,
            Self::Refused(refused) => refused.errno(),
            Self::Release(error) => error.errno(),
            Self::Kernel(error) => error.errno,
            Self::Control { .. } => Errno::EPROTO,
        }
    }
}

impl SendError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::OtherNetdev { .. } => Errno::ENODEV,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl CompletionError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ReleaseError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Missing { .. } => Errno::EINVAL,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ShutdownError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

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
