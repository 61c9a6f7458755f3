use mapped::DmaRight;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use super::*;
use crate::frag::Frag;
use crate::{Dmabuf, MemoryProvider, NiovSize, PagePool, Payload};

const NIOV: usize = 4096;

/// All of this runs on opaque memory: the port moves it, nothing looks at it.
fn opaque(count: usize) -> (PagePool, DmaPort) {
    let memory = Dmabuf::opaque(count * NIOV).unwrap();
    let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), NiovSize::MIN).unwrap();
    let pool = PagePool::new(Arc::new(provider));
    let port = pool.dma_port(DmaRight::of_a_nic());
    (pool, port)
}

fn bytes(port: &DmaPort, frag: &Frag) -> Vec<u8> {
    let mut out = vec![0; frag.len()];
    port.copy_out(frag, 0, &mut out);
    out
}

#[test]
#[cfg_attr(miri, ignore = "readv and writev")]
fn a_packet_is_received_into_net_iovs_and_sent_from_them() {
    let (mut pool, port) = opaque(32);
    let (mut peer, link) = UnixStream::pair().unwrap();
    let sent: Vec<u8> = (0..40 + 3 * NIOV).map(|i| (i % 249) as u8).collect();
    peer.write_all(&sent).unwrap();
    let mut run = Vec::new();
    assert_eq!(pool.alloc_contiguous(3, &mut run), 3);
    let spans: Vec<_> = run
        .iter()
        .zip([64, 0, 0])
        .map(|(netmem, offset)| BufSpan {
            netmem,
            offset,
            len: NIOV as u32 - offset,
        })
        .collect();
    let (mut head, mut spill) = ([0; 40], [0; 100]);
    let got = port
        .readv(link.as_fd(), &mut head, &spans, &mut spill)
        .unwrap();
    assert_eq!((got, &head[..]), (sent.len(), &sent[..40]));
    assert_eq!(spill[..64], sent[sent.len() - 64..]);

    let mut payload = FragList::new();
    for (netmem, offset) in run.into_iter().zip([64, 0, 0]) {
        payload.push(Frag::new(netmem, offset, NIOV as u32 - offset));
    }
    assert!(payload.is_unreadable());
    assert_eq!(
        port.writev(link.as_fd(), &head, &payload).unwrap(),
        40 + payload.len()
    );
    let mut back = vec![0; 40 + payload.len()];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(back, sent[..back.len()]);
    drop(payload);
    pool.assert_all_home();
}

#[test]
fn bytes_move_between_net_iovs_and_within_one() {
    let (mut pool, port) = opaque(16);
    let (one, two) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    port.copy_in(&one, 4086, b"0123456789");
    let tail = Frag::new(one.share(), 4086, 10);
    port.copy(&tail, &two, 0);
    // Three bytes down, over itself: what a NIC does to mend a wrong header prediction.
    port.copy(&tail, &one, 4083);
    assert_eq!(
        bytes(&port, &Frag::new(one.share(), 4083, 13)),
        b"0123456789789"
    );
    assert_eq!(
        bytes(&port, &Frag::new(two.share(), 0, 11)),
        b"0123456789\0"
    );
    let mut middle = [0; 3];
    port.copy_out(&Frag::new(two.share(), 1, 9), 2, &mut middle);
    assert_eq!(&middle, b"345");
    drop((tail, one, two));
    pool.assert_all_home();
}

#[test]
fn a_frag_and_its_range_have_the_same_checksum() {
    let (mut pool, port) = opaque(16);
    let netmem = pool.alloc().unwrap();
    port.copy_in(&netmem, 7, &[0x12, 0x34, 0x56]);
    assert_eq!(
        port.checksum(BufSpan {
            netmem: &netmem,
            offset: 7,
            len: 3
        }),
        0x6834
    );
    assert_eq!(
        port.checksum(BufSpan {
            netmem: &netmem,
            offset: 7,
            len: 0
        }),
        0
    );
    let frag = Frag::new(netmem, 7, 3);
    assert_eq!(port.checksum(&frag), 0x6834);
    drop(frag);
    pool.assert_all_home();
}

/// A range past its net_iov is inside the region often enough: the neighbour's bytes are as safe as
/// unmapped ones.
#[test]
fn ranges_past_a_net_iov_panic_before_the_neighbour_is_touched() {
    let (mut pool, port) = opaque(16);
    let mut run = Vec::new();
    assert_eq!(pool.alloc_contiguous(2, &mut run), 2);
    let (first, second) = (&run[0], &run[1]);
    assert!(second.is_right_after(first) && !first.is_right_after(second));
    let source = Frag::new(second.share(), 0, 8);
    let past = BufSpan {
        netmem: first,
        offset: 4090,
        len: 7,
    };
    let tries: [&dyn Fn(); 5] = [
        &|| port.copy_in(first, 4090, &[1; 7]),
        &|| port.copy(&source, first, 4090),
        &|| port.copy(past, second, 0),
        &|| assert_ne!(port.checksum(past), 1),
        &|| port.copy_out(&source, 2, &mut [0; 7]),
    ];
    for (number, attempt) in tries.iter().enumerate() {
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
        assert!(tried.is_err(), "attempt {number}");
    }
    let all = [first, second].map(|netmem| Frag::new(netmem.share(), 0, NIOV as u32));
    assert!(all.iter().all(|frag| bytes(&port, frag) == vec![0; NIOV]));
    drop((source, all));
    drop(run);
    pool.assert_all_home();
}
