//! Host memory: little per idle connection, and none that grows with what was transferred.
//!
//! One process for these alone, because they look at the resident set of the whole process. The stack's own bound
//! on an idle connection is 4 KiB; two stacks share this process.

use std::io::Write;

use devmem_tcp::{Dmabuf, Netdev, RxBatch, Stream};

const LOCAL: &str = "10.77.0.2:5201";

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

fn connect(a: &Netdev, listener: &devmem_tcp::Listener, count: usize) -> Vec<(Stream, Stream)> {
    (0..count)
        .map(|_| (a.connect(LOCAL).unwrap(), listener.accept().unwrap().0))
        .collect()
}

#[test]
fn idle_connections_are_small_and_transfers_leave_nothing_behind() {
    let (a, b) = Netdev::pair("none".parse().unwrap()).unwrap();
    let memory = Dmabuf::anonymous(128 << 20).unwrap();
    let setup = b.plan_receive(LOCAL.parse().unwrap()).apply().unwrap();
    let bound = b.bind_rx(&memory, setup.queues()).unwrap();
    let listener = b.listen(LOCAL).unwrap();

    // Whatever is made once, is made now. Each connection is promised some of the memory, idle or not.
    let mut connections = connect(&a, &listener, 64);
    let before = resident();
    connections.extend(connect(&a, &listener, 2000));
    let per_end = resident().saturating_sub(before) / 4000;
    println!("{per_end} bytes per idle end of a connection");
    assert!(
        per_end < 4096,
        "{per_end} bytes per idle end of a connection"
    );

    let (sender, receiver) = connections.last_mut().unwrap();
    let mut batch = RxBatch::with_capacity(64);
    let chunk = vec![7; 1 << 20];
    let mut transfer = |mebibytes: usize| {
        for _ in 0..mebibytes {
            sender.write_all(&chunk).unwrap();
            let mut received = 0;
            while received < chunk.len() {
                received += receiver.recv(&mut batch).unwrap();
            }
        }
        batch.release().unwrap();
    };
    transfer(32);
    let before = resident();
    transfer(512);
    let grown = resident().saturating_sub(before);
    println!("{grown} bytes more after 512 MiB");
    assert!(
        grown < 1 << 20,
        "{grown} bytes more after 512 MiB were transferred"
    );

    drop((batch, connections, listener));
    let count = bound.unbind().net_iovs();
    assert_eq!(count.home, count.total);
}
