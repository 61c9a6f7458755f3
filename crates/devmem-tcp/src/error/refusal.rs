//! A call that was refused, by either backend, as facts: kind, errno, reason, remedy, place, cause.

use std::error::Error;
use std::fmt;

use devmem_linux::dmabuf::ExportError;
use devmem_linux::errors::{self as linux, Cause, CauseKind, Operation, cause};
use devmem_linux::netlink::NetlinkError;
use devmem_linux::nic_setup::{ApplyError, PlanError, StateError, StepError};
use devmem_linux::tap::TapError;
use devmem_uapi::Errno;
use devmem_uapi::text::printable_lines;
use steer::RxQueueId;
use tcp::TcpError;

use super::ErrorKind;

/// A refusal of the kernel or of the user-space stack. `Display` prints the reason, then the remedy on further lines. Both may have names
/// and messages from outside, in which what a terminal obeys is escaped.
///
/// The same refusal has the same kind and the same errno on both backends.
pub struct Refusal {
    kind: ErrorKind,
    errno: Errno,
    /// Boxed, because results with large errors are slow to return.
    facts: Box<Facts>,
}

#[derive(Default)]
struct Facts {
    reason: String,
    remedy: Option<String>,
    interface: Option<String>,
    queue: Option<RxQueueId>,
    kernel_message: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Refusal {
    /// Returns the kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the errno that the kernel's call returns for it.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Returns the reason, in one line.
    pub fn reason(&self) -> &str {
        &self.facts.reason
    }

    /// Returns the remedy, one or more lines.
    pub fn remedy(&self) -> Option<&str> {
        self.facts.remedy.as_deref()
    }

    /// Returns the interface of the kernel; `None` for a user-space NIC.
    pub fn interface(&self) -> Option<&str> {
        self.facts.interface.as_deref()
    }

    /// Returns the RX queue that the refusal names, the first one of several.
    pub fn queue(&self) -> Option<RxQueueId> {
        self.facts.queue
    }

    /// Returns the message of the kernel's extended acknowledgement, if it sent one.
    pub fn kernel_message(&self) -> Option<&str> {
        self.facts.kernel_message.as_deref()
    }
}

impl Refusal {
    pub(crate) fn new(kind: ErrorKind, errno: Errno, reason: impl Into<String>) -> Self {
        let facts = Facts {
            reason: printable_lines(reason.into()),
            ..Facts::default()
        };
        Self {
            kind,
            errno,
            facts: Box::new(facts),
        }
    }

    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        let remedy = printable_lines(remedy.into());
        self.facts.remedy = Some(remedy).filter(|remedy| !remedy.is_empty());
        self
    }

    fn on_queue(mut self, queue: RxQueueId) -> Self {
        self.facts.queue = Some(queue);
        self
    }

