//! Compares the constants of `devmem-uapi` with those of the C library of the target; the build fails if they differ.
//! (`devmem-uapi` refuses architectures that are known to differ, with a message.)

use devmem_uapi::{Errno, MsgFlags, sockopt};

macro_rules! same {
    ($($ours:expr, $theirs:ident;)*) => {
        $(const _: () = assert!($ours as i64 == libc::$theirs as i64);)*
    };
}

same! {
    sockopt::SOL_SOCKET, SOL_SOCKET;
    sockopt::SOL_IP, SOL_IP;
    sockopt::SOL_IPV6, SOL_IPV6;
    sockopt::SO_BINDTODEVICE, SO_BINDTODEVICE;
    sockopt::SO_INCOMING_NAPI_ID, SO_INCOMING_NAPI_ID;
    sockopt::SO_ZEROCOPY, SO_ZEROCOPY;
    sockopt::SO_DEVMEM_LINEAR, SO_DEVMEM_LINEAR;
    sockopt::SO_DEVMEM_DMABUF, SO_DEVMEM_DMABUF;
    sockopt::SO_DEVMEM_DONTNEED, SO_DEVMEM_DONTNEED;
    sockopt::SCM_DEVMEM_LINEAR, SCM_DEVMEM_LINEAR;
    sockopt::SCM_DEVMEM_DMABUF, SCM_DEVMEM_DMABUF;
    sockopt::IP_RECVERR, IP_RECVERR;
    sockopt::IPV6_RECVERR, IPV6_RECVERR;
    MsgFlags::PEEK.bits(), MSG_PEEK;
    MsgFlags::CTRUNC.bits(), MSG_CTRUNC;
    MsgFlags::DONTWAIT.bits(), MSG_DONTWAIT;
    MsgFlags::EOR.bits(), MSG_EOR;
    MsgFlags::ERRQUEUE.bits(), MSG_ERRQUEUE;
    MsgFlags::NOSIGNAL.bits(), MSG_NOSIGNAL;
    MsgFlags::ZEROCOPY.bits(), MSG_ZEROCOPY;
    Errno::EAGAIN.0, EAGAIN;
    Errno::EFAULT.0, EFAULT;
    Errno::ENOBUFS.0, ENOBUFS;
    Errno::EOPNOTSUPP.0, EOPNOTSUPP;
    Errno::ECONNRESET.0, ECONNRESET;
    Errno::EHOSTUNREACH.0, EHOSTUNREACH;
}
