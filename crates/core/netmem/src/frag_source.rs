//! Memory whose ranges a program names: frags are made by offset, nothing is allocated.
//!
//! Such memory is bound for sending, is a target of direct placement, or belongs to another process. Frags of
//! the same net_iov are made for any number of uses, at any byte (linux net/core/devmem.c
//! `net_devmem_get_niov_at`). What matters is when the last frag of
//! one *use* has been dropped: a send (linux `struct ubuf_info`), or a place. Each use therefore has a separate [`PoolShared`],
//! and every frag of it holds a reference to that, also after it was cut, shared or queued (send queue, neighbour
//! queue, NIC). When only the [`FragUse`] is left, no frag can reach the bytes any more.

use std::sync::{Arc, Weak};

use devmem_uapi::DmabufId;

use crate::dmabuf::Dmabuf;
use crate::errors::GeometryError;
use crate::frag::Frag;
use crate::frag_list::FragList;
use crate::memory::{Memory, OutOfBounds};
use crate::net_iov::{NetIovArea, NiovSize};
use crate::netmem::Netmem;
use crate::payload::Payload;
use crate::pool_shared::PoolShared;

/// Memory of which frags are made by offset, cut into net_iovs as large as its size allows.
#[doc(alias = "net_devmem_dmabuf_binding")]
#[derive(Debug)]
pub struct FragSource {
    area: Arc<NetIovArea>,
    /// `None`: memory of another process.
    id: Option<DmabufId>,
}

/// One use of such memory: makes its frags, and tells when the last of them has been dropped.
#[doc(alias = "ubuf_info")]
#[derive(Debug)]
pub struct FragUse {
    shared: Arc<PoolShared>,
}

/// Tells whether a use still has frags, without keeping any.
#[derive(Debug, Clone)]
pub struct UseObserver(Weak<PoolShared>);

impl UseObserver {
    /// Returns whether neither a frag nor the [`FragUse`] is left.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Returns whether frags may be left, and are of the memory of `dmabuf`.
    pub fn is_in(&self, dmabuf: &Dmabuf) -> bool {
        let shared = self.0.upgrade();
        shared.is_some_and(|shared| Arc::ptr_eq(shared.area().memory(), dmabuf.memory()))
    }
}

impl FragSource {
    /// Cuts all of `dmabuf` into net_iovs; frags of them have the dma-buf id `id`.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the size is not a positive multiple of the page.
    pub fn new(dmabuf: &Dmabuf, id: DmabufId) -> Result<Self, GeometryError> {
        let size = dmabuf.size();
        let memory = Arc::clone(dmabuf.memory());
        let area = NetIovArea::cut(memory, 0, size, NiovSize::largest_for(size))?;
        Ok(Self::of(area, Some(id)))
    }

    /// Covers memory of another process, which the stack may read. Its frags have no dma-buf id.
    pub(crate) fn of_peer(memory: Arc<Memory>) -> Self {
        Self::of(NetIovArea::cover(memory), None)
    }

    fn of(area: Arc<NetIovArea>, id: Option<DmabufId>) -> Self {
        // The binding's reference to each net_iov. So no frag is the only owner while others may be
        // made, which `NetIov::let_go` requires.
        area.slots().iter().for_each(|slot| slot.claim());
        FragSource { area, id }
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.area.memory().size()
    }

    /// Returns a handle to the memory.
    pub fn dmabuf(&self) -> Dmabuf {
        Dmabuf::of(Arc::clone(self.area.memory()))
    }

    /// Checks that a range is inside the memory.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        self.area.memory().check(offset, len)
    }

    /// Begins a use.
    pub fn begin(&self) -> FragUse {
        FragUse {
            shared: Arc::new(PoolShared::of_use(&self.area, self.id)),
        }
    }

    /// Returns the number of uses that still have frags or a [`FragUse`].
    pub fn in_flight(&self) -> usize {
        Arc::strong_count(&self.area) - 1
    }
}

impl Drop for FragSource {
    fn drop(&mut self) {
        for slot in self.area.slots() {
            // Nothing was allocated, so the last owner has nothing to send home.
            let _ = slot.let_go();
        }
    }
}

impl FragUse {
    /// Returns an observer of the frags of this use.
    pub fn observer(&self) -> UseObserver {
        UseObserver(Arc::downgrade(&self.shared))
    }