    pub(crate) fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.facts.source = Some(Box::new(source));
        self
    }

    /// A refusal of the user-space stack. Its messages have the form "reason; remedy".
    pub(crate) fn of_stack(errno: Errno, message: &dyn fmt::Display) -> Self {
        let message = message.to_string();
        let (reason, remedy) = message.split_once("; ").unwrap_or((&message, ""));
        Self::new(ErrorKind::of_errno(errno), errno, reason).with_remedy(remedy)
    }

    fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// The connection has ended.
    pub(crate) fn ended(error: TcpError) -> Self {
        let remedy = match error {
            TcpError::Refused => "start the listener at the peer, or correct the address or port",
            TcpError::Reset | TcpError::BrokenPipe => {
                "the peer's program ended or closed the connection early: its own messages may say why"
            }
            TcpError::TimedOut => {
                "check that the peer runs and that packets reach it: ping, and a capture on the link"
            }
            TcpError::HostUnreachable | TcpError::NetUnreachable => {
                "check the addresses, the prefix lengths and the gateway of both sides"
            }
            TcpError::NextHopSilent {
                is_router: true, ..
            } => {
                "correct the address of the router (`NetdevBuilder::gateway`, --gateway), or check that it is up and on this link"
            }
            TcpError::NextHopSilent {
                is_router: false, ..
            } => {
                "check that the host is up, on this link and has this address, and the prefix length of the NIC's own"
            }
            TcpError::ProtocolUnreachable => "give the address of a host that speaks TCP",
            TcpError::LinkGone => {
                "the other end of the wire has left, or the interface was removed: open the NIC again when it is back"
            }
            TcpError::AddressTaken => {
                "give this NIC an address that no other station has, or stop the other one"
            }
            TcpError::Aborted => "connect again",
            TcpError::DeviceFailed { .. } => {
                "read what the device's driver reports (`dmesg`, for NVIDIA lines with Xid), and restart the program"
            }
        };
        let errno = stack::connection_errno(error);
        Self::new(ErrorKind::of_errno(errno), errno, error.to_string()).with_remedy(remedy)
    }

    /// A read of host bytes met bytes in device memory.
    pub(crate) fn in_device_memory() -> Self {
        let reason = "the next bytes are in device memory, and `read` is for bytes in host memory";
        Self::new(ErrorKind::InvalidInput, Errno::EFAULT, reason).with_remedy(
            "receive them with `recv` into an RxBatch, or copy the first ones with `peek`",
        )
    }

    /// A refusal of the kernel with its cause from the table of `devmem-linux`.
    pub(crate) fn of_kernel(operation: &str, errno: Errno, cause: &Cause) -> Self {
        let kind = ErrorKind::of_cause(cause.kind, errno);
        Self::new(kind, errno, format!("{operation}: {errno}: {cause}"))
            .with_remedy(cause.hint.clone().unwrap_or_default())
    }

    /// A socket call on `interface` that the kernel refused.
    pub(crate) fn of_call(interface: &str, what: &str, operation: Operation, errno: Errno) -> Self {
        let facts = linux::Facts {
            interface: Some(interface.to_owned()),
            ..linux::Facts::default()
        };
        let cause = cause(operation, errno, &facts);
        Self::of_kernel(&format!("{what} on {interface}"), errno, &cause).on(interface)
    }

    /// A netlink request before the one that binds was refused: the kernel has no netdev family.
    pub(crate) fn no_family(interface: &str, what: &str, error: &NetlinkError) -> Self {
        let facts = linux::Facts {
            kernel: error.text.clone(),
            interface: Some(interface.to_owned()),
            ..linux::Facts::default()
        };
        let errno = Errno(error.errno.raw_os_error());
        let cause = cause(Operation::BindRx, errno, &facts);
        let refusal = Self::of_kernel(&format!("{what} on {interface}"), errno, &cause);
        refusal.on(interface).caused_by(error.clone())
    }

    pub(crate) fn on(mut self, interface: &str) -> Self {
        self.facts.interface = Some(interface.to_owned());
        self
    }
}

#[doc(hidden)]
impl From<devmem_linux::netdev::BindError> for Refusal {
    fn from(error: devmem_linux::netdev::BindError) -> Self {
        let kind = ErrorKind::of_cause(error.cause.kind, error.errno);
        let queue = error.queues.first();
        let queue = queue.and_then(|queue| u16::try_from(queue.0).ok());
        let remedy = error.cause.hint.clone().unwrap_or_default();
        let refusal = Self::new(kind, error.errno, error.to_string()).with_remedy(remedy);
        let mut refusal = refusal.on(&error.interface);
        refusal.facts.queue = queue.map(RxQueueId);
        refusal.facts.kernel_message = error.kernel;
        refusal
    }
}

#[doc(hidden)]
impl From<ExportError> for Refusal {
    fn from(error: ExportError) -> Self {
        let kind = match error.cause.kind {
            // A missing permission of the exporter's device file, too.
            CauseKind::NotPermitted => ErrorKind::PermissionDenied,
            cause => ErrorKind::of_cause(cause, error.errno),
        };
        let remedy = error.cause.hint.clone().unwrap_or_default();
        Self::new(kind, error.errno, error.to_string()).with_remedy(remedy)
    }
}

