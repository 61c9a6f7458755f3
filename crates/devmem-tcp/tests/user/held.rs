//! A receive that waits in vain because the program keeps the memory says so, with who holds what.

use std::io::Write;
use std::time::Duration;

use devmem_tcp::{
    BindOptions, BoundRx, Dmabuf, ErrorKind, Listener, Netdev, NiovSize, RecvError, RxBatch,
    RxFrag, Setup, Stream,
    memory::{HeldMemory, HeldUnit},
};

use crate::common::PATIENCE;

const LOCAL: &str = "10.77.0.2:5201";
/// Long enough for a peer that may send.
const SOON: Duration = Duration::from_millis(500);

/// A receiver with a small memory, and the NIC of its peers.
struct Small {
    sender: Netdev,
    listener: Listener,
    bound: BoundRx,
    _setup: Setup,
    _receiver: Netdev,
}

impl Small {
    fn new(wire: &str) -> Self {
        let link = format!("mem:held-{wire}");
        let sender = Netdev::user(&link, "10.77.0.1/24").unwrap();
        let receiver = Netdev::user(&link, "10.77.0.2/24").unwrap();
        let plan = receiver.plan_receive(LOCAL.parse().unwrap());
        let setup = plan.apply().unwrap();
        let memory = Dmabuf::anonymous(1 << 20).unwrap();
        let niov = NiovSize::new(64 << 10).unwrap();
        let bound = receiver
            .bind_rx_with(&memory, setup.queues(), BindOptions::new().niov_size(niov))
            .unwrap();
        let listener = receiver.listen(LOCAL).unwrap();
        listener.set_timeout(Some(PATIENCE));
        Self {
            sender,
            listener,
            bound,
            _setup: setup,
            _receiver: receiver,
        }
    }

    fn connection(&self) -> (Stream, Stream) {
        let sender = self.sender.connect(LOCAL).unwrap();
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_timeout(Some(SOON));
        (sender, stream)
    }
}

/// Sends from another thread until the connection ends.
fn send_on(mut stream: Stream) {
    std::thread::spawn(move || while stream.write_all(&[7; 65536]).is_ok() {});
}

/// Receives and keeps everything until a receive times out. Returns what it keeps, and who holds the memory.
fn keep_all(stream: &mut Stream) -> (Vec<RxFrag>, RecvError) {
    let mut kept = Vec::new();
    let mut batch = RxBatch::with_capacity(64);
    loop {
        match stream.recv(&mut batch) {
            Ok(bytes) => {
                assert_ne!(bytes, 0, "the peer has not ended");
                kept.extend(batch.take());
            }
            Err(error) => return (kept, error),
        }
    }
}

fn held(error: &RecvError) -> HeldMemory {
    match error {
        RecvError::TimedOut { held: Some(held) } => **held,
        other => panic!("no holders: {other}"),
    }
}

#[test]
fn a_timeout_names_the_net_iovs_that_the_program_keeps_and_the_remedy() {
    let small = Small::new("held-one");
    let (sender, mut stream) = small.connection();
    send_on(sender);
    let (kept, error) = keep_all(&mut stream);
    assert_eq!((error.kind(), error.errno().0), (ErrorKind::TimedOut, 11));
    let held = held(&error);
    assert_eq!((held.net_iovs, held.lent_by_others), (16, 0));
    assert_eq!(
        (held.dmabuf, held.unit),
        (small.bound.id(), HeldUnit::NetIovs)
    );
    assert!((12..=16).contains(&held.lent), "{held:?}");
    let text = error.to_string();
    let begin = format!(
        "no data arrived within the timeout: {} of 16 net_iovs of dma-buf {} are lent to the program",
        held.lent,
        small.bound.id()
    );
    assert!(text.starts_with(&begin), "{text}");
    let remedy = error.remedy().unwrap().to_string();
    assert!(
        remedy.starts_with("release the batches, or drop the frags and tensors"),
        "{remedy}"
    );
    // The same for a program that polls, and as an error of I/O.
    assert_eq!(stream.held_memory().unwrap().lent, held.lent);
    assert!(std::io::Error::from(error).to_string().starts_with(&begin));

    // It goes on when the memory is back.
    drop(kept);
    stream.set_timeout(Some(PATIENCE));
    let mut batch = RxBatch::with_capacity(64);
    assert!(stream.recv(&mut batch).unwrap() > 0);
    assert_eq!(stream.held_memory(), None);
}

#[test]
fn a_connection_that_keeps_nothing_is_told_of_the_others() {
    let small = Small::new("held-two");
    let (first_sender, mut first) = small.connection();
    let (_second_sender, mut second) = small.connection();
    send_on(first_sender);
    let (_kept, error) = keep_all(&mut first);
    let by_first = held(&error).lent;
    let mut batch = RxBatch::with_capacity(64);
    let error = second.recv(&mut batch).unwrap_err();
    let held = held(&error);
    assert_eq!((held.lent, held.lent_by_others), (0, by_first));
    let text = error.to_string();
    assert!(
        text.contains(&format!(", 0 by this connection and {by_first} by others")),
        "{text}"
    );
}

#[test]
fn a_timeout_while_memory_is_free_has_no_holders() {
    let small = Small::new("held-none");
    let (mut sender, mut stream) = small.connection();
    let mut batch = RxBatch::with_capacity(64);
    let error = stream.recv(&mut batch).unwrap_err();
    assert_eq!(error.to_string(), "no data arrived within the timeout");
    // One frag of sixteen net_iovs.
    sender.write_all(&[1; 100]).unwrap();
    stream.set_timeout(Some(PATIENCE));
    assert_eq!(stream.recv(&mut batch).unwrap(), 100);
    let _kept = batch.take();
    stream.set_timeout(Some(Duration::from_millis(1)));
    let error = stream.recv(&mut batch).unwrap_err();
    assert_eq!(error.to_string(), "no data arrived within the timeout");
}
