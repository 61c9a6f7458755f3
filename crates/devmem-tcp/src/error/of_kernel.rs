//! Refusals of the kernel, with the causes and remedies of `devmem-linux`.

use std::net::SocketAddr;

use devmem_linux::broker::BrokerError;
use devmem_linux::dmabuf::ExportError;
use devmem_linux::errors::{self as linux, Cause, CauseKind, Operation, cause};
use devmem_linux::netlink::NetlinkError;
use devmem_linux::nic_setup::{ApplyError, PlanError, StateError, StepError};
use devmem_linux::tap::TapError;
use devmem_uapi::Errno;
use devmem_uapi::text::Printable;
use steer::RxQueueId;

use super::{Error, ErrorKind};

impl Error {
    /// A refusal of the kernel with its cause from the table of `devmem-linux`.
    pub(crate) fn of_kernel(operation: &str, errno: Errno, cause: &Cause) -> Self {
        let kind = ErrorKind::of_cause(cause.kind, errno);
        Self::new(kind, errno, format!("{operation}: {errno}: {cause}"))
            .with_remedy_if(cause.hint.clone())
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
        refusal.on(interface)
    }

    /// A broker did not bind memory to queues of `interface`.
    pub(crate) fn of_broker(interface: &str, error: &BrokerError) -> Self {
        let errno = error.errno();
        let kind = match errno {
            // An error of the protocol, and none of TCP.
            Errno::EPROTO => ErrorKind::Other,
            errno => ErrorKind::of_errno(errno),
        };
        let refusal = Self::new(kind, errno, error.to_string()).with_remedy_if(error.remedy());
        refusal.on(interface)
    }

    /// The kernel has no interface `name`.
    pub(crate) fn no_interface(name: &str, error: &NetlinkError) -> Self {
        let reason = format!("there is no interface {}: {error}", Printable(name));
        Self::new(ErrorKind::NotFound, Errno::ENODEV, reason)
            .with_remedy("`ip link` lists those of this network namespace")
    }
}

#[doc(hidden)]
impl From<devmem_linux::netdev::BindError> for Error {
    fn from(error: devmem_linux::netdev::BindError) -> Self {
        let kind = ErrorKind::of_cause(error.cause.kind, error.errno);
        let queue = error.queues.first();
        let queue = queue.and_then(|queue| u16::try_from(queue.0).ok());
        let remedy = error.cause.hint.clone();
        let refusal = Self::new(kind, error.errno, error.to_string()).with_remedy_if(remedy);
        let mut refusal = refusal.on(&error.interface);
        let facts = refusal.facts_mut();
        facts.queue = queue.map(RxQueueId);
        facts.kernel_message = error.kernel;
        refusal
    }
}

#[doc(hidden)]
impl From<ExportError> for Error {
    fn from(error: ExportError) -> Self {
        let kind = match error.cause.kind {
            // A missing permission of the exporter's device file, too.
            CauseKind::NotPermitted => ErrorKind::PermissionDenied,
            cause => ErrorKind::of_cause(cause, error.errno),
        };
        let remedy = error.cause.hint.clone();
        Self::new(kind, error.errno, error.to_string()).with_remedy_if(remedy)
    }
}

#[doc(hidden)]
impl From<TapError> for Error {
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
        Self::new(kind, number, error.to_string()).with_remedy_if(error.remedy())
    }
}

/// What to type when an interface cannot be set up.
const DOCTOR: &str = "`devmem-tcp doctor` lists what the interface supports and what is missing";

#[doc(hidden)]
impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        let (kind, errno) = plan_verdict(&error);
        let remedy = plan_remedy(&error);
        Self::new(kind, errno, error.to_string()).with_remedy(remedy)
    }
}

fn plan_remedy(error: &PlanError) -> String {
    let own = match error {
        PlanError::NotConfigured { commands, .. } if !commands.is_empty() => {
            Some(format!("the agent must set:\n{}", commands.join("\n")))
        }
        PlanError::State(state) => state.remedy(),
        _ => None,
    };
    own.unwrap_or_else(|| DOCTOR.to_owned())
}

