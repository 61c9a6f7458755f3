//! The contract of memory providers, with memory of a device.

use std::sync::Arc;

use netmem::{DmabufId, MemoryProvider, NiovSize, contract};

use super::support::on_each;

#[test]
fn memory_of_a_device_keeps_the_contract_of_providers() {
    on_each(
        "polls=1",
        |api| {
            let memory = api.alloc(0, 1 << 20);
            for niov in [4096, 65_536] {
                let niov = NiovSize::new(niov).unwrap();
                let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov).unwrap();
                let provider: Arc<MemoryProvider> = Arc::new(provider);
                contract::check(&provider);
            }
        },
        |_, _| (),
    );
}
