//! The kinds of errors, for programs that decide by them.

use std::io;

use devmem_linux::errors::CauseKind;
use devmem_uapi::Errno;

/// Kind of an error, for programs: whether to try again, to give up, or to use another backend.
///
/// [`io::ErrorKind`] has no value for some of them; `From<ErrorKind> for io::ErrorKind` returns the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call would have to wait, and the handle is non-blocking.
    WouldBlock,
    /// The timeout expired, or the peer did not answer.
    TimedOut,
    /// The NIC, or the library of the GPU, belongs to the process that this one was forked from.
    Forked,
    /// An argument is invalid: a text, a range, a queue, a size.
    InvalidInput,
    /// There is no such interface or device.
    NotFound,
    /// This user lacks the permission.
    PermissionDenied,
    /// This kernel, driver or machine does not support the operation.
    Unsupported,
    /// The NIC is not set up for device memory: header split is off, or it does not split all packets.
    NotSetUp,
    /// The memory, the queue or the link is in use.
    InUse,
    /// The address is in use by another socket.
    AddrInUse,
    /// The address is not one of this host or NIC.
    AddrNotAvailable,
    /// Memory, file descriptors or another limited resource ran out.
    OutOfResources,
    /// The peer refused the connection.
    ConnectionRefused,
    /// The peer reset the connection.
    ConnectionReset,
    /// This side aborted the connection.
    ConnectionAborted,
    /// The connection is shut down for sending.
    BrokenPipe,
    /// The socket is not connected.
    NotConnected,
    /// There is no route to the peer, or the peer's host does not answer.
    HostUnreachable,
    /// There is no route to the peer's network.
    NetworkUnreachable,
    /// Bytes are in host memory, and the stream accepts device memory only.
    Misplaced,
    /// The stream ended before all bytes came that a call waits for.
    UnexpectedEof,
    /// Received bytes are lost.
    DataLost,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// Returns whether the call can succeed later without a change: it would block, or timed out.
    pub const fn is_not_ready(self) -> bool {
        matches!(self, Self::WouldBlock | Self::TimedOut)
    }

    /// Returns whether the cause is this machine or the privileges of this user, not the request. The tool exits with 3.
    pub const fn is_unsupported_here(self) -> bool {
        matches!(self, Self::Unsupported | Self::PermissionDenied)
    }

    /// Returns the kind that an errno stands for.
    pub(crate) fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::WouldBlock,
            Errno::ETIMEDOUT => Self::TimedOut,
            Errno::EOWNERDEAD => Self::Forked,
            Errno::EINVAL | Errno::EFAULT | Errno::EMSGSIZE | Errno::ERANGE => Self::InvalidInput,
            Errno::ENODEV | Errno::ENOENT | Errno::ENXIO => Self::NotFound,
            Errno::EPERM | Errno::EACCES => Self::PermissionDenied,
            Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOPROTOOPT | Errno::EAFNOSUPPORT => {
                Self::Unsupported
            }
            Errno::EBUSY | Errno::EEXIST => Self::InUse,
            Errno::EADDRINUSE => Self::AddrInUse,
            Errno::EADDRNOTAVAIL => Self::AddrNotAvailable,
            Errno::ENOMEM | Errno::ENOBUFS | Errno::ENFILE | Errno::EMFILE | Errno::ENOSPC => {
                Self::OutOfResources
            }
            Errno::ECONNREFUSED => Self::ConnectionRefused,
            Errno::ECONNRESET => Self::ConnectionReset,
            Errno::ECONNABORTED => Self::ConnectionAborted,
            Errno::EPIPE => Self::BrokenPipe,
            Errno::ENOTCONN => Self::NotConnected,
            Errno::EHOSTUNREACH | Errno::EHOSTDOWN => Self::HostUnreachable,
            Errno::ENETUNREACH | Errno::ENETDOWN => Self::NetworkUnreachable,
            Errno::ENODATA => Self::UnexpectedEof,
            Errno::EPROTO => Self::DataLost,
            _ => Self::Other,
        }
    }

    /// Returns the errno that stands for the kind of an I/O error without one.
    pub(super) fn errno(self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::InvalidInput => Errno::EINVAL,
            Self::NotFound => Errno::ENOENT,
            Self::PermissionDenied => Errno::EPERM,
            Self::OutOfResources => Errno::ENOMEM,
            Self::Unsupported => Errno::EOPNOTSUPP,
            Self::NotConnected => Errno::ENOTCONN,
            Self::UnexpectedEof => Errno::ENODATA,
            Self::AddrInUse => Errno::EADDRINUSE,
            Self::AddrNotAvailable => Errno::EADDRNOTAVAIL,
            Self::ConnectionRefused => Errno::ECONNREFUSED,
            Self::ConnectionReset => Errno::ECONNRESET,
            Self::ConnectionAborted => Errno::ECONNABORTED,
            Self::BrokenPipe => Errno::EPIPE,
            Self::HostUnreachable => Errno::EHOSTUNREACH,
            Self::NetworkUnreachable => Errno::ENETUNREACH,
            _ => Errno::EIO,
        }
    }

    /// Returns the kind of an I/O error.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::of_errno(Errno(errno)),
            None => match error.kind() {
                io::ErrorKind::InvalidInput => Self::InvalidInput,
                io::ErrorKind::NotFound => Self::NotFound,
                io::ErrorKind::PermissionDenied => Self::PermissionDenied,
                io::ErrorKind::TimedOut => Self::TimedOut,
                io::ErrorKind::WouldBlock => Self::WouldBlock,
                io::ErrorKind::NotConnected => Self::NotConnected,
                io::ErrorKind::OutOfMemory => Self::OutOfResources,
                io::ErrorKind::Unsupported => Self::Unsupported,
                io::ErrorKind::UnexpectedEof => Self::UnexpectedEof,
                io::ErrorKind::AddrInUse => Self::AddrInUse,
                io::ErrorKind::AddrNotAvailable => Self::AddrNotAvailable,
                io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
                io::ErrorKind::ConnectionReset => Self::ConnectionReset,
                io::ErrorKind::ConnectionAborted => Self::ConnectionAborted,
                io::ErrorKind::BrokenPipe => Self::BrokenPipe,
                io::ErrorKind::HostUnreachable => Self::HostUnreachable,
                io::ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
                _ => Self::Other,
            },
        }
    }

    /// Returns the kind of a refusal of the kernel with this cause and errno.
    pub(crate) fn of_cause(cause: CauseKind, errno: Errno) -> Self {
        match cause {
            CauseKind::NotPermitted => Self::PermissionDenied,
            CauseKind::KernelTooOld | CauseKind::DriverCannot | CauseKind::NoExporter => {
                Self::Unsupported
            }
            CauseKind::NoDevice => Self::NotFound,
            CauseKind::QueuesOfDifferentDevices
            | CauseKind::BadQueue
            | CauseKind::DmabufGeometry
            | CauseKind::NotADmabuf
            | CauseKind::BeyondDmabuf
            | CauseKind::TooManyPieces
            | CauseKind::RouteElsewhere
            | CauseKind::NotTcp => Self::InvalidInput,
            CauseKind::SplitOff
            | CauseKind::HdsThreshold
            | CauseKind::XdpAttached
            | CauseKind::QueueFixed => Self::NotSetUp,
            CauseKind::QueueTaken => Self::InUse,
            CauseKind::ExporterLimit | CauseKind::NoResources | CauseKind::TooManyCompletions => {
                Self::OutOfResources
            }
            _ => Self::of_errno(errno),
        }
    }
}