fn step_remedy(error: &StepError) -> String {
    match error {
        StepError::State(state) => state.remedy().unwrap_or_else(|| DOCTOR.to_owned()),
        StepError::Flow(plan) => plan_remedy(plan),
        _ => DOCTOR.to_owned(),
    }
}

fn plan_verdict(error: &PlanError) -> (ErrorKind, Errno) {
    match error {
        PlanError::Unsupported { .. } => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
        PlanError::NotConfigured { .. } => (ErrorKind::NotSetUp, Errno::EINVAL),
        PlanError::Read(error) => {
            let errno = error.errno().unwrap_or(Errno::EIO);
            (ErrorKind::of_errno(errno), errno)
        }
        _ => (ErrorKind::InvalidInput, Errno::EINVAL),
    }
}

fn step_verdict(error: &StepError) -> (ErrorKind, Errno) {
    match error {
        StepError::Refused(refused) => {
            let errno = refused.errno().unwrap_or(Errno::EIO);
            (ErrorKind::of_errno(errno), errno)
        }
        StepError::State(StateError::Folder { error, .. } | StateError::File { error, .. }) => {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            (ErrorKind::of_io(error), errno)
        }
        StepError::State(StateError::Busy { .. } | StateError::Leftover { .. }) => {
            (ErrorKind::InUse, Errno::EBUSY)
        }
        StepError::Flow(error) => plan_verdict(error),
        StepError::Lease(refused) => (
            ErrorKind::of_cause(refused.cause.kind, refused.errno),
            refused.errno,
        ),
        StepError::NetkitExists { .. } => (ErrorKind::InUse, Errno::EEXIST),
        _ => (ErrorKind::Other, Errno::EIO),
    }
}

#[doc(hidden)]
impl From<ApplyError> for Error {
    fn from(error: ApplyError) -> Self {
        let (kind, errno) = step_verdict(&error.why);
        Self::new(kind, errno, error.to_string())
            .with_remedy(step_remedy(&error.why))
            .on(&error.interface)
    }
}

impl Error {
    /// A peer of an interface that is set up could not be steered.
    pub(crate) fn not_steered(interface: &str, peer: SocketAddr, error: &StepError) -> Self {
        let (kind, errno) = step_verdict(error);
        let reason = format!("steering what comes from {peer} on {interface}: {error}");
        let remedy =
            "`ethtool -n` lists the flow rules, of which a NIC has room for a limited number";
        Self::new(kind, errno, reason)
            .with_remedy(remedy)
            .on(interface)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use devmem_linux::nic_setup::StateFault;

    use super::*;

    #[test]
    fn a_faulty_state_file_is_the_reason_and_what_to_do_with_it_the_remedy() {
        let state = || StateError::NotOurs {
            path: PathBuf::from("/run/x.json"),
            fault: StateFault::Mode { mode: 0o666 },
        };
        let applying = |why: StepError| ApplyError {
            interface: "eth1".to_owned(),
            why: Box::new(why),
            restored: Default::default(),
        };
        for error in [
            Error::from(PlanError::State(state())),
            applying(state().into()).into(),
            applying(PlanError::State(state()).into()).into(),
        ] {
            let reason = error.reason();
            assert!(reason.contains("its mode is 0666"), "{reason}");
            assert_eq!(reason.lines().count(), 1, "{reason}");
            let remedy = error.remedy().unwrap().to_string();
            assert!(remedy.contains("chmod go-w /run/x.json"), "{remedy}");
            assert_eq!(error.to_string(), reason);
            assert!(format!("{error:?}").ends_with(&remedy), "{error:?}");
        }
        let busy = StateError::Busy {
            interface: "eth1".to_owned(),
            pid: None,
        };
        let remedy = Error::from(PlanError::State(busy)).remedy();
        assert_eq!(remedy, Some(DOCTOR.into()));
    }
}
