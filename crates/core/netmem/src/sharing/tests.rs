use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;
use crate::payload::Payload;
use crate::{Dmabuf, MemoryProvider, NiovSize, PagePool};

const PAGE: u64 = 4096;

fn file(size: u64, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("sharing-test", flags).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn pool_of(provider: MemoryProvider) -> PagePool {
    PagePool::new(Arc::new(provider))
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn frags_of_shareable_memory_are_read_through_the_mapping_of_a_peer() {
    let port = DmaPort::new();
    let mut pool = pool_of(MemoryProvider::shareable(64 << 10, NiovSize::MIN).unwrap());
    let sent: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
    let list = FragList::from_host_bytes(&mut pool, &sent).unwrap();
    let mut read = Vec::new();
    for frag in &list {
        let memory = port.shareable(frag).unwrap();
        assert!(memory.is_host() && memory.is_observed_by(&memory.observer()));
        let peer = port
            .map_peer(memory.file().unwrap(), memory.size() as u64)
            .unwrap();
        let mut borrowed = FragList::new();
        let offset = frag.dmabuf_offset() as usize;
        let mut handle = peer
            .borrow_frags(offset, frag.len(), &mut borrowed)
            .unwrap();
        // The stack may read it, and it belongs to no dma-buf.
        assert!(!borrowed.is_unreadable());
        assert!(borrowed.iter().all(|frag| frag.dmabuf_id().is_none()));
        let mut bytes = vec![0; frag.len()];
        borrowed.first().unwrap().copy_to(0, &mut bytes).unwrap();
        read.extend_from_slice(&bytes);
        // The mapping lives as long as its frags.
        drop(peer);
        assert!(!handle.is_over());
        drop(borrowed);
        assert!(handle.is_over());
    }
    assert_eq!(read, sent);
    drop(list);
    pool.assert_all_home();
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn ranges_outside_of_the_memory_are_refused() {
    let port = DmaPort::new();
    let size = 3 * PAGE;
    let file = file(size, MemfdFlags::empty(), SealFlags::SHRINK);
    let peer = port.map_peer(file.as_fd(), size).unwrap();
    let mut list = FragList::new();
    let end = peer.size();
    for (offset, len) in [(end, 1), (end - 1, 2), (usize::MAX, 2), (0, end + 1)] {
        assert!(
            peer.borrow_frags(offset, len, &mut list).is_err(),
            "{len} at {offset}"
        );
    }
    assert!(list.is_empty());
    assert!(peer.borrow_frags(0, end, &mut list).is_ok());
    assert_eq!(list.len(), end);
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn files_that_may_lose_pages_and_odd_sizes_are_refused() {
    let port = DmaPort::new();
    let unsealed = file(PAGE, MemfdFlags::empty(), SealFlags::GROW);
    let refused = port.map_peer(unsealed.as_fd(), PAGE).unwrap_err();
    assert_eq!(refused, PeerMemoryError::File(UnmappableFile::MayShrink));
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let refused = port.map_peer(reader.as_fd(), PAGE).unwrap_err();
    assert_eq!(refused, PeerMemoryError::File(UnmappableFile::MayShrink));
    let huge = file(2 << 20, MemfdFlags::HUGETLB, SealFlags::SHRINK);
    let refused = port.map_peer(huge.as_fd(), 2 << 20).unwrap_err();
    assert_eq!(refused, PeerMemoryError::HugePages);
    let sealed = file(
        MAX_PEER_BYTES + PAGE,
        MemfdFlags::empty(),
        SealFlags::SHRINK,
    );
    for size in [0, 1, PAGE + 1, MAX_PEER_BYTES + PAGE, u64::MAX] {
        let refused = port.map_peer(sealed.as_fd(), size).unwrap_err();
        assert_eq!(refused, PeerMemoryError::Size { size });
    }
    let short = file(PAGE, MemfdFlags::empty(), SealFlags::SHRINK);
    let refused = port.map_peer(short.as_fd(), 2 * PAGE).unwrap_err();
    let (end, size) = (2 * PAGE, PAGE);
    let expected = UnmappableFile::TooShort { end, size };
    assert_eq!(refused, PeerMemoryError::File(expected));
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn anonymous_memory_has_no_file_and_device_memory_is_not_host_memory() {
    let port = DmaPort::new();
    let mut pool = pool_of(MemoryProvider::host(64 << 10, NiovSize::MIN).unwrap());
    let list = FragList::from_host_bytes(&mut pool, b"private").unwrap();
    assert!(port.shareable(list.first().unwrap()).is_none());
    let memory = Dmabuf::shared_memfd(64 << 10).unwrap();
    let bound = FragSource::new(&memory, devmem_uapi::DmabufId(1)).unwrap();
    let list = bound.begin().frags(0, 1).unwrap();
    let shared = port.shareable(list.first().unwrap()).unwrap();
    assert!(!shared.is_host() && shared.file().is_some());
    let observer = shared.observer();
    drop((list, bound, memory));
    assert!(observer.is_freed());
}

#[test]
#[cfg_attr(miri, ignore = "memory files")]
fn a_process_that_opens_the_file_again_cannot_write_to_host_memory() {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::io::{Errno, pwrite};
    use std::os::fd::AsRawFd;
    let port = DmaPort::new();
    let mut pool = pool_of(MemoryProvider::shareable(64 << 10, NiovSize::MIN).unwrap());
    let list = FragList::from_host_bytes(&mut pool, b"ours").unwrap();
    let memory = port.shareable(list.first().unwrap()).unwrap();
    let path = format!("/proc/self/fd/{}", memory.file().unwrap().as_raw_fd());
    let again = open(path, OFlags::RDWR, Mode::empty()).unwrap();
    assert_eq!(pwrite(again, b"x", 0), Err(Errno::PERM));
}
