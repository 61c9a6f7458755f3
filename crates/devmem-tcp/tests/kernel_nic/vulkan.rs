//! Memory of a Vulkan device, exported and bound to the NIC: crates/gvnic/lab/vulkan.sh runs it with Mesa's software driver.

use devmem_linux::test_util::skip;
use devmem_tcp::vulkan::{self, Device, VulkanError};
use devmem_tcp::{Dmabuf, Placement, RxBatch};

use crate::bench::{Bench, MEMORY_BYTES, PATIENCE, write};
use crate::common::pattern;

const BYTES: usize = 5_000_000;

/// The NIC and memory that is exported, or a word about why `test` is skipped.
fn exported(test: &str) -> Option<(Bench, Dmabuf)> {
    let memory = || {
        let memory = Device::open(0)?.alloc(MEMORY_BYTES)?;
        memory.export()?;
        Ok::<_, VulkanError>(memory.into_dmabuf())
    };
    match memory() {
        Ok(memory) => Some((Bench::new(test)?, memory)),
        Err(error) => {
            skip(test, "vulkan", &error.to_string().replace("\n ", ";"));
            None
        }
    }
}

#[test]
fn the_nic_receives_into_the_memory_of_a_device_that_gathers_it() {
    const TEST: &str = "the_nic_receives_into_the_memory_of_a_device_that_gathers_it";
    let Some((bench, memory)) = exported(TEST) else {
        return;
    };
    let target = vulkan::alloc(0, BYTES).unwrap();
    let receiver = bench.receiver_into(memory, 1);
    let (peer, mut stream) = receiver.connection(&bench);
    stream.set_placement(Placement::Strict);
    let sent = pattern(BYTES);
    let writer = write(peer, sent.clone());
    let (mut batch, mut at) = (RxBatch::with_capacity(256), 0);
    while stream.recv(&mut batch).unwrap() > 0 {
        let gather = batch.start_gather(&target, at).unwrap();
        assert_eq!(gather.fences().count(), 1, "one command of the device");
        at += gather.wait().unwrap();
    }
    writer.join().unwrap();
    assert!(target.slice(0..at).to_vec() == sent, "the bytes differ");
    let stats = stream.stats();
    assert_eq!((stats.device_bytes, stats.linear_bytes), (BYTES as u64, 0));
    println!("{stats}");
}

#[test]
fn the_nic_sends_from_the_memory_of_a_device() {
    const TEST: &str = "the_nic_sends_from_the_memory_of_a_device";
    let Some((bench, memory)) = exported(TEST) else {
        return;
    };
    let bytes = pattern(memory.size());
    memory.copy_in(0, &bytes).unwrap();
    let tx = bench.nic.bind_tx(&memory).unwrap();
    let (mut stream, reader) = bench.connect_to_reader();
    let completions = stream.completions();
    completions.set_timeout(Some(PATIENCE));
    let whole = 0..memory.size();
    let id = stream.send_all(&tx, std::slice::from_ref(&whole)).unwrap();
    completions.wait(id).unwrap();
    assert_eq!((id.bytes(), tx.in_flight()), (memory.size(), 0));
    drop(stream);
    assert!(reader.join().unwrap() == bytes, "the bytes differ");
}
