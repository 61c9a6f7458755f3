//! One error type per operation. Fields hold the facts; the message has the reason in its first line, then the remedy.
//!
//! Every error has `kind()` for programs, `remedy()` for people, `errno()`, and becomes an `io::Error` by `?`.

mod bind;
mod device;
mod held_memory;
mod kind;
mod misplacement;
mod refusal;
mod verdict;

use std::io;
use std::net::IpAddr;

use devmem_uapi::DmabufId;
use devmem_uapi::text::Printable;

pub use bind::{BindError, BindTxError, DeviceMemoryError, GatherError, PlaceError};
pub use held_memory::{HeldMemory, HeldUnit};
pub use kind::ErrorKind;
pub use misplacement::Misplacement;
pub use refusal::Refusal;

use crate::driver::NotReady;
use crate::link_spec::LinkSpecError;

/// Why a NIC could not be opened.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not a link.
    #[error(transparent)]
    Link(#[from] LinkSpecError),
    /// The text is not an address with a prefix length.
    #[error(
        "'{}' is not an address with a prefix length\n  write it as 10.77.0.2/24 or fd77::2/64",
        Printable(.text)
    )]
    Address {
        /// The text.
        text: String,
    },
    /// The kernel has no such interface.
    #[error(
        "there is no interface {}: {source}\n  `ip link` lists those of this network namespace",
        Printable(.name)
    )]
    NoInterface {
        /// The name.
        name: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel has no route to an address.
    #[error("there is no route to {peer}: {source}\n  `ip route get {peer}` asks for the same one")]
    NoRoute {
        /// The address.
        peer: IpAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The builder of the NIC has no address.
    #[error("the NIC has no address\n  give it one, as in `.address(\"10.77.0.2/24\")`")]
    NoAddress,
    /// Nothing listens at the other end of a UNIX wire, or its hello is invalid.
    #[error(
        "the wire at {}: {source}\n  start its other end first, which takes one peer at a time: a NIC with the link unix-listen:PATH, or devmem-tcp nic --wire unix-listen:PATH", Printable(.path.display())
    )]
    Unix {
        /// The path of the socket.
        path: std::path::PathBuf,
        /// The error of the socket.
        source: io::Error,
    },
    /// The listening end of a UNIX wire carries super-packets and payload by reference, and an impaired end does not.
    #[error(
        "the wire at {}: the listening end refuses this one, which takes no super-packets because of its impairment\n  let the impaired end listen (unix-listen:PATH) and the other one connect, or impair both", Printable(.path.display())
    )]
    UnixRefused {
        /// The path of the socket.
        path: std::path::PathBuf,
    },
    /// The socket of a UNIX wire cannot be made.
    #[error(
        "cannot listen at {}: {source}\n  if another process listens there, choose another path, or connect to it with unix:PATH", Printable(.path.display())
    )]
    UnixListen {
        /// The path of the socket.
        path: std::path::PathBuf,
        /// The error of the socket.
        source: io::Error,
    },
    /// Two NICs are on this wire already.
    #[error(
        "the in-memory wire '{}' already joins two NICs\n  choose another name, or drop one of its NICs",
        Printable(.name)
    )]
    WireTaken {
        /// The name of the wire.
        name: String,
    },
    /// The TAP cannot be opened or set up, or the NIC or its stack refused an option.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A system call failed, usually for lack of a resource.
    #[error(
        "{call} failed: {source}\n  the process may be out of file descriptors or threads: see `ulimit -n` and `ulimit -u`"
    )]
    System {
        /// The name of the call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// The NIC is an interface of the kernel: there is no software NIC to read or change.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is an interface of the kernel, not a software NIC of this process\n  use ethtool: `ethtool -g {0}`, `ethtool -x {0}`, `ethtool -n {0}`",
    Printable(.interface)
)]
pub struct KernelNic {
    /// The interface.
    pub interface: String,
}

/// The NIC and everything made from it belong to the process that this one was forked from. The call did nothing.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the NIC belongs to process {owner}, of which this one is a fork\n  open a NIC in this process, or fork before opening it"
)]
pub struct Forked {
    /// The process that opened the NIC.
    pub owner: u32,
}

/// Why there is no software NIC to read or change.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSoftwareNic {
    /// The NIC is an interface of the kernel.
    #[error(transparent)]
    Kernel(#[from] KernelNic),
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a receiver's settings could not be applied. The NIC has its previous settings.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Too many queues or none: queue 0 always uses host memory, so at most `channels - 1` can use device memory.
    #[error("{wanted} queues cannot take device memory: the NIC has {channels} and keeps queue 0\n  ask for 1 to {}, or open the NIC with more queues", channels.saturating_sub(1))]
    Queues {
        /// Queues requested.
        wanted: u16,
        /// RX queues of the NIC.
        channels: u16,
    },
    /// The NIC refused a setting. The ones made before it were restored.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why a connection could not be shut down.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why a socket could not listen.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The text cannot be resolved to an address.
    #[error("not an address: {0}\n  write it as 10.77.0.2:5201 or [fd77::2]:5201")]
    Address(#[source] io::Error),
    /// The stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why a connection could not be established.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The text cannot be resolved to an address.
    #[error("not an address: {0}\n  write it as 10.77.0.1:5201 or [fd77::1]:5201")]
    Address(#[source] io::Error),
    /// The stack or the kernel refused to begin: no route, no free port.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The attempt ended: refused, reset, unreachable or timed out.
    #[error(transparent)]
    Ended(Refusal),
    /// The peer did not answer.
    #[error(
        "the peer did not answer\n  check that the peer runs and that packets reach it: ping, and a capture on the link"
    )]
    TimedOut,
    /// The fd that a task waits on cannot be created.
    #[error(
        "cannot wait for the connection: {0}\n  the process may be out of file descriptors: see `ulimit -n`"
    )]
    System(#[source] io::Error),
}

