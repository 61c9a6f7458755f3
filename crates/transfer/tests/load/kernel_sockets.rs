//! Loads over sockets of the kernel, which receive payload at its place, and wait for many bytes of it together.

use std::net::Ipv4Addr;
use std::sync::Arc;

use devmem_linux::test_util::in_netns;
use devmem_tcp::Netdev;
use devmem_transfer::load::{HttpFile, HttpRequest, Loader};
use netmem::{FakeDevice, FakePace};

use crate::server::{Server, chunked, good};
use crate::world::{load_counted, memory_for, pattern, whole};

const FILE_BYTES: usize = 1_500_001;
/// Lengths of pieces around the number of bytes that a wait is for.
const PIECES: [u64; 6] = [4096, 262_143, 262_144, 262_145, 700_000, 1 << 30];

#[test]
fn all_bytes_of_several_replies_arrive_whatever_their_lengths() {
    const TEST: &str = "kernel_sockets::all_bytes_of_several_replies_arrive_whatever_their_lengths";
    in_netns(TEST, || {
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
        let file = Arc::new(pattern(FILE_BYTES));
        for is_chunked in [false, true] {
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| match is_chunked {
                true => chunked(asked, &served, out),
                false => good(asked, &served, out),
            });
            let request = HttpRequest::new(server.url("127.0.0.1").parse().expect("a URL"));
            let opened = HttpFile::open(&nic, request).expect("the file is there");
            for (piece_bytes, connections) in PIECES.into_iter().flat_map(|it| [(it, 1), (it, 4)]) {
                let loader = Loader::new(&nic).piece_bytes(piece_bytes);
                let loader = loader.connections(connections).pipeline(4);
                // What the kernel writes to, and a device's memory, which it does not.
                let device = FakeDevice::new(FakePace::AtOnce);
                let device = device.alloc(FILE_BYTES.next_multiple_of(4096));
                for memory in [memory_for(FILE_BYTES), device.expect("memory")] {
                    let part = whole(&memory, FILE_BYTES);
                    let (loaded, _) = load_counted(&loader, &opened, part);
                    let pieces = (FILE_BYTES as u64).div_ceil(piece_bytes);
                    assert_eq!((loaded.pieces, loaded.repeated), (pieces, 0));
                    assert_eq!(loaded.broken, 0);
                    let bytes = memory.slice(0..FILE_BYTES).to_vec();
                    assert!(
                        bytes == **file,
                        "pieces of {piece_bytes} over {connections}"
                    );
                }
            }
        }
    });
}
