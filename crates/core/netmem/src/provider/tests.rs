use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use devmem_uapi::DmabufId;

use super::*;
use crate::contract;
use crate::dma_port::DmaPort;
use crate::{
    BufSpan, Dmabuf, DmabufError, Frag, FragList, GeometryError, NiovSize, PagePool, Unreadable,
};

const NIOV: usize = 4096;

fn small() -> NiovSize {
    NiovSize::new(NIOV).unwrap()
}

#[test]
fn the_host_provider_keeps_the_contract() {
    let provider: Arc<MemoryProvider> = Arc::new(MemoryProvider::host(16 * NIOV, small()).unwrap());
    contract::check(&provider);
}

#[test]
fn the_dmabuf_provider_keeps_the_contract() {
    let dmabuf = Dmabuf::anonymous(80 * NIOV).unwrap();
    let provider: Arc<MemoryProvider> =
        Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(7), small()).unwrap());
    contract::check(&provider);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "looks at every byte; the provider of a whole one is the same"
)]
fn a_provider_of_part_of_a_dmabuf_keeps_the_contract() {
    let dmabuf = Dmabuf::anonymous(16 * NIOV).unwrap();
    let range = 4 * NIOV..12 * NIOV;
    let provider: Arc<MemoryProvider> =
        Arc::new(MemoryProvider::of_range(&dmabuf, range, DmabufId(7), small()).unwrap());
    contract::check(&provider);
    assert!(
        dmabuf
            .slice(0..4 * NIOV)
            .to_vec()
            .iter()
            .all(|&byte| byte == 0),
        "before the range"
    );
    assert!(
        dmabuf
            .slice(12 * NIOV..16 * NIOV)
            .to_vec()
            .iter()
            .all(|&byte| byte == 0),
        "after it"
    );
    assert!(
        dmabuf
            .slice(4 * NIOV..8 * NIOV)
            .to_vec()
            .iter()
            .all(|&byte| byte != 0),
        "its net_iovs"
    );
}

#[test]
fn the_provider_of_opaque_memory_keeps_the_contract() {
    let dmabuf = Dmabuf::opaque(16 * NIOV).unwrap();
    let provider: Arc<MemoryProvider> =
        Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(7), small()).unwrap());
    contract::check(&provider);
}

#[test]
fn every_access_to_opaque_memory_panics_except_by_the_port() {
    let dmabuf = Dmabuf::opaque(8 * NIOV).unwrap();
    let provider = MemoryProvider::of_dmabuf(&dmabuf, DmabufId(7), small()).unwrap();
    let mut pool = PagePool::new(Arc::new(provider));
    let port = DmaPort::new();
    let netmem = pool.alloc().unwrap();
    port.copy_in(&netmem, 10, b"payload");
    let frag = Frag::new(netmem, 10, 7);
    let looks: [(&str, &dyn Fn()); 4] = [
        ("copy_to", &|| {
            frag.copy_to(0, &mut [0; 1]).unwrap_or_default()
        }),
        ("copy_out", &|| {
            dmabuf.copy_out(0, &mut [0; 1]).unwrap_or_default()
        }),
        ("to_vec", &|| assert_eq!(dmabuf.slice(0..1).to_vec(), [0])),
        ("copy_in", &|| {
            dmabuf.copy_in(0, &[0; 1]).unwrap_or_default()
        }),
    ];
    for (name, look) in looks {
        let panic = catch_unwind(AssertUnwindSafe(look)).expect_err(name);
        let text = panic.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(text.contains("opaque device memory"), "{name}: {text}");
    }
    let mut seen = [0; 7];
    port.copy_out(&frag, 0, &mut seen);
    assert_eq!(&seen, b"payload");
    dmabuf.device_read(usize::try_from(frag.dmabuf_offset()).unwrap(), &mut seen);
    assert_eq!(&seen, b"payload");
    drop(frag);
    pool.assert_all_home();
}

#[test]
fn device_memory_is_read_by_its_owner_and_not_by_the_stack() {
    let dmabuf = Dmabuf::anonymous(8 * NIOV).unwrap();
    let provider = Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), small()).unwrap());
    let mut pool = PagePool::new(provider);
    let port = DmaPort::new();
    let netmem = pool.alloc().unwrap();
    port.copy_in(&netmem, 100, b"payload");
    let frag = Frag::new(netmem, 100, 7);
    assert_eq!(frag.copy_to(0, &mut [0; 7]), Err(Unreadable));
    let offset = usize::try_from(frag.dmabuf_offset()).unwrap();
    assert_eq!(
        dmabuf.slice(offset..offset + frag.len()).to_vec(),
        b"payload"
    );
    pool.recycle(frag.into_netmem());
    pool.assert_all_home();
}

