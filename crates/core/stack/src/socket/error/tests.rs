//! Each error has the errno that Linux returns for the same refusal.

use super::*;
use crate::socket::table::SocketTable;

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn place() -> SocketAddr {
    SocketAddr::new(ADDRESS, 80)
}

fn id() -> SocketId {
    SocketTable::new(1).insert(())
}

#[test]
fn each_refusal_of_a_receive_has_the_kernels_errno_and_a_remedy() {
    let id = id();
    for (error, errno, remedy) in [
        (RecvError::BadSocket(BadSocket(id)), Errno::EBADF, "closed"),
        (RecvError::WouldBlock, Errno::EAGAIN, "try again"),
        (
            RecvError::NotConnected { id },
            Errno::ENOTCONN,
            "connect it",
        ),
        (
            RecvError::Connection(TcpError::Reset),
            Errno::ECONNRESET,
            "reset by peer",
        ),
        (
            RecvError::Unreadable { bytes: 7 },
            Errno::EFAULT,
            "MSG_SOCK_DEVMEM",
        ),
        (
            RecvError::NoBuffer { bytes: 7 },
            Errno::EFAULT,
            "give a buffer",
        ),
        (
            RecvError::NoControlSpace { need: 40 },
            ETOOSMALL,
            "message of 40 bytes",
        ),
        (
            RecvError::TooManyTokens,
            Errno::ENOMEM,
            "SO_DEVMEM_DONTNEED",
        ),
        (RecvError::ErrorQueueEmpty, Errno::EAGAIN, "MSG_ZEROCOPY"),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
        let told = format!("{error}\n{}", error.remedy().unwrap_or_default());
        assert!(told.contains(remedy), "{told}");
    }
}

#[test]
fn each_refusal_of_a_send_has_the_kernels_errno_and_a_remedy() {
    let (id, dmabuf) = (id(), DmabufId(3));
    for (error, errno, remedy) in [
        (SendError::BadSocket(BadSocket(id)), Errno::EBADF, "closed"),
        (SendError::WouldBlock, Errno::EAGAIN, "writable"),
        (SendError::NotConnected { id }, Errno::EPIPE, "connect it"),
        (
            SendError::Connection(TcpError::TimedOut),
            Errno::ETIMEDOUT,
            "timed out",
        ),
        (
            SendError::Shutdown { id },
            Errno::EPIPE,
            "shut down for sending",
        ),
        (SendError::BadControl, Errno::EINVAL, "plain u32"),
        (
            SendError::ZerocopyNeeded,
            Errno::EINVAL,
            "MSG_ZEROCOPY and SO_ZEROCOPY",
        ),
        (SendError::UnknownBinding { dmabuf }, Errno::EINVAL, "id 3"),
        (SendError::NoMemory, Errno::EAGAIN, "try again"),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
        let told = format!("{error}\n{}", error.remedy().unwrap_or_default());
        assert!(told.contains(remedy), "{told}");
    }
}

#[test]
fn each_refusal_of_a_send_from_device_memory_has_the_kernels_errno_and_a_remedy() {
    let dmabuf = DmabufId(3);
    for (error, errno, remedy) in [
        (SendError::ZerocopyOff, Errno::EINVAL, "SO_ZEROCOPY"),
        (
            SendError::ReceiveBinding { dmabuf },
            Errno::EINVAL,
            "bind-tx",
        ),
        (
            SendError::NoRoute(RouteError::NoRoute(ADDRESS)),
            Errno::EHOSTUNREACH,
            "192.0.2.1",
        ),
        (
            SendError::OutOfBounds {
                dmabuf,
                offset: 7,
                end: 9,
                size: 8,
            },
            Errno::EFAULT,
            "bytes 7 to 9",
        ),
        (SendError::NotOffsets, Errno::EFAULT, "offsets"),
        (
            SendError::NoDmabufNamed,
            Errno::EFAULT,
            "no control message",
        ),
        (
            SendError::TooManyRanges { given: 1025 },
            Errno::EMSGSIZE,
            "1025",
        ),
        (SendError::TooManySends, Errno::ENOBUFS, "error queue"),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
        let told = format!("{error}\n{}", error.remedy().unwrap_or_default());
        assert!(told.contains(remedy), "{told}");
    }
}

