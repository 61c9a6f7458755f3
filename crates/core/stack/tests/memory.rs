//! Host memory of connections. A separate binary, because it measures the whole process.

#[path = "scenarios/common.rs"]
mod common;

type Pair = netsim::Pair<netsim::Direct>;
type DoorSocket = stack::SocketId;

use std::net::SocketAddr;

use common::{PORT, RecvArgs, recv};
use devmem_uapi::{DmabufToken, MsgFlags};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Side};
use stack::SendMsg;

/// Returns the resident memory of this process in bytes (proc(5), statm).
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Opens `count` connections that have transferred in both directions, and are idle.
fn open(pair: &mut Pair, listener: DoorSocket, count: usize) {
    let local = SocketAddr::new(Side::B.ipv4(), PORT);
    for _ in 0..count {
        let (b, a) = pair.connect_to(Side::B, listener, local);
        for _ in 0..3 {
            pair.a
                .sendmsg(a, &SendMsg::new(&[1; 40_000]), MsgFlags::empty())
                .unwrap();
            pair.b
                .sendmsg(b, &SendMsg::new(&[2; 5000]), MsgFlags::empty())
                .unwrap();
            pair.run_for(std::time::Duration::from_millis(1));
            read(pair, Side::B, b);
            read(pair, Side::A, a);
        }
        // The last ACKs, so that the send queues are empty.
        pair.run_for(std::time::Duration::from_millis(300));
    }
}

fn read(pair: &mut Pair, side: Side, id: DoorSocket) {
    let mut args = RecvArgs::new(65_536, 64, MsgFlags::SOCK_DEVMEM);
    while let Ok(received) = recv(pair.side(side), id, &mut args) {
        for frag in received.frags() {
            let token = DmabufToken::one(frag.frag_token);
            assert_eq!(pair.side(side).dontneed(id, &[token]), Ok(1));
        }
    }
}

#[test]
fn an_idle_connection_costs_less_than_4_kib_of_host_memory() {
    let mut pair = Pair::new(&PairConfig {
        host_mem_bytes: 128 << 20,
        ..PairConfig::default()
    });
    pair.bind(Side::B, 128 << 20, NiovSize::DEFAULT, &[0]);
    let local = SocketAddr::new(Side::B.ipv4(), PORT);
    let listener = pair.b.listen(local, 16).unwrap();
    // The first connections touch the memory that all share.
    open(&mut pair, listener, 200);
    let before = resident();
    let more = 2000;
    open(&mut pair, listener, more);
    let each = resident().saturating_sub(before) / (2 * more);
    assert!(
        each < 4096,
        "{each} bytes for each end of an idle connection"
    );
    assert!(
        each > 200,
        "{each} bytes cannot be all of it: the measurement is wrong"
    );
}