    /// Appends `len` bytes at `offset` of the memory to `list`, without copying them.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is appended.
    pub fn append(
        &self,
        offset: usize,
        len: usize,
        list: &mut FragList,
    ) -> Result<(), OutOfBounds> {
        let area = self.shared.area();
        area.memory().check(offset, len)?;
        let niov_size = area.niov_size().bytes();
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let within = at % niov_size;
            let n = left.min(niov_size - within);
            // The range lies inside an area whose net_iovs are counted in u32, of at most 2 MiB each.
            let netmem = Netmem::attach(&self.shared, (at / niov_size) as u32);
            list.push_merge(Frag::new(netmem, within as u32, n as u32));
            at += n;
            left -= n;
        }
        Ok(())
    }

    /// Checks that a range is inside the memory.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        self.shared.area().memory().check(offset, len)
    }

    /// Returns `len` bytes at `offset` of the memory.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    pub fn frags(&self, offset: usize, len: usize) -> Result<FragList, OutOfBounds> {
        let mut list = FragList::new();
        self.append(offset, len, &mut list)?;
        debug_assert_eq!(list.len(), len);
        Ok(list)
    }

    /// Returns whether no frag of this use is left, so that the memory may be changed. All accesses through the frags, on
    /// any thread, happened before.
    pub fn is_over(&mut self) -> bool {
        // Unlike `strong_count`, this synchronizes with the drops of the other references.
        Arc::get_mut(&mut self.shared).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma_port::DmaPort;

    fn memory(size: usize) -> (Dmabuf, FragSource) {
        let dmabuf = Dmabuf::anonymous(size).unwrap();
        let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        dmabuf.copy_in(0, &bytes).unwrap();
        let memory = FragSource::new(&dmabuf, DmabufId(3)).unwrap();
        (dmabuf, memory)
    }

    fn gather(list: &FragList) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frag in list {
            let at = bytes.len();
            bytes.resize(at + frag.len(), 0);
            DmaPort::new().copy_out(frag, 0, &mut bytes[at..]);
        }
        bytes
    }

    #[test]
    fn frags_cover_any_range_across_net_iovs() {
        // 5 pages: net_iovs of one page each.
        let (dmabuf, memory) = memory(5 * 4096);
        assert_eq!(memory.area.niov_size(), NiovSize::MIN);
        for (offset, len, frags) in [
            (0, 1, 1),
            (4095, 2, 2),
            (4096, 4096, 1),
            (1, 5 * 4096 - 1, 5),
            (0, 5 * 4096, 5),
            (5 * 4096, 0, 0),
        ] {
            let list = memory.begin().frags(offset, len).unwrap();
            assert_eq!(
                (list.frag_count(), list.len()),
                (frags, len),
                "{len} at {offset}"
            );
            assert_eq!(gather(&list), dmabuf.slice(offset..offset + len).to_vec());
            assert!(
                list.iter()
                    .all(|frag| frag.dmabuf_id() == Some(DmabufId(3)))
            );
            assert_eq!(list.is_unreadable(), len > 0);
        }
    }

    #[test]
    fn adjacent_ranges_become_one_frag() {
        let (_dmabuf, memory) = memory(4096);
        let send = memory.begin();
        let mut list = FragList::new();
        send.append(100, 50, &mut list).unwrap();
        send.append(150, 50, &mut list).unwrap();
        send.append(10, 90, &mut list).unwrap();
        assert_eq!((list.frag_count(), list.len()), (2, 190));
    }

    #[test]
    fn a_range_past_the_end_is_refused_and_appends_no_frag() {
        let (_dmabuf, memory) = memory(8192);
        let mut send = memory.begin();
        for (offset, len) in [
            (8192, 1),
            (0, 8193),
            (8191, 2),
            (usize::MAX, 1),
            (1, usize::MAX),
        ] {
            assert!(send.frags(offset, len).is_err(), "{len} at {offset}");
            assert!(memory.check(offset, len).is_err());
        }
        assert!(send.is_over());
    }

    #[test]
    fn a_send_is_over_when_its_last_frag_is_dropped_although_others_share_the_net_iov() {
        let (_dmabuf, memory) = memory(8192);
        let (mut first, mut second) = (memory.begin(), memory.begin());
        let mut one = first.frags(10, 5000).unwrap();
        let two = second.frags(10, 5000).unwrap();
        assert_eq!(memory.in_flight(), 2);
        let retransmission = one.share(100, 10);
        let front = one.split_off_front(4500);
        drop(one);
        assert!(!first.is_over());
        drop(front);
        assert!(!first.is_over(), "the share is left");
        std::thread::spawn(move || drop(retransmission))
            .join()
            .unwrap();
        assert!(first.is_over());
        assert!(!second.is_over());
        drop(two);
        assert!(second.is_over());
        drop((first, second));
        assert_eq!(memory.in_flight(), 0);
    }

    #[test]
    fn frags_keep_the_memory_of_a_dropped_binding_mapped() {
        let (dmabuf, memory) = memory(8192);
        let observer = dmabuf.observer();
        let send = memory.begin();
        let list = send.frags(4000, 200).unwrap();
        let expected = dmabuf.slice(4000..4200).to_vec();
        drop((dmabuf, memory, send));
        assert_eq!(gather(&list), expected);
        assert!(!observer.is_freed());
        drop(list);
        assert!(observer.is_freed());
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes take Miri minutes")]
    fn net_iovs_are_the_largest_that_divide_the_memory() {
        for (pages, niov) in [
            (1, 4096),
            (3, 4096),
            (16, 65_536),
            (24, 32_768),
            (1024, 2 << 20),
        ] {
            let (_dmabuf, memory) = memory(pages * 4096);
            assert_eq!(memory.area.niov_size().bytes(), niov, "{pages} pages");
        }
    }
}