#[doc(hidden)]
impl From<TapError> for Refusal {
    fn from(error: TapError) -> Self {
        let (kind, errno) = match &error {
            TapError::NoTun { errno } => (ErrorKind::Unsupported, Some(*errno)),
            TapError::Device { errno } => (ErrorKind::PermissionDenied, Some(*errno)),
            TapError::NotAdmin { .. } => (ErrorKind::PermissionDenied, None),
            TapError::Busy { .. } => (ErrorKind::InUse, None),
            TapError::NotATap { .. }
            | TapError::Tun { .. }
            | TapError::OneQueue { .. }
            | TapError::BadName { .. }
            | TapError::Queues { .. } => (ErrorKind::InvalidInput, None),
            TapError::Call { errno, .. } => {
                let errno = *errno;
                let kind = ErrorKind::of_errno(Errno(errno.raw_os_error()));
                (kind, Some(errno))
            }
        };
        let number = match (errno, kind) {
            (Some(errno), _) => Errno(errno.raw_os_error()),
            (None, ErrorKind::PermissionDenied) => Errno::EPERM,
            (None, ErrorKind::InUse) => Errno::EBUSY,
            (None, _) => Errno::EINVAL,
        };
        let remedy = error.remedy().unwrap_or_default();
        let refusal = Self::new(kind, number, error.to_string()).with_remedy(remedy);
        match errno {
            Some(errno) => refusal.caused_by(std::io::Error::from(errno)),
            None => refusal,
        }
    }
}

/// What to type when an interface cannot be set up.
const DOCTOR: &str = "`devmem-tcp doctor` lists what the interface supports and what is missing";

#[doc(hidden)]
impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Self {
        let (kind, errno) = plan_verdict(&error);
        Self::new(kind, errno, error.to_string()).with_remedy(DOCTOR)
    }
}

fn plan_verdict(error: &PlanError) -> (ErrorKind, Errno) {
    match error {
        PlanError::Unsupported { .. } => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
        PlanError::Read(error) => {
            let errno = error.errno().unwrap_or(Errno::EIO);
            (ErrorKind::of_errno(errno), errno)
        }
        _ => (ErrorKind::InvalidInput, Errno::EINVAL),
    }
}

#[doc(hidden)]
impl From<ApplyError> for Refusal {
    fn from(error: ApplyError) -> Self {
        let (kind, errno) = match &*error.why {
            StepError::Refused(refused) => {
                let errno = refused.errno().unwrap_or(Errno::EIO);
                (ErrorKind::of_errno(errno), errno)
            }
            StepError::State(
                StateError::Folder { source, .. } | StateError::File { source, .. },
            ) => {
                let errno = Errno(source.raw_os_error().unwrap_or(Errno::EIO.0));
                (ErrorKind::of_io(source), errno)
            }
            StepError::State(StateError::Busy { .. } | StateError::Leftover { .. }) => {
                (ErrorKind::InUse, Errno::EBUSY)
            }
            StepError::Flow(error) => plan_verdict(error),
            _ => (ErrorKind::Other, Errno::EIO),
        };
        let interface = error.interface.clone();
        Self::new(kind, errno, error.to_string())
            .with_remedy(DOCTOR)
            .on(&interface)
            .caused_by(*error.why)
    }
}

