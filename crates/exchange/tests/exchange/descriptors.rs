//! Memory that is registered by a descriptor.

use std::os::fd::AsFd;

use devmem_exchange::{Access, Event, Memory, RegisterError};
use devmem_linux::test_util::{GuestHas, skip_outside_guest};

use crate::world::{connect, host, pair, part, pattern, run};

#[test]
fn a_descriptor_may_be_closed_after_the_registration() {
    let dmabuf = match devmem_tcp::memory::udmabuf(64 << 10) {
        Ok(dmabuf) => dmabuf,
        Err(error) => {
            let test = "descriptors::a_descriptor_may_be_closed_after_the_registration";
            return skip_outside_guest(test, GuestHas::Udmabuf, &error.to_string());
        }
    };
    let (a, b) = pair("seed=1");
    let (ours, theirs) = connect(&a, &b);
    let bytes = pattern(1, 50_000);
    dmabuf.copy_in(4096, &bytes).unwrap();
    let fd = dmabuf.as_fd().expect("a dma-buf has a descriptor");
    let fd = fd.try_clone_to_owned().unwrap();
    let range = 4096..4096 + bytes.len();
    let source = a.register_range(Memory::Fd(fd.as_fd()), range, Access::PRIVATE);
    let source = source.unwrap();
    drop((fd, dmabuf));
    let (buffer, target) = host(&b, vec![0; bytes.len()]);
    theirs
        .receive(&[part(&target, 0..bytes.len(), 1)], 1)
        .unwrap();
    ours.send(&source, 0..bytes.len(), 1, 1).unwrap();
    let (_, of_b) = run(&ours, &theirs, 1, 1);
    assert!(matches!(of_b[..], [Event::Received { .. }]), "{of_b:?}");
    buffer.with(|got| assert!(*got == bytes));
}

#[test]
fn what_is_no_dma_buf_is_refused() {
    let (a, _b) = pair("seed=2");
    let file = std::fs::File::open("/dev/null").unwrap();
    let refused = a.register(Memory::Fd(file.as_fd()), Access::PRIVATE);
    assert!(
        matches!(refused, Err(RegisterError::Import(_))),
        "{refused:?}"
    );
}

#[test]
fn a_range_outside_of_a_memory_is_refused() {
    let (a, _b) = pair("seed=3");
    let (memory, _region) = crate::world::device(&a, &[0; 4096]);
    let refused = a.register_range(Memory::Device(&memory), 1..4097, Access::PRIVATE);
    assert!(
        matches!(
            refused,
            Err(RegisterError::OutOfBounds {
                end: 4097,
                size: 4096,
                ..
            })
        ),
        "{refused:?}"
    );
}
