//! Between memory of a Vulkan device and sockets of the kernel. Mesa's software driver is a device.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::vulkan::{self, Device};
use devmem_tcp::{Dmabuf, Placement, RxBatch};

use crate::peer::{Host, PATIENCE, V4, check_all};
use crate::sender::{Nic, expected};

const BYTES: usize = 6 << 20;

/// Runs a test with memory that the CPU maps, if the device has such, and with memory that it does not access.
fn with_memory(test: &'static str, size: usize, run: impl Fn(&Nic, &Host, Dmabuf)) {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            let reason = error.to_string().replace("\n ", ";");
            return skip(test, "vulkan", &reason);
        }
    };
    in_netns(test, || {
        for memory in [device.alloc(size), device.alloc_unmapped(size)] {
            let memory = memory.expect("memory").into_dmabuf();
            let (host, nic) = Host::with_nic(V4, |builder| builder);
            run(&nic, &host, memory);
        }
    });
}

#[test]
fn received_bytes_are_in_the_memory_of_the_device_and_read_back_by_its_copies() {
    with_memory(
        "vulkan::received_bytes_are_in_the_memory_of_the_device_and_read_back_by_its_copies",
        2 << 20,
        |nic, _, memory| {
            let target = vulkan::alloc(0, BYTES).expect("memory");
            let listener = nic.netdev.listen((V4.1, 5201)).expect("a free port");
            listener.set_timeout(Some(PATIENCE));
            let local = listener.local_addr().expect("it listens");
            let setup = nic.netdev.plan_receive(local).apply().expect("set up");
            let rx = nic.netdev.bind_rx(&memory, setup.queues()).expect("bound");
            let sending = std::thread::spawn(move || {
                let mut theirs = TcpStream::connect(local).expect("it listens");
                theirs.write_all(&expected(0, BYTES)).expect("all is read");
                theirs.shutdown(Shutdown::Write).expect("open");
            });
            let (mut ours, _) = listener.accept().expect("a connection");
            ours.set_timeout(Some(PATIENCE));
            ours.set_placement(Placement::Strict);
            let (mut batch, mut at) = (RxBatch::with_capacity(256), 0);
            while ours.recv(&mut batch).expect("alive") > 0 {
                let gather = batch.start_gather(&target, at).expect("it fits");
                assert_eq!(gather.fences().count(), 1, "one command of the device");
                at += gather.wait().expect("copied");
            }
            sending.join().expect("the sender");
            assert_eq!(at, BYTES);
            let wrong = target.slice(0..BYTES).to_vec();
            assert!(wrong == expected(0, BYTES), "every byte of the device");
            drop(batch);
            let net_iovs = rx.unbind().net_iovs();
            assert_eq!(net_iovs.home, net_iovs.total);
        },
    );
}

#[test]
fn bytes_are_sent_from_the_memory_of_the_device() {
    with_memory(
        "vulkan::bytes_are_sent_from_the_memory_of_the_device",
        BYTES,
        |nic, host, memory| {
            memory.copy_in(0, &expected(0, BYTES)).expect("it fits");
            let tx = nic.netdev.bind_tx(&memory).expect("bound");
            let mut ours = host.connect(nic);
            let theirs = host.accept();
            let receiving = std::thread::spawn(move || check_all(theirs));
            let mut sent = 0;
            while sent < BYTES {
                let rest = sent..BYTES;
                let id = ours.send(&tx, std::slice::from_ref(&rest));
                sent += id.expect("the peer reads").bytes();
            }
            ours.completions().wait_all().expect("acknowledged");
            ours.shutdown_write().expect("open");
            assert_eq!(receiving.join().expect("the receiver"), BYTES);
            assert_eq!(tx.in_flight(), 0);
        },
    );
}