#[doc(hidden)]
impl From<stack::BindRxError> for Refusal {
    fn from(error: stack::BindRxError) -> Self {
        use stack::BindRxError as E;
        let refusal = Self::of_stack(error.errno(), &error);
        match error {
            E::SplitOff { queue, .. } | E::Threshold { queue, .. } => {
                refusal.of_kind(ErrorKind::NotSetUp).on_queue(queue)
            }
            E::NoSuchQueue { queue, .. } => {
                refusal.of_kind(ErrorKind::InvalidInput).on_queue(queue)
            }
            E::QueueTaken { queue, .. } => refusal.of_kind(ErrorKind::InUse).on_queue(queue),
            E::Restart { queue, .. } => refusal.of_kind(ErrorKind::OutOfResources).on_queue(queue),
            _ => refusal,
        }
    }
}

macro_rules! from_stack {
    ($($error:ident),*) => {$(
        #[doc(hidden)]
        impl From<stack::$error> for Refusal {
            fn from(error: stack::$error) -> Self {
                Self::of_stack(error.errno(), &error)
            }
        }
    )*};
}

from_stack!(
    BindTargetError,
    BindTxError,
    DontneedError,
    PlaceError,
    ShutdownError
);

#[doc(hidden)]
impl From<stack::ListenError> for Refusal {
    fn from(error: stack::ListenError) -> Self {
        match error {
            stack::ListenError::LinkGone => Self::ended(TcpError::LinkGone),
            _ => Self::of_stack(error.errno(), &error),
        }
    }
}

#[doc(hidden)]
impl From<stack::AcceptError> for Refusal {
    fn from(error: stack::AcceptError) -> Self {
        match error {
            stack::AcceptError::LinkGone => Self::ended(TcpError::LinkGone),
            stack::AcceptError::AddressTaken => Self::ended(TcpError::AddressTaken),
            _ => Self::of_stack(error.errno(), &error),
        }
    }
}

#[doc(hidden)]
impl From<stack::ConnectError> for Refusal {
    fn from(error: stack::ConnectError) -> Self {
        let refusal = Self::of_stack(error.errno(), &error);
        match error {
            stack::ConnectError::LinkGone => Self::ended(TcpError::LinkGone),
            stack::ConnectError::Route(_) => refusal.with_remedy(
                "connect to an address in a network of this NIC, or name a router with `NetdevBuilder::gateway`",
            ),
            _ => refusal,
        }
    }
}

#[doc(hidden)]
impl From<stack::BadSocket> for Refusal {
    fn from(error: stack::BadSocket) -> Self {
        Self::of_stack(error.errno(), &error)
    }
}

#[doc(hidden)]
impl From<stack::OptionError> for Refusal {
    fn from(error: stack::OptionError) -> Self {
        Self::of_stack(error.errno(), &error)
    }
}

#[doc(hidden)]
impl From<stack::RecvError> for Refusal {
    fn from(error: stack::RecvError) -> Self {
        match error {
            stack::RecvError::Connection(error) => Self::ended(error),
            stack::RecvError::TooManyTokens => {
                let reason = format!("the stream has lent {} frags", stack::MAX_TOKENS);
                Self::new(ErrorKind::OutOfResources, Errno::ENOMEM, reason)
                    .with_remedy("release the batches, or drop the frags, that the program holds")
            }
            stack::RecvError::Unreadable { .. } => Self::in_device_memory(),
            error => Self::of_stack(error.errno(), &error),
        }
    }
}

#[doc(hidden)]
impl From<stack::SendError> for Refusal {
    fn from(error: stack::SendError) -> Self {
        match error {
            stack::SendError::Connection(error) => Self::ended(error),
            stack::SendError::OutOfBounds {
                dmabuf,
                offset,
                end,
                size,
            } => {
                let reason = format!(
                    "bytes {offset} to {end} are not inside dma-buf {dmabuf}, which has {size} bytes"
                );
                Self::new(ErrorKind::InvalidInput, Errno::EFAULT, reason)
                    .with_remedy("send ranges inside the bound memory")
            }
            error => Self::of_stack(error.errno(), &error),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())?;
        let lines = self.remedy().unwrap_or_default().lines();
        lines
            .into_iter()
            .try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.facts.source.as_deref()?;
        Some(source)
    }
}
