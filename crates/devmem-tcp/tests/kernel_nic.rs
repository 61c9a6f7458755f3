//! The kernel backend with device memory, on a NIC that can: `DEVMEM_TEST_NIC` names it (the lab does). It is in this
//! network namespace, with an address; the other end of its cable is an interface in the namespace `peer` (or the one
//! that `DEVMEM_TEST_PEER` names). Nothing else may use the NIC meanwhile.

#[cfg(feature = "tokio")]
#[path = "kernel_nic/awaited.rs"]
mod awaited;
#[path = "kernel_nic/bench.rs"]
#[allow(dead_code, reason = "the tests of NIXL use the rest")]
mod bench;
mod common;
#[path = "kernel_nic/example.rs"]
mod example;
#[path = "kernel_nic/receiving.rs"]
mod receiving;
#[path = "kernel_nic/sending.rs"]
mod sending;
#[cfg(feature = "vulkan")]
#[path = "kernel_nic/vulkan.rs"]
mod vulkan;
