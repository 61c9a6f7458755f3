//! The example of a NIC of the kernel, on one that can receive into device memory.

use devmem_linux::test_util::{GuestHas, skip_outside_guest};

#[path = "../../examples/kernel_nic.rs"]
#[allow(dead_code, reason = "no stream arrives")]
mod kernel_nic;

#[test]
fn a_nic_of_the_kernel_is_set_up_and_restored() {
    let Ok(interface) = std::env::var("DEVMEM_TEST_NIC") else {
        let test = "example::a_nic_of_the_kernel_is_set_up_and_restored";
        return skip_outside_guest(test, GuestHas::Nic, "DEVMEM_TEST_NIC names no NIC");
    };
    drop(kernel_nic::Listening::on(&interface).unwrap());
}
