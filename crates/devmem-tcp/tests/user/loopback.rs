//! Two streams of the same NIC, device memory to device memory.

use devmem_tcp::{Dmabuf, Errno, Frag, Netdev, RxBatch, Stream};
use netmem::{FakeDevice, FakePace};

#[test]
fn a_nic_sends_to_itself_from_device_memory_to_device_memory() {
    let (nic, _other) = Netdev::pair("".parse().expect("no impairment")).expect("a pair");
    let (from, to) = (
        Dmabuf::anonymous(4 << 20).expect("memory"),
        Dmabuf::anonymous(16 << 20).expect("memory"),
    );
    let bytes: Vec<u8> = (0..4 << 20)
        .map(|i: u32| (i % 253) as u8 ^ (i >> 13) as u8)
        .collect();
    from.copy_in(0, &bytes).expect("it fits");
    let address = "10.77.0.1:5201".parse().expect("an address");
    let setup = nic
        .plan_receive(address)
        .queues(1)
        .apply()
        .expect("applied");
    let rx = nic.bind_rx(&to, setup.queues()).expect("bound");
    let tx = nic.bind_tx(&from).expect("bound");
    let listener = nic.listen(address).expect("the port is free");
    let mut sender = nic.connect(address).expect("our own address");
    let (mut receiver, _) = listener.accept().expect("it connected");
    let reader = std::thread::spawn(move || {
        let (mut batch, mut received) = (RxBatch::with_capacity(128), Vec::new());
        while receiver.recv(&mut batch).expect("alive") > 0 {
            for frag in &batch {
                match frag {
                    Frag::Device { range, .. } => received.extend(to.slice(range).to_vec()),
                    Frag::Linear(_) => panic!("it is split"),
                }
            }
        }
        received
    });
    let id = sender
        .send_all(&tx, &[0..1, 1..4095, 4095..4 << 20])
        .expect("queued");
    sender.completions().wait(id).expect("it completes");
    from.fill(0..4 << 20, 0xee).expect("inside");
    drop(sender);
    assert!(reader.join().expect("no panic") == bytes);
    drop(listener);
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

/// A receiver with memory of one device, and a sender with memory of another.
struct Staged {
    devices: [FakeDevice; 2],
    memory: Dmabuf,
    source: Dmabuf,
    rx: devmem_tcp::BoundRx,
    tx: devmem_tcp::BoundTx,
    _setup: devmem_tcp::Setup,
    receiver: Stream,
    sender: Stream,
}

fn staged(pace: FakePace, port: u16) -> Staged {
    let devices = [(); 2].map(|()| FakeDevice::new(pace));
    let (nic, other) = Netdev::pair("".parse().expect("no impairment")).expect("a pair");
    let memory = devices[0].alloc(32 << 20).expect("memory");
    let source = devices[1].alloc(4 << 20).expect("memory");
    let address = format!("10.77.0.1:{port}").parse().expect("an address");
    let setup = nic
        .plan_receive(address)
        .queues(1)
        .apply()
        .expect("applied");
    let rx = nic.bind_rx(&memory, setup.queues()).expect("bound");
    let tx = other.bind_tx(&source).expect("bound");
    let listener = nic.listen(address).expect("the port is free");
    let sender = other.connect(address).expect("the listener is there");
    let (receiver, _) = listener.accept().expect("it connected");
    Staged {
        devices,
        memory,
        source,
        rx,
        tx,
        _setup: setup,
        receiver,
        sender,
    }
}

#[test]
fn payload_goes_from_one_device_to_another_and_is_gathered_there() {
    let Staged {
        devices,
        memory,
        source,
        rx,
        tx,
        _setup,
        mut receiver,
        mut sender,
    } = staged(FakePace::AfterPolls(2), 5301);
    let bytes: Vec<u8> = (0..4 << 20)
        .map(|i: u32| (i % 251) as u8 ^ (i >> 12) as u8)
        .collect();
    source.copy_in(0, &bytes).expect("it fits");
    let target = devices[0].alloc(4 << 20).expect("memory");
    let id = sender.send(&tx, &[0..3, 3..4 << 20]).expect("queued");
    let (mut batch, mut at) = (RxBatch::with_capacity(128), 0);
    while at < bytes.len() {
        assert!(receiver.recv(&mut batch).expect("alive") > 0);
        let start = at;
        let before = devices[0].submissions().len();
        let mut gather = batch.start_gather(&target, at).expect("it fits");
        while !gather.is_done().expect("the device copies") {}
        at += gather.wait().expect("the device copies");
        assert!(devices[0].submissions().len() > before, "by the device");
        // The same bytes by the CPU's way.
        let mut read = vec![0; at - start];
        assert_eq!(
            batch.copy_to(&mut read).expect("the device copies"),
            read.len()
        );
        assert!(read == bytes[start..at], "at {start}");
    }
    sender.completions().wait(id).expect("it completes");
    assert!(target.slice(0..bytes.len()).to_vec() == bytes);
    drop((batch, sender, receiver));
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
    assert_eq!(memory.size(), 32 << 20);
}

#[test]
fn a_batch_that_is_gathered_can_be_kept_by_its_copies_until_they_are_done() {
    let Staged {
        devices,
        rx,
        source,
        mut receiver,
        mut sender,
        tx,
        ..
    } = staged(FakePace::AfterPolls(2), 5304);
    source.fill(0..3000, 7).expect("it fits");
    let target = devices[0].alloc(4096).expect("memory");
    let (mut gathers, mut at) = (Vec::new(), 0);
    for range in [0..1000, 1000..3000] {
        // Its bytes do not change.
        let _sent = sender.send(&tx, &[range]).expect("queued");
        let mut batch = RxBatch::with_capacity(16);
        let received = receiver.recv(&mut batch).expect("alive");
        gathers.push(batch.into_gather(&target, at).expect("it fits"));
        at += received;
    }
    assert_eq!(at, 3000);
    let lent = receiver.stats().device_frags - receiver.stats().tokens_returned;
    assert!(lent >= 2, "the batches hold their frags");
    let mut last = gathers.pop().expect("two");
    while !last.is_done().expect("the device copies") {}
    let batch = last.wait().expect("the device copies");
    assert_eq!(batch.device_bytes(), 2000);
    assert!(target.slice(0..3000).to_vec() == [7; 3000]);
    let past = batch.into_gather(&target, 4000);
    assert!(past.is_err(), "it does not fit, and is released");
    drop(gathers);
    let stats = receiver.stats();
    assert_eq!(stats.device_frags, stats.tokens_returned);
    drop((sender, receiver));
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}

#[test]
fn a_lost_device_ends_its_connections_with_the_cause() {
    for side in [0, 1] {
        let mut staged = staged(FakePace::AfterPolls(2), 5302 + side as u16);
        staged.source.copy_in(0, &[7; 100_000]).expect("it fits");
        staged.devices[side].lose();
        let sent = staged
            .sender
            .send_all(&staged.tx, &[0..1, 1..100_000])
            .expect("queued");
        let mut batch = RxBatch::with_capacity(128);
        let received = loop {
            match staged.receiver.recv(&mut batch) {
                Ok(0) => panic!("an end without an error"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if side == 0 {
            assert_eq!(received.errno(), Errno::EIO);
            let text = received.to_string();
            assert!(text.contains("fake_copy: FAKE_LOST (719)"), "{text}");
        } else {
            assert_eq!(received.errno(), Errno::ECONNRESET);
        }
        let completed = staged.sender.completions().wait(sent);
        assert!(
            completed.is_ok() || side == 0,
            "the send is over: {completed:?}"
        );
        drop(batch);
        drop((staged.sender, staged.receiver));
        let net_iovs = staged.rx.unbind().net_iovs();
        assert_eq!(net_iovs.home, net_iovs.total);
    }
}
