//! Two fabrics in one process, connected in different ways.

use devmem_exchange::{
    Access, Buffer, Endpoint, Event, Fabric, Memory, Options, Part, Pool, Region,
};
use devmem_tcp::{Dmabuf, Netdev};
use std::sync::Arc;

/// Turns without any progress after which a test fails. In virtual time each turn without work advances the clock to the
/// next deadline, so these are many timeouts.
pub const IDLE_TURNS: usize = 20_000;

pub fn options() -> Options {
    Options {
        chunk: 16 << 10,
        streams: 3,
        ..Options::default()
    }
}

/// Two fabrics on a wire in virtual time.
pub fn pair(impairment: &str) -> (Fabric, Fabric) {
    pair_with(impairment, options())
}

pub fn pair_with(impairment: &str, options: Options) -> (Fabric, Fabric) {
    pair_of(impairment, options.clone(), options)
}

/// Two fabrics with different options.
pub fn pair_of(impairment: &str, ours: Options, theirs: Options) -> (Fabric, Fabric) {
    let (a, b) = Netdev::pair(impairment.parse().unwrap()).unwrap();
    (
        Fabric::open(a, ours).unwrap(),
        Fabric::open(b, theirs).unwrap(),
    )
}

/// Two fabrics of which the second one receives into device memory.
pub fn pair_with_pool(impairment: &str, pool: usize) -> (Fabric, Fabric) {
    let memory = Dmabuf::anonymous(pool).unwrap();
    let mut theirs = options();
    theirs.pool = Some(Pool { memory, queues: 2 });
    pair_of(impairment, options(), theirs)
}

/// An endpoint of each fabric, connected to each other.
pub fn connect(a: &Fabric, b: &Fabric) -> (Endpoint, Endpoint) {
    let listener = b.listen().unwrap();
    let mut dial = a.dial(&listener.ticket()).unwrap();
    let (mut ours, mut theirs) = (None, None);
    for _ in 0..IDLE_TURNS {
        ours = ours.or(dial.poll().unwrap());
        theirs = theirs.or(listener.poll().unwrap());
        if ours.is_some() && theirs.is_some() {
            break;
        }
    }
    (ours.expect("dialled"), theirs.expect("accepted"))
}

/// After so many bytes a pattern repeats. It is prime: of what is moved in whole pages, no two places in 16 MiB have the same bytes.
const PERIOD: usize = 4099;

/// Bytes that differ by seed and position. One period is computed, the rest copied.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len.max(PERIOD + 8));
    while bytes.len() < len.min(PERIOD) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len.min(PERIOD));
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

pub fn host(fabric: &Fabric, bytes: Vec<u8>) -> (Arc<Buffer>, Region) {
    let buffer = Buffer::new(bytes);
    let region = fabric.register(Memory::Host(buffer.clone()), Access::PUBLIC);
    (buffer, region.unwrap())
}

pub fn device(fabric: &Fabric, bytes: &[u8]) -> (Dmabuf, Region) {
    let memory = Dmabuf::anonymous(bytes.len().next_multiple_of(4096).max(4096)).unwrap();
    memory.copy_in(0, bytes).unwrap();
    let region = fabric.register(Memory::Device(&memory), Access::PUBLIC);
    (memory, region.unwrap())
}

pub fn part(region: &Region, range: std::ops::Range<usize>, tag: u32) -> Part<'_> {
    Part { region, range, tag }
}

/// Lets both sides progress until each has had its number of events.
pub fn run(
    a: &Endpoint,
    b: &Endpoint,
    events_of_a: usize,
    events_of_b: usize,
) -> (Vec<Event>, Vec<Event>) {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let mut idle = 0;
    while of_a.len() < events_of_a || of_b.len() < events_of_b {
        let worked = a.progress() | b.progress();
        of_a.extend(std::iter::from_fn(|| a.next_event()));
        of_b.extend(std::iter::from_fn(|| b.next_event()));
        idle = if worked { 0 } else { idle + 1 };
        assert!(
            idle < IDLE_TURNS,
            "no progress: {of_a:?} of {events_of_a}, {of_b:?} of {events_of_b}; {:?}, {:?}",
            a.cause(),
            b.cause()
        );
    }
    (of_a, of_b)
}