impl From<ErrorKind> for io::ErrorKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::WouldBlock => Self::WouldBlock,
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::InvalidInput => Self::InvalidInput,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::PermissionDenied => Self::PermissionDenied,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::InUse => Self::ResourceBusy,
            ErrorKind::AddrInUse => Self::AddrInUse,
            ErrorKind::AddrNotAvailable => Self::AddrNotAvailable,
            ErrorKind::OutOfResources => Self::OutOfMemory,
            ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            ErrorKind::ConnectionReset => Self::ConnectionReset,
            ErrorKind::ConnectionAborted => Self::ConnectionAborted,
            ErrorKind::BrokenPipe => Self::BrokenPipe,
            ErrorKind::NotConnected => Self::NotConnected,
            ErrorKind::HostUnreachable => Self::HostUnreachable,
            ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
            ErrorKind::UnexpectedEof => Self::UnexpectedEof,
            ErrorKind::DataLost => Self::InvalidData,
            ErrorKind::Forked | ErrorKind::NotSetUp | ErrorKind::Misplaced | ErrorKind::Other => {
                Self::Other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ErrorKind as Kind;
    use io::ErrorKind as Io;

    const KINDS: &[(&[Errno], Kind, Io)] = &[
        (&[Errno::EAGAIN], Kind::WouldBlock, Io::WouldBlock),
        (&[Errno::ETIMEDOUT], Kind::TimedOut, Io::TimedOut),
        (&[Errno::EOWNERDEAD], Kind::Forked, Io::Other),
        (
            &[Errno::EINVAL, Errno::EFAULT, Errno::EMSGSIZE, Errno::ERANGE],
            Kind::InvalidInput,
            Io::InvalidInput,
        ),
        (
            &[Errno::ENODEV, Errno::ENOENT, Errno::ENXIO],
            Kind::NotFound,
            Io::NotFound,
        ),
        (
            &[Errno::EPERM, Errno::EACCES],
            Kind::PermissionDenied,
            Io::PermissionDenied,
        ),
        (
            &[Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::ENOPROTOOPT],
            Kind::Unsupported,
            Io::Unsupported,
        ),
        (&[Errno::EAFNOSUPPORT], Kind::Unsupported, Io::Unsupported),
        (
            &[Errno::EBUSY, Errno::EEXIST],
            Kind::InUse,
            Io::ResourceBusy,
        ),
        (&[Errno::EADDRINUSE], Kind::AddrInUse, Io::AddrInUse),
        (
            &[Errno::EADDRNOTAVAIL],
            Kind::AddrNotAvailable,
            Io::AddrNotAvailable,
        ),
        (
            &[Errno::ENOMEM, Errno::ENOBUFS, Errno::ENFILE],
            Kind::OutOfResources,
            Io::OutOfMemory,
        ),
        (
            &[Errno::EMFILE, Errno::ENOSPC],
            Kind::OutOfResources,
            Io::OutOfMemory,
        ),
        (
            &[Errno::ECONNREFUSED],
            Kind::ConnectionRefused,
            Io::ConnectionRefused,
        ),
        (
            &[Errno::ECONNRESET],
            Kind::ConnectionReset,
            Io::ConnectionReset,
        ),
        (
            &[Errno::ECONNABORTED],
            Kind::ConnectionAborted,
            Io::ConnectionAborted,
        ),
        (&[Errno::EPIPE], Kind::BrokenPipe, Io::BrokenPipe),
        (&[Errno::ENOTCONN], Kind::NotConnected, Io::NotConnected),
        (
            &[Errno::EHOSTUNREACH, Errno::EHOSTDOWN],
            Kind::HostUnreachable,
            Io::HostUnreachable,
        ),
        (
            &[Errno::ENETUNREACH, Errno::ENETDOWN],
            Kind::NetworkUnreachable,
            Io::NetworkUnreachable,
        ),
        (&[Errno::ENODATA], Kind::UnexpectedEof, Io::UnexpectedEof),
        (&[Errno::EPROTO], Kind::DataLost, Io::InvalidData),
        (&[Errno::EIO, Errno(9999)], Kind::Other, Io::Other),
    ];

    #[test]
    fn each_errno_has_a_kind_and_each_kind_the_nearest_of_the_standard_library() {
        for &(errnos, kind, std) in KINDS {
            for &errno in errnos {
                assert_eq!(ErrorKind::of_errno(errno), kind, "{errno}");
                assert_eq!(Io::from(kind), std, "{kind:?}");
                let error = io::Error::from_raw_os_error(errno.0);
                assert_eq!(ErrorKind::of_io(&error), kind, "{errno}");
            }
        }
        for kind in [Kind::NotSetUp, Kind::Misplaced] {
            assert_eq!(Io::from(kind), Io::Other);
        }
    }

    #[test]
    fn an_error_of_std_without_an_errno_has_one_of_its_kind() {
        for (std, kind, errno) in [
            (Io::WouldBlock, ErrorKind::WouldBlock, Errno::EAGAIN),
            (Io::TimedOut, ErrorKind::TimedOut, Errno::ETIMEDOUT),
            (Io::InvalidInput, ErrorKind::InvalidInput, Errno::EINVAL),
            (Io::NotFound, ErrorKind::NotFound, Errno::ENOENT),
            (
                Io::PermissionDenied,
                ErrorKind::PermissionDenied,
                Errno::EPERM,
            ),
            (Io::OutOfMemory, ErrorKind::OutOfResources, Errno::ENOMEM),
            (Io::Unsupported, ErrorKind::Unsupported, Errno::EOPNOTSUPP),
            (Io::NotConnected, ErrorKind::NotConnected, Errno::ENOTCONN),
            (Io::UnexpectedEof, ErrorKind::UnexpectedEof, Errno::ENODATA),
            (Io::AddrInUse, ErrorKind::AddrInUse, Errno::EADDRINUSE),
            (
                Io::AddrNotAvailable,
                ErrorKind::AddrNotAvailable,
                Errno::EADDRNOTAVAIL,
            ),
            (
                Io::ConnectionRefused,
                ErrorKind::ConnectionRefused,
                Errno::ECONNREFUSED,
            ),
            (
                Io::ConnectionReset,
                ErrorKind::ConnectionReset,
                Errno::ECONNRESET,
            ),
            (
                Io::ConnectionAborted,
                ErrorKind::ConnectionAborted,
                Errno::ECONNABORTED,
            ),
            (Io::BrokenPipe, ErrorKind::BrokenPipe, Errno::EPIPE),
            (
                Io::HostUnreachable,
                ErrorKind::HostUnreachable,
                Errno::EHOSTUNREACH,
            ),
            (
                Io::NetworkUnreachable,
                ErrorKind::NetworkUnreachable,
                Errno::ENETUNREACH,
            ),
            (Io::InvalidData, ErrorKind::Other, Errno::EIO),
        ] {
            let found = ErrorKind::of_io(&io::Error::from(std));
            assert_eq!((found, found.errno()), (kind, errno), "{std:?}");
        }
    }
}
