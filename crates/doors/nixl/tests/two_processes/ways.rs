//! The ways of the library: what works over the kernel's sockets works over a stack in user space, and between both.

use devmem_linux::netif::Interface;
use devmem_linux::tap::TapOptions;
use devmem_linux::test_util::{in_netns, skip};
use devmem_tcp::{ErrorKind, Netdev};

use crate::loaded::{Agent, paths};
use crate::setup::{Parameters, Setup, use_setup};
use crate::{failures, transfers};

/// What works over each of them. In the other tests, agents know addresses of this machine, or have several in one process.
pub const TESTS: &[fn()] = &[
    transfers::reads_and_writes_of_all_sizes_arrive_with_their_notifications,
    transfers::without_threads_calls_make_progress,
    transfers::many_descriptors_are_scattered_and_gathered,
    transfers::a_hundred_thousand_descriptors_of_many_regions_arrive,
    transfers::notifications_of_all_sizes_keep_their_order,
    transfers::a_transfer_is_posted_again_and_again,
    transfers::several_threads_post_and_check_at_a_time,
    transfers::both_sides_write_at_a_time,
    failures::a_transfer_that_goes_on_is_not_posted_again,
    failures::a_cancelled_read_leaves_the_memory_alone,
    failures::a_cancelled_write_gives_no_notification,
    failures::a_peer_is_disconnected_and_connected_again,
    failures::deregistered_memory_is_touched_no_more,
    failures::ranges_that_are_not_registered_are_refused,
    failures::memory_that_the_peer_deregistered_is_refused_by_it,
    failures::a_child_of_fork_has_no_agent,
];

/// Those that move bytes: on an Ethernet, where each agent asks first whether its address is free, and where the rest is what it is on a wire.
const MOVES: &[fn()] = &[
    transfers::reads_and_writes_of_all_sizes_arrive_with_their_notifications,
    transfers::descriptors_are_scattered_and_gathered_over_several_connections,
    transfers::notifications_of_all_sizes_keep_their_order,
    transfers::both_sides_write_at_a_time,
];

/// A peer that is killed.
const KILLED: &[fn()] =
    &[failures::a_peer_that_is_killed_in_the_middle_of_transfers_is_a_disconnect];

pub fn run(setup: &Setup, tests: &[&[fn()]]) {
    use_setup(setup.clone());
    for test in tests.iter().copied().flatten() {
        test();
    }
}

fn parameters(given: &[(&str, &str)]) -> Parameters {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    given.iter().map(owned).collect()
}

/// Two NICs on a wire between two processes.
pub fn wire(impairment: &str) -> (tempfile::TempDir, Setup) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("wire").display().to_string();
    let end = |kind: &str, address| {
        let way = format!("{kind}:{path}");
        parameters(&[("way", &way), ("address", address), ("impair", impairment)])
    };
    let setup = Setup {
        near: end("unix", "10.77.0.1/24"),
        far: end("unix-listen", "10.77.0.2/24"),
    };
    (folder, setup)
}

pub fn over_a_wire() {
    let (_folder, setup) = wire("none");
    run(&setup, &[TESTS]);
}

pub fn over_a_wire_with_loss_and_reordering() {
    let (_folder, setup) = wire("loss=1%,reorder=2%,seed=7");
    run(&setup, &[TESTS]);
}

/// A peer that does not answer for so many seconds is gone. On a busy machine, one that lives may take a while.
const TIMEOUT: (&str, &str) = ("timeout", "5");

/// Makes a TAP, and returns the parameters of a stack on it and of the kernel's sockets at its other end.
fn tap() -> [Parameters; 2] {
    let tap = TapOptions::new("nixl0".to_owned()).open().expect("a TAP");
    let address = [10, 99, 0, 1].into();
    let settings = tap.set_up_interface(1500, &[(address, 24)]);
    // Nothing is restored of an interface that was just made.
    drop(settings.expect("the kernel's end"));
    tap.set_persistent(true)
        .expect("it outlives its descriptor");
    [
        parameters(&[("way", "tap:nixl0"), ("address", "10.99.0.2/24"), TIMEOUT]),
        parameters(&[("way", "sockets"), ("address", "10.99.0.1"), TIMEOUT]),
    ]
}