#[test]
fn each_refusal_of_an_open_has_the_kernels_errno() {
    for (error, errno) in [
        (ListenError::AddrInUse(place()), Errno::EADDRINUSE),
        (ListenError::AddrNotAvailable(ADDRESS), Errno::EADDRNOTAVAIL),
        (ListenError::PortNotOurs(80), Errno::EADDRNOTAVAIL),
        (ListenError::NoFreePort, Errno::EADDRINUSE),
        (ListenError::TooManySockets { limit: 1 }, Errno::ENFILE),
        (ListenError::LinkGone, Errno::ENETDOWN),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
    }
    for (error, errno) in [
        (RouteError::NoRoute(ADDRESS).into(), Errno::ENETUNREACH),
        (RouteError::NotUnicast(ADDRESS).into(), Errno::ENETUNREACH),
        (ConnectError::PortZero(place()), Errno::ECONNREFUSED),
        (
            ConnectError::AddrNotAvailable(ADDRESS),
            Errno::EADDRNOTAVAIL,
        ),
        (ConnectError::PortNotOurs(80), Errno::EADDRNOTAVAIL),
        (ConnectError::OtherShard(80), Errno::EADDRNOTAVAIL),
        (ConnectError::PortsExhausted(place()), Errno::EADDRNOTAVAIL),
        (ConnectError::TooManySockets { limit: 1 }, Errno::ENFILE),
        (ConnectError::LinkGone, Errno::ENETDOWN),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
    }
    let id = id();
    for (error, errno) in [
        (AcceptError::BadSocket(BadSocket(id)), Errno::EBADF),
        (AcceptError::WouldBlock, Errno::EAGAIN),
        (AcceptError::NotListening { id }, Errno::EINVAL),
        (AcceptError::LinkGone, Errno::ENETDOWN),
        (AcceptError::AddressTaken, Errno::EADDRNOTAVAIL),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
    }
}

#[test]
fn each_refusal_of_another_call_has_the_kernels_errno() {
    let bad = BadSocket(id());
    for (errno, expected) in [
        (DontneedError::from(bad).errno(), Errno::EBADF),
        (
            DontneedError::TooManyRanges { given: 129 }.errno(),
            Errno::EINVAL,
        ),
        (DontneedError::OddLength { len: 7 }.errno(), Errno::EINVAL),
        (ShutdownError::from(bad).errno(), Errno::EBADF),
        (
            ShutdownError::NotConnected {
                id: bad.0,
                state: None,
            }
            .errno(),
            Errno::ENOTCONN,
        ),
        (OptionError::from(bad).errno(), Errno::EBADF),
        (
            OptionError::BadValue {
                option: "TCP_MAXSEG",
                reason: "too small",
            }
            .errno(),
            Errno::EINVAL,
        ),
        (UnknownBinding(DmabufId(3)).errno(), Errno::EINVAL),
    ] {
        assert_eq!(errno, expected);
    }
}

#[test]
fn each_end_of_a_connection_has_the_kernels_errno() {
    let silent = TcpError::NextHopSilent {
        ip: ADDRESS,
        is_router: false,
    };
    let failed = TcpError::DeviceFailed {
        call: "cuMemcpy",
        name: "CUDA_ERROR_UNKNOWN",
        code: 999,
    };
    for (error, errno) in [
        (TcpError::Refused, Errno::ECONNREFUSED),
        (TcpError::Reset, Errno::ECONNRESET),
        (TcpError::BrokenPipe, Errno::EPIPE),
        (TcpError::TimedOut, Errno::ETIMEDOUT),
        (TcpError::HostUnreachable, Errno::EHOSTUNREACH),
        (silent, Errno::EHOSTUNREACH),
        (TcpError::NetUnreachable, Errno::ENETUNREACH),
        (TcpError::ProtocolUnreachable, Errno::ENOPROTOOPT),
        (TcpError::LinkGone, Errno::ENETDOWN),
        (TcpError::AddressTaken, Errno::EADDRNOTAVAIL),
        (TcpError::Aborted, Errno::ECONNABORTED),
        (failed, Errno::EIO),
    ] {
        assert_eq!(connection_errno(error), errno, "{error}");
        assert_eq!(RecvError::Connection(error).errno(), errno, "{error}");
        assert_eq!(SendError::Connection(error).errno(), errno, "{error}");
    }
}
