//! The kernel's side: sockets that listen, and verify what comes.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use devmem_tcp::{Netdev, NetdevBuilder, Stream};

use crate::sender::{Nic, TAP, first_wrong};

/// Far longer than anything here takes: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The kernel's address, ours, and the length of their prefix.
pub type Addresses = (&'static str, &'static str, u8);

pub const V4: Addresses = ("10.77.0.1", "10.77.0.2", 24);
pub const V6: Addresses = ("fd77::1", "fd77::2", 64);

/// A kernel socket that listens at the other end of the TAP.
pub struct Host {
    listener: TcpListener,
    address: IpAddr,
}

impl Host {
    /// Makes a NIC of ours on a TAP, and a socket at its other end.
    pub fn with_nic(
        (host, ours, len): Addresses,
        change: impl FnOnce(NetdevBuilder) -> NetdevBuilder,
    ) -> (Self, Nic) {
        let builder = Netdev::builder(format!("tap:{TAP}"))
            .and_then(|builder| builder.address(&format!("{ours}/{len}")))
            .and_then(|builder| builder.peer_address(&format!("{host}/{len}")));
        let netdev = change(builder.expect("a link and its addresses"));
        let netdev = netdev.open().expect("this is our namespace");
        (Self::listening((host, ours, len)), Nic::new(netdev))
    }

    /// Makes a socket at the kernel's end of a link that exists.
    pub fn listening((host, ..): Addresses) -> Self {
        let address: IpAddr = host.parse().expect("an address");
        let any = if address.is_ipv4() { "0.0.0.0" } else { "::" };
        let listener = TcpListener::bind((any, 0)).expect("a free port");
        Self { listener, address }
    }

    /// A connection from our NIC.
    pub fn connect(&self, nic: &Nic) -> Stream {
        let port = self.listener.local_addr().expect("it is bound").port();
        let to = SocketAddr::new(self.address, port);
        let stream = nic.netdev.connect(to).expect("it listens");
        stream.set_timeout(Some(PATIENCE));
        stream
    }

    /// The kernel's end of the next connection.
    pub fn accept(&self) -> TcpStream {
        accept(&self.listener)
    }

    /// Takes the next connection and verifies all that comes over it; returns how much that was.
    pub fn receive(&self) -> JoinHandle<usize> {
        let listener = self.listener.try_clone().expect("a second handle");
        std::thread::spawn(move || check_all(accept(&listener)))
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("a connection");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a time above zero");
    stream
}

/// Reads to the end; every byte must be the one of its position.
pub fn check_all(mut stream: TcpStream) -> usize {
    let mut buffer = vec![0; 256 << 10];
    let mut position = 0;
    loop {
        let read = stream.read(&mut buffer).expect("the sender sends");
        if read == 0 {
            return position;
        }
        let wrong = first_wrong(&buffer[..read], position);
        assert_eq!(wrong, None, "the first wrong byte");
        position += read;
    }
}
