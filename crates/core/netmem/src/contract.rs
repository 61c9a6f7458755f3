//! What a NIC does with a provider, as a test for any memory.

use std::sync::Arc;
use std::thread;

use crate::device::{CopyEngine, Lane};
use crate::dma_port::DmaPort;
use crate::provider::MemoryProvider;
use crate::staging::StagedCopies;
use crate::{Frag, FragList, Netmem, PagePool};

/// Checks a new provider of at least 8 net_iovs, none of which is allocated.
///
/// # Panics
///
/// When bytes or net_iovs get lost.
pub fn check(provider: &Arc<MemoryProvider>) {
    let count = provider.area().count();
    assert!(count >= 8, "a provider of 8 or more net_iovs");
    assert_eq!(
        provider.free_niovs(),
        count,
        "a fresh provider has all of its net_iovs"
    );
    two_pools(provider);
    late_homecomers(provider);
    assert_eq!(provider.free_niovs(), count, "all net_iovs are home");
}

/// Two pools at once have separate memory.
fn two_pools(provider: &Arc<MemoryProvider>) {
    let create = || PagePool::new(Arc::clone(provider));
    let (mut one, mut two, mut access) = (create(), create(), Access::to(provider));
    assert_ne!(one.id(), two.id());
    let size = one.niov_size().bytes();
    let mut netmems: Vec<Netmem> = (0..4)
        .filter_map(|i| [&mut one, &mut two][i % 2].alloc())
        .collect();
    assert_eq!(netmems.len(), 4);
    for (netmem, fill) in netmems.iter().zip(1..) {
        access.write(netmem, &vec![fill; size]);
    }
    let frags: Vec<Frag> = netmems
        .drain(..)
        .map(|netmem| Frag::new(netmem, 0, size as u32))
        .collect();
    for (frag, fill) in frags.iter().zip(1..) {
        let out = access.read(frag);
        assert!(
            out.iter().all(|&byte| byte == fill),
            "net_iovs do not overlap"
        );
        assert_eq!(frag.is_readable(), provider.dmabuf_id().is_none());
        assert_eq!(frag.dmabuf_id(), provider.dmabuf_id());
        assert_eq!(frag.dmabuf_offset() % size as u64, 0);
    }
    access.copy(&frags[3], frags[0].netmem());
    assert_eq!(access.read(&frags[0]), access.read(&frags[3]));
    let homes: Vec<_> = frags.iter().map(|frag| frag.netmem().pool_id()).collect();
    assert_eq!(homes, [one.id(), two.id(), one.id(), two.id()]);
    // Each goes home to its pool, whether it is recycled by that pool or the other one, or dropped.
    for netmem in frags.into_iter().take(2).map(Frag::into_netmem) {
        one.recycle(netmem);
    }
    one.assert_all_home();
    two.assert_all_home();
}

/// Net_iovs that another thread drops after their pool was dropped are released.
fn late_homecomers(provider: &Arc<MemoryProvider>) {
    let before = provider.free_niovs();
    let mut pool = PagePool::new(Arc::clone(provider));
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(4, &mut out), 4);
    let shared = out[0].share();
    drop(pool);
    assert_eq!(
        provider.free_niovs(),
        before - 4,
        "the pool gave back what was not out"
    );
    thread::spawn(move || drop(out)).join().expect("no panic");
    assert_eq!(provider.free_niovs(), before - 1, "one has an owner yet");
    thread::spawn(move || drop(shared))
        .join()
        .expect("no panic");
    assert_eq!(provider.free_niovs(), before);
}

/// Access to net_iovs as a NIC has it: through a port, or by the engine of a device.
struct Access {
    port: DmaPort,
    /// The engine, and host memory that is pinned for it.
    device: Option<(Arc<dyn CopyEngine>, PagePool)>,
}

impl Access {
    fn to(provider: &Arc<MemoryProvider>) -> Self {
        let area = provider.area();
        let device = area.copy_engine().map(|engine| {
            let niov = area.niov_size();
            let ring = MemoryProvider::pinned(16 * niov.bytes(), niov, engine);
            let ring = Arc::new(ring.expect("memory to pin"));
            let pool = PagePool::new(ring);
            (Arc::clone(engine), pool)
        });
        let port = DmaPort::new();
        Access { port, device }
    }

    fn write(&mut self, netmem: &Netmem, bytes: &[u8]) {
        let Some((engine, ring)) = &mut self.device else {
            return self.port.copy_in(netmem, 0, bytes);
        };
        let host = ring.alloc().expect("a net_iov");
        self.port.copy_in(&host, 0, bytes);
        let mut copies = self.port.staged_copies(engine, Lane::In);
        let len = bytes.len() as u32;
        copies.add(&list(host, len), &list(netmem.share(), len));
        wait(copies);
    }

    fn read(&mut self, frag: &Frag) -> Vec<u8> {
        let mut out = vec![0; frag.len()];
        let Some((engine, ring)) = &mut self.device else {
            self.port.copy_out(frag, 0, &mut out);
            return out;
        };
        let host = list(ring.alloc().expect("a net_iov"), frag.len() as u32);
        let mut copies = self.port.staged_copies(engine, Lane::Out);
        let mut device = FragList::new();
        device.push(frag.share(0..frag.len()));
        copies.add(&host, &device);
        wait(copies);
        for piece in &host {
            self.port.copy_out(piece, 0, &mut out);
        }
        out
    }

    fn copy(&self, frag: &Frag, netmem: &Netmem) {
        match &self.device {
            None => self.port.copy(frag, netmem, 0),
            Some(_) => {
                let copied = self.port.copy_by_device(frag, netmem, 0);
                copied.expect("the device copies");
            }
        }
    }
}

fn list(netmem: Netmem, len: u32) -> FragList {
    let mut list = FragList::new();
    list.push(Frag::new(netmem, 0, len));
    list
}

fn wait(copies: StagedCopies) {
    let mut flight = copies.submit().expect("the device copies");
    while !flight.is_done().expect("the device copies") {}
}