#[test]
fn memory_is_unmapped_when_the_last_net_iov_is_home_and_not_before() {
    let dmabuf = Dmabuf::anonymous(8 * NIOV).unwrap();
    let memory = dmabuf.observer();
    let provider = Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), small()).unwrap());
    let mut pool = PagePool::new(provider);
    let port = DmaPort::new();
    let netmem = pool.alloc().unwrap();
    drop((dmabuf, pool));
    assert!(!memory.is_freed());
    port.copy_in(&netmem, 0, b"still there");
    let late = netmem.share();
    drop(netmem);
    assert!(!memory.is_freed());
    assert_eq!(
        port.checksum(BufSpan {
            netmem: &late,
            offset: 0,
            len: 2
        }),
        0x7374
    );
    drop(late);
    assert!(memory.is_freed());
}

#[test]
fn host_bytes_are_copied_to_several_pages_and_read_back() {
    let provider = Arc::new(MemoryProvider::host(8 * NIOV, small()).unwrap());
    let mut pool = PagePool::new(provider);
    let bytes: Vec<u8> = (0..2 * NIOV + 100).map(|i| (i % 251) as u8).collect();
    let list = FragList::from_host_bytes(&mut pool, &bytes).unwrap();
    assert_eq!((list.frag_count(), list.is_unreadable()), (3, false));
    let mut out = vec![0; bytes.len()];
    for (frag, out) in list.iter().zip(out.chunks_mut(NIOV)) {
        frag.copy_to(0, out).unwrap();
    }
    assert_eq!(out, bytes);
    assert!(
        FragList::from_host_bytes(&mut pool, &[0; 6 * NIOV]).is_none(),
        "five pages are left"
    );
    drop(list);
    pool.assert_all_home();
}

#[test]
fn refused_geometries_name_a_valid_one() {
    let dmabuf = Dmabuf::anonymous(24 * NIOV).unwrap();
    let of = |base, len, niov: usize| {
        let niov = NiovSize::new(niov)?;
        let memory = Arc::clone(dmabuf.memory());
        crate::NetIovArea::cut(memory, base, len, niov).map(|area| area.count())
    };
    assert_eq!(of(0, 24 * NIOV, NIOV), Ok(24));
    assert_eq!(of(16 * NIOV, 8 * NIOV, 2 * NIOV), Ok(4));
    assert_eq!(
        of(0, NIOV, 2048),
        Err(GeometryError::NiovSize { bytes: 2048 })
    );
    assert_eq!(
        of(0, NIOV, 12288),
        Err(GeometryError::NiovSize { bytes: 12288 })
    );
    assert_eq!(
        of(0, NIOV, 4 << 20),
        Err(GeometryError::NiovSize { bytes: 4 << 20 })
    );
    assert_eq!(of(0, 0, NIOV), Err(GeometryError::Empty { niov: NIOV }));
    let (niov, len) = (16 * NIOV, 24 * NIOV);
    assert_eq!(
        of(0, len, niov),
        Err(GeometryError::Length {
            len,
            niov,
            next: 32 * NIOV
        })
    );
    assert_eq!(
        of(NIOV, niov, niov),
        Err(GeometryError::Base { base: NIOV, niov })
    );
    let past = GeometryError::PastEnd {
        base: 24 * NIOV,
        len: NIOV,
        size: 24 * NIOV,
    };
    assert_eq!(of(24 * NIOV, NIOV, NIOV), Err(past));
    assert!(of(1 << 63, 1 << 63, NIOV).is_err(), "sums that wrap");
    let text = GeometryError::Length {
        len,
        niov,
        next: 32 * NIOV,
    }
    .to_string();
    for number in ["98304", "65536", "131072"] {
        assert!(text.contains(number), "{text}");
    }
    let error = MemoryProvider::host(5 * NIOV, NiovSize::new(2 * NIOV).unwrap())
        .err()
        .unwrap();
    assert!(
        matches!(error, DmabufError::Geometry(GeometryError::Length { .. })),
        "{error}"
    );
}

#[test]
fn net_iov_sizes_are_displayed_with_units() {
    let text = |bytes| NiovSize::new(bytes).unwrap().to_string();
    assert_eq!(
        (text(4096), text(1 << 16), text(2 << 20)),
        ("4 KiB".into(), "64 KiB".into(), "2 MiB".into())
    );
    assert_eq!(
        (NiovSize::default().bytes(), NiovSize::MAX.bytes()),
        (65536, 2 << 20)
    );
}
