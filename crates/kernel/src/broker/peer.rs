//! What the kernel tells of the other end of a connection.

use std::os::fd::{AsFd, BorrowedFd};

use devmem_uapi::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::grant::Client;
use crate::sys::message::{Readable, get_option};

/// `struct ucred` (unix(7)). rustix has a function for it, whose result may not have the process id 0: that of a process outside of the
/// reader's process namespace.
#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Credentials {
    pid: u32,
    uid: u32,
    gid: u32,
}

/// Returns the client at the other end of a connection.
///
/// # Errors
///
/// That of getsockopt(2).
pub(super) fn client_of(connection: impl AsFd) -> Result<Client, Errno> {
    let Credentials { pid, uid, gid } = read(connection.as_fd(), Readable::PeerCredentials)?;
    Ok(Client { pid, uid, gid })
}

/// Returns a number for the network namespace of a socket, the same for all sockets of it. An accepted connection is in the namespace of
/// the socket that has connected (linux net/unix/af_unix.c `unix_stream_connect`).
///
/// # Errors
///
/// `ENOPROTOOPT` before Linux 5.14.
pub(super) fn namespace_of(socket: impl AsFd) -> Result<u64, Errno> {
    read(socket.as_fd(), Readable::NetnsCookie)
}

fn read<T: Default + FromBytes + IntoBytes>(
    socket: BorrowedFd<'_>,
    option: Readable,
) -> Result<T, Errno> {
    let mut value = T::default();
    match get_option(socket, option, value.as_mut_bytes())? {
        bytes if bytes == size_of::<T>() => Ok(value),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use super::*;
    use crate::netlink::NetlinkSocket;
    use crate::test_util::in_netns;

    #[test]
    fn a_client_in_this_process_has_its_ids_and_its_namespace() {
        let (one, _other) = UnixStream::pair().unwrap();
        let client = client_of(&one).unwrap();
        assert_eq!(client.pid, std::process::id());
        assert_eq!(client.uid, rustix::process::geteuid().as_raw());
        assert_eq!(client.gid, rustix::process::getegid().as_raw());
        let here = namespace_of(NetlinkSocket::generic().unwrap()).unwrap();
        assert_eq!(namespace_of(&one).unwrap(), here);
    }

    #[test]
    fn an_accepted_connection_is_in_the_namespace_of_the_client() {
        const TEST: &str =
            "broker::peer::tests::an_accepted_connection_is_in_the_namespace_of_the_client";
        in_netns(TEST, || {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let here = namespace_of(NetlinkSocket::generic().unwrap()).unwrap();
            let elsewhere = thread::spawn(move || {
                // Of this thread alone.
                crate::sys::namespace::unshare_network().unwrap();
                let client = UnixStream::connect(path).unwrap();
                (
                    client,
                    namespace_of(NetlinkSocket::generic().unwrap()).unwrap(),
                )
            });
            let (_client, there) = elsewhere.join().unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_ne!(here, there);
            assert_eq!(namespace_of(&accepted).unwrap(), there);
            assert_eq!(namespace_of(&listener).unwrap(), here);
        });
    }
}
