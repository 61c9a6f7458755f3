//! Host memory of endpoints. A separate binary, because it measures the whole process.

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "exchange/world.rs"]
mod world;

use devmem_exchange::{Endpoint, Fabric, Options, Region};

use world::{connect, host, pair_with, part, run};

/// Bytes of a message.
const LEN: usize = 1 << 20;

/// Returns the resident memory of this process in bytes (proc(5), statm).
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Connects `count` endpoints that have each sent and received a message.
fn open(
    fabrics: &(Fabric, Fabric),
    regions: &(Region, Region),
    count: usize,
) -> Vec<(Endpoint, Endpoint)> {
    let connected = (0..count).map(|_| connect(&fabrics.0, &fabrics.1));
    let connected: Vec<_> = connected.collect();
    for (a, b) in &connected {
        a.receive(&[part(&regions.0, 0..LEN, 1)], 1).unwrap();
        b.receive(&[part(&regions.1, 0..LEN, 1)], 1).unwrap();
        a.send(&regions.0, 0..LEN, 1, 2).unwrap();
        b.send(&regions.1, 0..LEN, 1, 2).unwrap();
        run(a, b, 2, 2);
    }
    connected
}

/// The limit is in the guide to exchanges, and in that to NCCL.
#[test]
fn an_endpoint_without_operations_costs_less_than_128_kib_of_host_memory() {
    let fabrics = pair_with("seed=1", Options::default());
    let ours = host(&fabrics.0, vec![1; LEN]).1;
    let regions = (ours, host(&fabrics.1, vec![2; LEN]).1);
    // The first ones touch the memory that all share.
    let _first = open(&fabrics, &regions, 20);
    let before = resident();
    let more = 100;
    let _connected = open(&fabrics, &regions, more);
    let each = resident().saturating_sub(before) / (2 * more);
    assert!(each < 128 << 10, "{each} bytes for each endpoint");
    assert!(
        each > 1000,
        "{each} bytes cannot be all of it: the measurement is wrong"
    );
    println!("{each} bytes for each endpoint");
}
