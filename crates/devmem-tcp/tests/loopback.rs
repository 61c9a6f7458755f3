//! Two streams of the same NIC, device memory to device memory.

use devmem_tcp::{Dmabuf, Frag, Netdev, RxBatch};

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
        .send(&tx, &[0..1, 1..4095, 4095..4 << 20])
        .expect("queued");
    sender.completions().wait(id).expect("it completes");
    from.fill(0..4 << 20, 0xee).expect("inside");
    drop(sender);
    assert!(reader.join().expect("no panic") == bytes);
    drop(listener);
    let net_iovs = rx.unbind().net_iovs();
    assert_eq!(net_iovs.home, net_iovs.total);
}