/// Why no connection could be accepted.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// No connection is pending, and the listener is non-blocking.
    #[error("no connection is pending")]
    WouldBlock,
    /// No connection arrived within the timeout.
    #[error("no connection arrived within the timeout")]
    TimedOut,
    /// The fd that a task waits on cannot be created. The accepted connection was closed.
    #[error(
        "cannot wait for data of the accepted connection: {0}\n  the process may be out of file descriptors: see `ulimit -n`"
    )]
    System(#[source] io::Error),
    /// The stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why nothing was received.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// No data is queued, and the stream is non-blocking.
    #[error("no data to receive yet")]
    WouldBlock,
    /// No data arrived within the timeout.
    #[error("{}", held_memory::timed_out(.held.as_deref()))]
    TimedOut {
        /// Who holds the memory that the connection receives into, if little of it is free: then the peer may not send more.
        held: Option<Box<HeldMemory>>,
    },
    /// Under [`Placement::Strict`](crate::Placement::Strict): the next bytes are in host memory. They are still
    /// queued.
    #[error("{}", misplacement::words(*.bytes, .cause.as_deref()))]
    Misplaced {
        /// Length in bytes of the first contiguous piece of them.
        bytes: usize,
        /// The cause, found from the kernel's settings; always `None` with the user-space stack.
        cause: Option<Box<Misplacement>>,
    },
    /// The connection has ended, or the stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The earlier frags of the batch could not be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The kernel's control messages do not match the byte count: some bytes are lost, and the connection is unusable.
    #[error("recv on {}: {problem}\n  close the connection; its bytes are not complete", Printable(.interface))]
    Lost {
        /// The interface.
        interface: String,
        /// The mismatch.
        problem: String,
    },
}

/// Why nothing was sent.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The send queue is full, and the stream is non-blocking.
    #[error("the send queue is full")]
    WouldBlock,
    /// The send queue stayed full until the timeout.
    #[error("the send queue stayed full until the timeout")]
    TimedOut,
    /// The memory is bound to another NIC than the stream's.
    #[error(
        "dma-buf {dmabuf} is bound to another NIC than the stream's\n  bind the memory to the stream's NIC, too, with its `bind_tx`, and send from that binding"
    )]
    OtherNetdev {
        /// The binding.
        dmabuf: DmabufId,
    },
    /// The connection has ended, or the stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why a completion could not be awaited or read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The send is not complete, and the stream is non-blocking.
    #[error("the send is not complete yet")]
    WouldBlock,
    /// The send did not complete within the timeout.
    #[error("the send did not complete within the timeout")]
    TimedOut,
    /// The error queue of the socket cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why the frags of a batch could not all be returned.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Fewer frags were freed than the batch held: the program returned some tokens without the library.
    #[error(
        "only {freed} of {lent} frags could be returned\n  their tokens were returned before, without the library"
    )]
    Missing {
        /// Frags of the batch.
        lent: usize,
        /// Frags that were freed.
        freed: usize,
    },
    /// The stack or the kernel refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<GatherError> for RecvError {
    fn from(error: GatherError) -> Self {
        match error {
            GatherError::Forked(forked) => Self::Forked(forked),
            error => Self::Refused(Refusal::new(error.kind(), error.errno(), error.to_string())),
        }
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

from_not_ready!(AcceptError, CompletionError, SendError);

/// A timeout without its cause, which the socket finds.
impl From<NotReady> for RecvError {
    fn from(reason: NotReady) -> Self {
        match reason {
            NotReady::WouldBlock => Self::WouldBlock,
            NotReady::TimedOut => Self::TimedOut { held: None },
            NotReady::Forked(forked) => Self::Forked(forked),
        }
    }
}

macro_rules! from_stack {
    ($($error:ident: $($inner:ident),*;)*) => {$($(
        #[doc(hidden)]
        impl From<stack::$inner> for $error {
            fn from(error: stack::$inner) -> Self {
                Self::Refused(error.into())
            }
        }
    )*)*};
}

from_stack! {
    AcceptError: AcceptError;
    BindTxError: BindTxError;
    CompletionError: RecvError;
    ConnectError: ConnectError;
    ListenError: ListenError;
    PlaceError: BindTargetError, PlaceError;
    RecvError: RecvError;
    ReleaseError: DontneedError;
    SendError: SendError;
    ShutdownError: ShutdownError;
}
