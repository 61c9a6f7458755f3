//! Receiving bytes in their place, by the kernel's copy.

use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::time::Duration;

use devmem_tcp::{Dmabuf, ErrorKind, Netdev, RecvError, RxBatch, Stream};

use crate::pretended;

/// Longer than a loopback needs, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A sender and a receiver.
pub fn connection(lo: &Netdev) -> (Stream, Stream) {
    let listener = lo.listen("127.0.0.1:0").unwrap();
    let sender = lo.connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    for stream in [&sender, &receiver] {
        stream.set_timeout(Some(PATIENCE));
    }
    (sender, receiver)
}

/// Sends bytes, and waits until all are queued behind those that are.
pub fn queue(sender: &mut Stream, receiver: &mut Stream, bytes: &[u8], before: usize) {
    sender.write_all(bytes).unwrap();
    let mut seen = vec![0; before + bytes.len()];
    while receiver.peek(&mut seen).unwrap() < seen.len() {}
}

#[test]
fn bytes_are_received_in_their_place_up_to_the_end_of_the_range() {
    let lo = Netdev::kernel("lo").unwrap();
    let (mut sender, mut receiver) = connection(&lo);
    let memory = Dmabuf::anonymous(8192).unwrap();
    let bytes: Vec<u8> = (1..=100).collect();
    queue(&mut sender, &mut receiver, &bytes, 0);
    assert_eq!(receiver.recv_into(&memory, 4090..4150).unwrap(), Some(60));
    assert_eq!(receiver.recv_into(&memory, 4150..8192).unwrap(), Some(40));
    assert_eq!(receiver.recv_into(&memory, 7..7).unwrap(), Some(0));
    let all = memory.slice(0..8192).to_vec();
    assert_eq!(all[4090..4190], bytes);
    assert_eq!(all.iter().filter(|byte| **byte != 0).count(), 100);
    let stats = receiver.stats();
    assert_eq!((stats.linear_bytes, stats.receives), (100, 2));

    receiver.set_nonblocking(true);
    let none = receiver.recv_into(&memory, 0..10);
    assert!(matches!(none, Err(RecvError::WouldBlock)), "{none:?}");
    receiver.set_timeout(Some(PATIENCE));
    let refused = receiver.recv_into(&memory, 8190..8193).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");

    // Memory with an exporter needs a call before each access: its bytes stay queued.
    queue(&mut sender, &mut receiver, b"queued", 0);
    let device = pretended();
    assert_eq!(receiver.recv_into(&device, 0..6).unwrap(), None);
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(receiver.recv(&mut batch).unwrap(), 6);
    drop(sender);
    assert_eq!(
        receiver.recv_into(&memory, 0..10).unwrap(),
        Some(0),
        "the end"
    );
}

#[test]
fn a_stack_in_user_space_leaves_bytes_to_other_receives() {
    let a = Netdev::user("mem:queued", "10.77.0.1/24").unwrap();
    let b = Netdev::user("mem:queued", "10.77.0.2/24").unwrap();
    let listener = b.listen("10.77.0.2:5201").unwrap();
    let mut sender = a.connect("10.77.0.2:5201").unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_timeout(Some(PATIENCE));
    sender.write_all(b"weights").unwrap();
    let memory = Dmabuf::anonymous(4096).unwrap();
    assert_eq!(receiver.recv_into(&memory, 0..7).unwrap(), None);
    let mut bytes = [0; 7];
    receiver.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"weights");
    receiver.set_nonblocking(true);
    let none = receiver.read(&mut bytes).unwrap_err();
    assert_eq!(none.kind(), IoErrorKind::WouldBlock);
}
