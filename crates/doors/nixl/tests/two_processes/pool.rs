//! Payload that a NIC with a stack in user space moves from and to memory of a GPU, the stand-in's or a real one's.

use devmem_linux::test_util::in_netns;
use devmem_tcp::cuda;

use crate::far::{Far, until};
use crate::gpu::{moved, with_gpus, with_plan};
use crate::loaded::{Agent, Memory, NOT_SUPPORTED, SUCCESS};
use crate::near::Near;
use crate::pooled::{
    POOL, add, between_gpus, cancelled_in_mid_transfer, killed_in_mid_transfer, met_again,
    number_of,
};
use crate::setup::{Parameters, Setup, use_setup};
use crate::ways::{TESTS, run, veth, wire};

/// Agents of this process have a stack at the end of a wire that waits for its peer.
fn alone() -> tempfile::TempDir {
    let (folder, Setup { far, .. }) = wire("none");
    use_setup(Setup {
        near: far,
        far: Parameters::new(),
    });
    folder
}

fn over_a_wire_with(impairment: &str) {
    let (_folder, mut setup) = wire(impairment);
    for side in [&mut setup.near, &mut setup.far] {
        add(side, &[POOL]);
    }
    use_setup(setup);
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let [copies, by_nic, staged] = between_gpus(&near, &mut far);
    assert_eq!(copies, 1);
    // All that was read, and of what was written the pieces that do not follow their record.
    let long = (1 << 20) + 800_000;
    assert_eq!((by_nic, staged), (2 * long + 8 + 11, 0));
    // A wire has one peer at a time.
    drop((near, far));
    for (near_is_gpu, far_is_gpu) in [(true, false), (false, true)] {
        let mut far = Far::start("far", true);
        let near = Near::meet(&mut far, true, &[]);
        moved(&near, &mut far, near_is_gpu, far_is_gpu);
    }
}

pub fn a_stack_receives_into_memory_of_a_gpu() {
    with_gpus("pool::a_stack_receives_into_memory_of_a_gpu", || {
        over_a_wire_with("none");
    });
}

pub fn a_stack_receives_into_memory_of_a_gpu_from_a_bad_wire() {
    let test = "pool::a_stack_receives_into_memory_of_a_gpu_from_a_bad_wire";
    with_gpus(test, || over_a_wire_with("loss=1%,reorder=2%,seed=11"));
}

/// One with a pool and one without: what goes through host memory does so on one side.
pub fn the_peer_needs_no_pool() {
    with_gpus("pool::the_peer_needs_no_pool", || {
        let (_folder, mut setup) = wire("none");
        add(&mut setup.near, &[POOL]);
        use_setup(setup);
        let mut far = Far::start("far", true);
        let near = Near::meet(&mut far, true, &[]);
        let [copies, by_nic, staged] = between_gpus(&near, &mut far);
        assert_eq!((copies, staged), (1, 0));
        assert!(by_nic > 0);
    });
}

pub fn what_cannot_be_had_is_refused() {
    with_plan("pool::what_cannot_be_had_is_refused", "devices=2", || {
        use_setup(Setup::default());
        for way in ["auto", "sockets", "unix", "kernel:lo", "tap:nixl-none"] {
            let mut given = vec![("way", way), ("require", "device")];
            if way.starts_with("tap") {
                given.push(("address", "10.98.0.1/24"));
            }
            let refused = Agent::open("near", true, &given).err();
            assert_eq!(refused, Some(NOT_SUPPORTED), "{way}");
        }
        let _folder = alone();
        let far_away = [POOL, ("gpu", "77")];
        assert!(Agent::open("near", true, &far_away).is_err());
        let agent = Agent::open("near", true, &[POOL, ("gpu", "0")]).expect("an agent");
        let host = Memory::new(4096);
        assert_eq!(agent.deregister(agent.register(&host)), SUCCESS);
        if cuda::devices().is_ok_and(|all| all.len() > 1) {
            let other = cuda::open(1).expect("a GPU").alloc(4096).expect("memory");
            let refused = agent.register_gpu(other.device_ptr(), 4096);
            assert_eq!(refused, Err(NOT_SUPPORTED));
        }
    });
}

pub fn without_a_gpu_there_is_no_pool() {
    let test = "pool::without_a_gpu_there_is_no_pool";
    with_plan(test, "devices=0", || {
        if cuda::devices().is_ok_and(|all| !all.is_empty()) {
            return println!("SKIP {test}: there is a GPU");
        }
        let _folder = alone();
        let refused = Agent::open("near", true, &[POOL]).err();
        assert_eq!(refused, Some(NOT_SUPPORTED));
    });
}

/// All memory of the GPU in the process of the test.
const GPU_BYTES: usize = 128 << 20;

/// Runs a test, of this name, with a pool on either side of an Ethernet. The agent here has no thread. Afterwards, all memory of its GPU is free.
fn on_ethernet(test: &str, body: impl FnOnce(&Near, &mut Far)) {
    let plan = format!("devices=1,memory={GPU_BYTES}");
    let run = || {
        let mut setup = veth();
        for side in [&mut setup.near, &mut setup.far] {
            add(side, &[POOL]);
        }
        use_setup(setup);
        let mut far = Far::start("far", true);
        let near = Near::meet(&mut far, false, &[]);
        body(&near, &mut far);
        drop(near);
        until("all memory of the GPU", || {
            cuda::open(0).expect("a GPU").alloc(GPU_BYTES).ok()
        });
    };
    in_netns(test, || with_plan(test, &plan, run));
}

/// Waits until payload that nobody here takes fills so much of the pool that an idle page pool would keep less.
fn wait_for_payload() {
    until("payload in the pool", || {
        let [all, home] = ["pool_net_iovs", "pool_home"].map(|what| number_of("near", what));
        (home < all / 2).then_some(())
    });
}

/// Waits until no more than an idle page pool keeps, a quarter of the pool, is out in addition to what was out before.
fn wait_for_home(before: u64) {
    let kept = number_of("near", "pool_net_iovs") / 4;
    until("the net_iovs are home", || {
        (number_of("near", "pool_home") + kept >= before).then_some(())
    });
}

/// Twice: once might leave enough of the pool.
pub fn a_peer_is_killed_in_mid_transfer_and_comes_back() {
    const TEST: &str = "pool::a_peer_is_killed_in_mid_transfer_and_comes_back";
    on_ethernet(TEST, |near, far| {
        let home = number_of("near", "pool_home");
        for _ in 0..2 {
            killed_in_mid_transfer(near, far, wait_for_payload);
            wait_for_home(home);
            *far = Far::start("far", true);
            met_again(near, far);
        }
    });
}

pub fn a_cancelled_read_leaves_the_pool() {
    const TEST: &str = "pool::a_cancelled_read_leaves_the_pool";
    on_ethernet(TEST, |near, far| {
        let home = number_of("near", "pool_home");
        cancelled_in_mid_transfer(near, far, wait_for_payload);
        wait_for_home(home);
    });
}

/// Host memory, which the GPU copies to.
pub fn what_works_without_a_pool_works_with_one() {
    const TEST: &str = "pool::what_works_without_a_pool_works_with_one";
    with_gpus(TEST, || {
        let (_folder, mut setup) = wire("none");
        for side in [&mut setup.near, &mut setup.far] {
            add(side, &[POOL]);
        }
        run(&setup, &[TESTS]);
    });
}