pub fn from_a_stack_on_a_tap_to_the_kernel() {
    in_netns("ways::from_a_stack_on_a_tap_to_the_kernel", || {
        let [near, far] = tap();
        run(&Setup { near, far }, &[MOVES, KILLED]);
    });
}

pub fn from_the_kernel_to_a_stack_on_a_tap() {
    in_netns("ways::from_the_kernel_to_a_stack_on_a_tap", || {
        let [far, near] = tap();
        run(&Setup { near, far }, &[MOVES, KILLED]);
    });
}

/// Makes a veth pair, and returns the set-up of two stacks on it.
pub fn veth() -> Setup {
    let (first, second) = Interface::create_veth_pair("nixl1", "nixl2").expect("a veth pair");
    for mut end in [first, second] {
        end.set_up().expect("an end of it");
    }
    let end = |way, address| parameters(&[("way", way), ("address", address), TIMEOUT]);
    Setup {
        near: end("packet:nixl1", "10.98.0.1/24"),
        far: end("packet:nixl2", "10.98.0.2/24"),
    }
}

pub fn over_packet_sockets() {
    in_netns("ways::over_packet_sockets", || {
        run(&veth(), &[MOVES, KILLED]);
    });
}

pub fn over_macvtaps() {
    const TEST: &str = "ways::over_macvtaps";
    in_netns(TEST, || {
        let setup = veth();
        let end = |way, address| parameters(&[("way", way), ("address", address), TIMEOUT]);
        let opened = Netdev::user("macvtap:nixl1", "10.98.0.3/24");
        let cannot_be_had = |error: &devmem_tcp::Error| {
            let kind = error.kind();
            matches!(kind, ErrorKind::Unsupported | ErrorKind::PermissionDenied)
        };
        match opened.map(drop) {
            Err(error) if cannot_be_had(&error) => skip(TEST, "macvtap", &error.to_string()),
            opened => {
                opened.expect("a macvtap");
                let near = end("macvtap:nixl1", "10.98.0.1/24");
                run(&Setup { near, ..setup }, &[MOVES, KILLED]);
            }
        }
    });
}

pub fn over_packet_sockets_that_lose_and_reorder() {
    in_netns("ways::over_packet_sockets_that_lose_and_reorder", || {
        let mut setup = veth();
        for end in [&mut setup.near, &mut setup.far] {
            end.extend(parameters(&[("impair", "loss=1%,reorder=2%,seed=9")]));
        }
        run(&setup, &[MOVES]);
    });
}

pub fn a_way_that_cannot_be_had_is_refused_with_its_reason() {
    for (way, address) in [
        ("packet:nixl-none", "10.98.0.1/24"),
        ("kernel:nixl-none", ""),
        ("unix:/nonexistent/wire", "10.98.0.1/24"),
        ("packet:lo", ""),
    ] {
        let given = [("way", way), ("address", address)];
        assert!(Agent::open("near", true, &given).is_err(), "{way}");
    }
}

pub fn the_kernels_interface_is_a_way() {
    let lo = parameters(&[("way", "kernel:lo")]);
    let setup = Setup {
        near: lo.clone(),
        far: lo,
    };
    run(&setup, &[TESTS, KILLED]);
    let agent = Agent::open("with a way", true, &[]).expect("an agent");
    let all = paths();
    let line = all.lines().find(|line| line.contains("with a way"));
    let line = line.expect("a line of this agent");
    assert!(
        line.contains("\"way\":\"kernel:lo\",\"copies\":1,"),
        "{line}"
    );
    drop(agent);
}
