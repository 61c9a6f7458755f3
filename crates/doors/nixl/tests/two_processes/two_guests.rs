//! Between two guests of the lab, each with its own kernel and one NIC, at both ends of a wire. In the first one this program is the other process
//! of the tests, and waits for the second one, which runs them.

use std::net::{Ipv4Addr, SocketAddr};

use devmem_linux::test_util::skip;

use crate::far::{Far, play_at};
use crate::gpu::with_plan;
use crate::kernel_nics::{PLAN, end, rate};
use crate::near::Near;
use crate::pooled::between_gpus;
use crate::setup::{Setup, use_setup};

/// Which guest of a pair this is (`devmem-tcp lab run --pair`).
const GUEST: &str = "DEVMEM_TEST_GUEST";

/// Where the first guest waits.
const FIRST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 5210);

/// The NIC of either guest.
const NIC: &str = "eth0";

/// Is the other process, in the first guest of a pair. Returns whether this is that guest.
pub fn play_in_first_guest() -> bool {
    let is_first = std::env::var(GUEST).is_ok_and(|guest| guest == "0");
    if is_first {
        with_plan("two_guests", PLAN, || play_at("far", FIRST));
    }
    is_first
}

/// The memory of the stand-in's GPU is a dma-buf in either guest: the NICs read and write it, and no CPU can.
pub fn move_payload_between_gpus_and_no_cpu_copies_it() {
    const TEST: &str = "two_guests::move_payload_between_gpus_and_no_cpu_copies_it";
    if std::env::var_os(GUEST).is_none() {
        let reason = "two guests of the lab run this test: .ci/run --only lab";
        return skip(TEST, "pair", reason);
    }
    with_plan(TEST, PLAN, || {
        use_setup(Setup {
            near: end(NIC),
            far: end(NIC),
        });
        let mut far = Far::call("far", FIRST, true);
        let near = Near::meet(&mut far, true, &[]);
        let [copies, by_nic, staged] = between_gpus(&near, &mut far);
        assert_eq!((copies, staged), (0, 0));
        // Also the short list, which follows no record here.
        assert_eq!(by_nic, 2 * (8 + (1 << 20) + 11 + 800_000));
        rate(&near, &mut far);
        drop(near);
        far.tell("close");
    });
}
