//! What tests of agents with a pool share, over any NIC.

use crate::far::{Far, FarMemory, hex, pattern, until};
use crate::gpu::{GpuSide, moved};
use crate::loaded::{IN_PROGRESS, REMOTE_DISCONNECT, Range, SUCCESS, Transfer, paths};
use crate::near::{Near, end_of};
use crate::setup::Parameters;

/// Twice the data of the largest ring of the lab's NIC.
pub const POOL: (&str, &str) = ("pool", "16777216");

/// What does not fit into the buffers of the connections.
const LONG: usize = 16 << 20;

pub fn add(parameters: &mut Parameters, more: &[(&str, &str)]) {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    parameters.extend(more.iter().map(owned));
}

/// Returns a number of the agent of this name, as `paths` tells it.
pub fn number_of(agent: &str, what: &str) -> u64 {
    let all = paths();
    let is_of = |line: &&str| line.starts_with(&format!("{{\"agent\":\"{agent}\","));
    let line = all.lines().find(is_of).expect("a line of the agent");
    let (_, value) = line
        .split_once(&format!("\"{what}\":"))
        .expect("the number is told");
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Moves bytes between memories of both GPUs, and returns what this side's agent tells: copies, bytes by the NIC, bytes through host memory.
pub fn between_gpus(near: &Near, far: &mut Far) -> [u64; 3] {
    moved(near, far, true, true);
    ["copies", "device_bytes", "staged_bytes"].map(|what| number_of("near", what))
}

/// Returns all of a memory of both sides.
pub fn whole(near: &Near, side: &GpuSide, there: &FarMemory, len: usize) -> (Range, Range) {
    let remote = near.agent.load_region(&near.peer, &there.data);
    let range = |address, region| Range {
        address,
        len: len as u64,
        region,
    };
    let there = range(there.address, remote.expect("a region"));
    (range(side.address(), side.region), there)
}

/// Posts a read of an agent without a thread, and turns until the first bytes, of the pattern of a seed, are there. One turn moves less than all.
fn begin(read: &Transfer<'_>, to: &GpuSide, seed: u64) {
    assert_eq!(read.post(None), IN_PROGRESS);
    until("bytes of a read", || {
        assert_eq!(read.check(), IN_PROGRESS);
        (to.read(0, 8) == pattern(seed, 8)).then_some(())
    });
}

/// Kills the peer of an agent without a thread in the middle of a read, a write, and a write of the peer's, after `rest`, in which nobody here
/// takes what comes. All transfers end, and what was registered for them may be freed.
pub fn killed_in_mid_transfer(near: &Near, far: &mut Far, rest: impl FnOnce()) {
    let [to, from, into] = [1, 2, 3].map(|seed| GpuSide::new(&near.agent, LONG, seed));
    let [there, other, own] = [4, 5, 6].map(|seed| far.gpu(LONG, seed));
    let received = number_of("near", "received_bytes");
    far.begin(&format!(
        "write near {} {} {} {LONG}",
        own.number,
        hex(&near.agent.describe(into.region)),
        into.address()
    ));
    until("bytes of the peer's write", || {
        near.agent.notifications();
        (number_of("near", "received_bytes") > received).then_some(())
    });
    let read = near.transfer(false, &[whole(near, &to, &there, LONG)]);
    let write = near.transfer(true, &[whole(near, &from, &other, LONG)]);
    begin(&read, &to, 4);
    assert_eq!(write.post(None), IN_PROGRESS);
    rest();
    far.kill();
    for transfer in [read, write] {
        assert_eq!(end_of(&transfer), REMOTE_DISCONNECT);
    }
    for side in [&to, &from] {
        assert_eq!(near.agent.deregister(side.region), SUCCESS);
    }
    // The end of the peer's write may not have been seen. The memory is touched no more in any case.
    near.agent.deregister(into.region);
}

/// Gives up a read of an agent without a thread, after `rest`, in which nobody takes what comes. The bytes go nowhere, and the next transfers are
/// right.
pub fn cancelled_in_mid_transfer(near: &Near, far: &mut Far, rest: impl FnOnce()) {
    let to = GpuSide::new(&near.agent, LONG, 1);
    let there = far.gpu(LONG, 2);
    let read = near.transfer(false, &[whole(near, &to, &there, LONG)]);
    begin(&read, &to, 2);
    rest();
    drop(read);
    assert_eq!(near.agent.deregister(to.region), SUCCESS);
    let before = to.read(0, LONG);
    moved(near, far, true, true);
    assert!(to.read(0, LONG) == before);
}

/// Meets a peer that was started again, and moves bytes between memories of both GPUs.
pub fn met_again(near: &Near, far: &mut Far) {
    assert_eq!(near.agent.disconnect("far"), SUCCESS);
    near.introduce(far);
    moved(near, far, true, true);
}
