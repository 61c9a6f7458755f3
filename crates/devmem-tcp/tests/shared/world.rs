//! Two ends that can connect, on either backend, and what a scenario saw.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use devmem_linux::test_util::skip;
use devmem_tcp::{Dmabuf, Frag, Listener, Netdev, RxBatch, Stream};

pub use crate::common::{PATIENCE, pattern};

/// What an application observed, line by line. The same on both backends, or one of them is wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen(Vec<String>);

impl Seen {
    pub fn note(&mut self, what: &str, value: impl Display) {
        self.0.push(format!("{what}: {value}"));
    }

    /// Notes the errno, which both backends have in common, and looks that the error has words.
    pub fn refusal<T, E: Display>(
        &mut self,
        what: &str,
        result: Result<T, E>,
        errno: impl FnOnce(&E) -> devmem_tcp::Errno,
    ) {
        match result {
            Ok(_) => self.note(what, "no refusal"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                self.note(what, errno(&error));
            }
        }
    }
}

/// A sender and a receiver. On the kernel both are its loopback: what a machine without a special NIC has.
pub struct World {
    pub sender: Netdev,
    pub receiver: Netdev,
    /// The receiver's address.
    pub ip: &'static str,
}

impl World {
    fn user(ipv6: bool) -> Self {
        static WIRES: AtomicU32 = AtomicU32::new(0);
        let wire = format!("mem:shared-{}", WIRES.fetch_add(1, Ordering::Relaxed));
        let end = |number: u8| {
            let builder = Netdev::builder(&wire).unwrap();
            let builder = builder.address(&format!("10.77.0.{number}/24")).unwrap();
            let builder = builder.address(&format!("fd77::{number}/64")).unwrap();
            builder.open().unwrap()
        };
        Self {
            sender: end(1),
            receiver: end(2),
            ip: if ipv6 { "fd77::2" } else { "10.77.0.2" },
        }
    }

    fn kernel(ipv6: bool) -> Self {
        let lo = Netdev::kernel("lo").unwrap();
        Self {
            sender: lo.clone(),
            receiver: lo,
            ip: if ipv6 { "::1" } else { "127.0.0.1" },
        }
    }

    pub fn at(&self, port: u16) -> (&'static str, u16) {
        (self.ip, port)
    }

    /// Listens on a free port.
    pub fn listen(&self) -> Listener {
        let listener = self.receiver.listen(self.at(0)).unwrap();
        listener.set_timeout(Some(PATIENCE));
        listener
    }

    /// A connection: the sender's end and the receiver's.
    pub fn connection(&self) -> (Stream, Stream) {
        let listener = self.listen();
        let sender = self.sender.connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, peer) = listener.accept().unwrap();
        assert_eq!(peer, sender.local_addr().unwrap());
        assert_eq!(receiver.local_addr().unwrap(), sender.peer_addr().unwrap());
        sender.set_timeout(Some(PATIENCE));
        receiver.set_timeout(Some(PATIENCE));
        (sender, receiver)
    }
}

/// Runs a scenario on both backends and compares what it saw. `test` is the test's own name.
pub fn on_both(test: &str, scenario: fn(&World, &mut Seen)) {
    compare(test, scenario, false);
    // Some containers have no IPv6.
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        compare(test, scenario, true);
    } else {
        skip(test, "ipv6", "the loopback has no IPv6 address");
    }
}

fn compare(test: &str, scenario: fn(&World, &mut Seen), ipv6: bool) {
    let (mut user, mut kernel) = (Seen::default(), Seen::default());
    scenario(&World::user(ipv6), &mut user);
    scenario(&World::kernel(ipv6), &mut kernel);
    assert!(!user.0.is_empty(), "{test} observed nothing");
    assert_eq!(
        user, kernel,
        "left user space, right the kernel, IPv6 {ipv6}"
    );
}

/// Appends a batch's bytes, all of which are in host memory here.
pub fn collect(batch: &RxBatch, bytes: &mut Vec<u8>) {
    for frag in batch {
        match frag {
            Frag::Linear(linear) => bytes.extend_from_slice(linear),
            Frag::Device { .. } => panic!("nothing is bound"),
        }
    }
}

/// Receives `len` bytes, or to the end of the stream.
pub fn receive(stream: &mut Stream, len: usize) -> Vec<u8> {
    let mut batch = RxBatch::with_capacity(64);
    let mut bytes = Vec::new();
    while bytes.len() < len && stream.recv(&mut batch).unwrap() > 0 {
        collect(&batch, &mut bytes);
    }
    bytes
}

/// Memory of the smallest size that holds `bytes`.
pub fn room_for(bytes: usize) -> Dmabuf {
    Dmabuf::anonymous(bytes.next_multiple_of(4096)).unwrap()
}
