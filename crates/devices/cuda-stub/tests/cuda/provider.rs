//! The contract of memory providers, with memory of a device.

use std::sync::Arc;

use devmem_cuda::open;
use netmem::{DmabufId, DmabufProvider, MemoryProvider, NiovSize, contract};

use super::support::{memory, with_stub};

#[test]
fn memory_of_a_device_keeps_the_contract_of_providers() {
    let log = with_stub("polls=1", || {
        let memory = memory(&open(0).unwrap(), 1 << 20);
        for niov in [4096, 65_536] {
            let niov = NiovSize::new(niov).unwrap();
            let provider = DmabufProvider::new(&memory, DmabufId(1), niov).unwrap();
            let provider: Arc<dyn MemoryProvider> = Arc::new(provider);
            contract::check(&provider);
        }
    });
    if let Some(log) = log {
        log.assert_all_freed();
    }
}
