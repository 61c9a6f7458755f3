//! Error numbers (linux include/uapi/asm-generic/errno-base.h, errno.h).

use std::{error, fmt, io};

/// An error number of a system call, or of the same call to the user-space stack. Any number that a
/// kernel returns is a valid value, with or without a name here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(
                #[doc = concat!("\"", $text, "\".")]
                pub const $name: Self = Self($number);
            )*

            /// Every error number that has a name here, in order.
            pub const NAMED: &'static [Self] = &[$(Self::$name),*];

            /// Returns the name ("EINVAL"), `None` for a number without one here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Returns what the number means, in a few words.
            pub const fn describe(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown error",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "the operation would block";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "already exists";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files in the process";
    ENOTTY = 25, "the device does not support this ioctl";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "the file is not seekable";
    EPIPE = 32, "the connection is shut down for sending";
    ERANGE = 34, "out of range";
    ENOSYS = 38, "system call not implemented";
    ELOOP = 40, "too many levels of links, or a cycle";
    ENOMSG = 42, "no message of this kind";
    ENODATA = 61, "no data available";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    ENOTSOCK = 88, "not a socket";
    EDESTADDRREQ = 89, "destination address required";
    EMSGSIZE = 90, "message too long";
    ENOPROTOOPT = 92, "no such socket option";
    EPROTONOSUPPORT = 93, "protocol not supported";
    EOPNOTSUPP = 95, "operation not supported";
    EAFNOSUPPORT = 97, "address family not supported";
    EADDRINUSE = 98, "address already in use";
    EADDRNOTAVAIL = 99, "address not available";
    ENETDOWN = 100, "network is down";
    ENETUNREACH = 101, "network unreachable";
    ECONNABORTED = 103, "connection aborted by this host";
    ECONNRESET = 104, "connection reset by the peer";
    ENOBUFS = 105, "no buffer space";
    EISCONN = 106, "already connected";
    ENOTCONN = 107, "not connected";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTDOWN = 112, "host is down";
    EHOSTUNREACH = 113, "no route to the host";
    EALREADY = 114, "already in progress";
    EINPROGRESS = 115, "in progress";
    EOWNERDEAD = 130, "the owner no longer exists";
}

impl Errno {
    /// Another name of [`Errno::EAGAIN`].
    pub const EWOULDBLOCK: Self = Self::EAGAIN;
}

/// Writes the name, or `errno 123` for a number without one.
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_order() {
        assert!(Errno::NAMED.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn display_gives_the_name_or_the_number() {
        assert_eq!(Errno::EINVAL.to_string(), "EINVAL");
        assert_eq!(Errno::EINVAL.describe(), "invalid argument");
        assert_eq!(Errno(4095).to_string(), "errno 4095");
        assert_eq!(format!("{:>7}|", Errno::EPIPE), "  EPIPE|");
    }

    #[test]
    fn an_io_error_keeps_the_number() {
        assert_eq!(io::Error::from(Errno::EFAULT).raw_os_error(), Some(14));
        assert_eq!(
            io::Error::from(Errno::EAGAIN).kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn numbers_are_those_of_the_c_library() {
        let ours_and_libcs = [
            (Errno::EPERM, libc::EPERM),
            (Errno::ENOENT, libc::ENOENT),
            (Errno::EINTR, libc::EINTR),
            (Errno::EIO, libc::EIO),
            (Errno::ENXIO, libc::ENXIO),
            (Errno::EBADF, libc::EBADF),
            (Errno::EAGAIN, libc::EAGAIN),
            (Errno::ENOMEM, libc::ENOMEM),
            (Errno::EACCES, libc::EACCES),
            (Errno::EFAULT, libc::EFAULT),
            (Errno::EBUSY, libc::EBUSY),
            (Errno::EEXIST, libc::EEXIST),
            (Errno::ENODEV, libc::ENODEV),
            (Errno::EINVAL, libc::EINVAL),
            (Errno::ENFILE, libc::ENFILE),
            (Errno::EMFILE, libc::EMFILE),
            (Errno::ENOTTY, libc::ENOTTY),
            (Errno::ENOSPC, libc::ENOSPC),
            (Errno::ESPIPE, libc::ESPIPE),
            (Errno::EPIPE, libc::EPIPE),
            (Errno::ERANGE, libc::ERANGE),
            (Errno::ENOSYS, libc::ENOSYS),
            (Errno::ENOMSG, libc::ENOMSG),
            (Errno::EPROTO, libc::EPROTO),
            (Errno::EOVERFLOW, libc::EOVERFLOW),
            (Errno::ENOTSOCK, libc::ENOTSOCK),
            (Errno::EDESTADDRREQ, libc::EDESTADDRREQ),
            (Errno::EMSGSIZE, libc::EMSGSIZE),
            (Errno::ENOPROTOOPT, libc::ENOPROTOOPT),
            (Errno::EPROTONOSUPPORT, libc::EPROTONOSUPPORT),
            (Errno::EOPNOTSUPP, libc::EOPNOTSUPP),
            (Errno::EAFNOSUPPORT, libc::EAFNOSUPPORT),
            (Errno::EADDRINUSE, libc::EADDRINUSE),
            (Errno::EADDRNOTAVAIL, libc::EADDRNOTAVAIL),
            (Errno::ENETDOWN, libc::ENETDOWN),
            (Errno::ENETUNREACH, libc::ENETUNREACH),
            (Errno::ECONNABORTED, libc::ECONNABORTED),
            (Errno::ECONNRESET, libc::ECONNRESET),
            (Errno::ENOBUFS, libc::ENOBUFS),
            (Errno::EISCONN, libc::EISCONN),
            (Errno::ENOTCONN, libc::ENOTCONN),
            (Errno::ETIMEDOUT, libc::ETIMEDOUT),
            (Errno::ECONNREFUSED, libc::ECONNREFUSED),
            (Errno::EHOSTDOWN, libc::EHOSTDOWN),
            (Errno::EHOSTUNREACH, libc::EHOSTUNREACH),
            (Errno::EALREADY, libc::EALREADY),
            (Errno::EINPROGRESS, libc::EINPROGRESS),
            (Errno::ELOOP, libc::ELOOP),
            (Errno::EOWNERDEAD, libc::EOWNERDEAD),
            (Errno::ENODATA, libc::ENODATA),
        ];
        assert_eq!(ours_and_libcs.len(), Errno::NAMED.len());
        for (ours, libcs) in ours_and_libcs {
            assert_eq!(ours.0, libcs, "{ours}");
        }
    }
}
