//! What works: every byte is compared.

use crate::far::{Far, hex, pattern};
use crate::loaded::{Agent, INVALID_PARAM, Memory, Range, SUCCESS, paths};
use crate::near::{NAME, Near, done, end_of};
use crate::setup::way;

/// Around the limits of what follows a record, and of a piece.
const SIZES: [usize; 10] = [
    0,
    1,
    8,
    4096,
    8192,
    8193,
    65_536,
    (1 << 20) - 1,
    1 << 20,
    (5 << 20) + 3,
];

fn all_sizes(has_thread: bool) {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, has_thread, &[]);
    let both = near.memories(&mut far, 6 << 20, 1);
    for (round, size) in (0..).zip(SIZES) {
        let expected = pattern(100 + round, size);
        both.near.write(7, &expected);
        let message = format!("write {size}");
        let write = near.transfer(true, &[both.pair(7, 11, size)]);
        assert_eq!(done(&write, Some(message.as_bytes())), SUCCESS);
        assert_eq!(far.bytes(&both.far, 11, size), expected, "write of {size}");
        assert_eq!(
            far.notifications(1),
            [(NAME.to_owned(), message.into_bytes())]
        );

        both.near.write(0, &vec![0; 6 << 20]);
        let read = near.transfer(false, &[both.pair(3, 11, size)]);
        assert_eq!(done(&read, Some(b"")), SUCCESS);
        assert_eq!(both.near.read(3, size), expected, "read of {size}");
        assert!(both.near.read(3 + size, 64).iter().all(|byte| *byte == 0));
        assert_eq!(far.notifications(1), [(NAME.to_owned(), Vec::new())]);
    }
}

pub fn reads_and_writes_of_all_sizes_arrive_with_their_notifications() {
    all_sizes(true);
}

pub fn without_threads_calls_make_progress() {
    all_sizes(false);
    // The other process has none, either: its calls for notifications let it receive.
    let mut far = Far::start("far", false);
    let near = Near::meet(&mut far, false, &[]);
    let both = near.memories(&mut far, 3 << 20, 1);
    both.near.write(0, &pattern(2, 3 << 20));
    let write = near.transfer(true, &[both.pair(0, 0, 3 << 20)]);
    write.post(Some(b"there"));
    far.begin("notifications 1");
    assert_eq!(end_of(&write), SUCCESS);
    assert_eq!(
        far.answer(),
        format!("{}:{}", hex(NAME.as_bytes()), hex(b"there"))
    );
    assert_eq!(far.bytes(&both.far, 0, 3 << 20), pattern(2, 3 << 20));
}

/// Blocks that touch on neither side, in another order on each.
fn scattered(parameters: &[(&str, &str)], blocks: usize, len: usize) {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, parameters);
    let stride = len + 16;
    let both = near.memories(&mut far, blocks * stride, 1);
    let before = far.bytes(&both.far, 0, blocks * stride);
    let local = pattern(2, blocks * stride);
    both.near.write(0, &local);
    // Odd and not a divisor: each block once.
    let at = |block: usize| (block * 7919 + 3) % blocks * stride;
    let pairs: Vec<_> = (0..blocks)
        .map(|block| both.pair(block * stride, at(block), len))
        .collect();
    assert_eq!(done(&near.transfer(true, &pairs), Some(b"blocks")), SUCCESS);
    let mut expected = before;
    for block in 0..blocks {
        expected[at(block)..][..len].copy_from_slice(&local[block * stride..][..len]);
    }
    assert!(
        far.bytes(&both.far, 0, blocks * stride) == expected,
        "writes"
    );
    assert_eq!(far.notifications(1).len(), 1);

    both.near.write(0, &vec![9; blocks * stride]);
    assert_eq!(done(&near.transfer(false, &pairs), None), SUCCESS);
    let mut expected = vec![9; blocks * stride];
    for block in 0..blocks {
        expected[block * stride..][..len].copy_from_slice(&local[block * stride..][..len]);
    }
    assert!(both.near.read(0, blocks * stride) == expected, "reads");
}

pub fn many_descriptors_are_scattered_and_gathered() {
    scattered(&[], 1500, 4096);
    scattered(&[("connections", "1")], 3000, 24);
    descriptors_are_scattered_and_gathered_over_several_connections();
}

pub fn descriptors_are_scattered_and_gathered_over_several_connections() {
    scattered(&[("connections", "5")], 100, 65_536);
}

pub fn short_ranges_go_without_inline_bytes_if_direct_is_required() {
    scattered(&[("require", "direct")], 20, 24);
}

pub fn a_hundred_thousand_descriptors_of_many_regions_arrive() {
    const REGIONS: usize = 100;
    const EACH: usize = 1000;
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let all: Vec<_> = (0..REGIONS)
        .map(|seed| near.memories(&mut far, EACH * 16, seed as u64))
        .collect();
    let mut pairs = Vec::new();
    for block in 0..EACH {
        // Each descriptor is in another region than the one before it.
        pairs.extend(
            all.iter()
                .map(|both| both.pair(block * 16, (EACH - 1 - block) * 16, 12)),
        );
    }
    assert_eq!(done(&near.transfer(false, &pairs), Some(b"read")), SUCCESS);
    for (seed, both) in (0..).zip(&all) {
        let far = pattern(seed, EACH * 16);
        let near = both.near.read(0, EACH * 16);
        for block in 0..EACH {
            assert_eq!(
                near[block * 16..][..12],
                far[(EACH - 1 - block) * 16..][..12]
            );
        }
    }
    assert_eq!(far.notifications(1).len(), 1);
}

pub fn notifications_of_all_sizes_keep_their_order() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let messages: Vec<_> = [0, 1, 5000, 1 << 20, 3, 0]
        .into_iter()
        .map(|len| pattern(len as u64, len))
        .collect();
    for message in &messages {
        assert_eq!(near.agent.notify("far", message), SUCCESS);
    }
    assert_eq!(
        near.agent.notify("far", &vec![0; (1 << 20) + 1]),
        INVALID_PARAM
    );
    let expected: Vec<_> = messages
        .into_iter()
        .map(|message| (NAME.to_owned(), message))
        .collect();
    assert!(far.notifications(expected.len()) == expected);
    // And the other way: over other connections, made now.
    assert_eq!(far.tell(&format!("notify {NAME} {}", hex(b"back"))), "0");
    let mut back = Vec::new();
    crate::far::until("a notification", || {
        back.extend(near.agent.notifications());
        (!back.is_empty()).then_some(())
    });
    assert_eq!(back, [("far".to_owned(), b"back".to_vec())]);
}

pub fn an_agent_transfers_to_itself() {
    for has_thread in [false, true] {
        let agent = Agent::open(NAME, has_thread, &[]).expect("an agent");
        let memory = Memory::new(20 << 20);
        memory.write(0, &pattern(1, 10 << 20));
        let region = agent.register(&memory);
        let own = agent.load_own(region);
        let range = |offset: u64, region| Range {
            address: memory.address() + offset,
            len: 9 << 20,
            region,
        };
        let (here, there) = (range(5, region), range((10 << 20) + 3, own));
        let write = agent
            .prepare(true, NAME, &[here], &[there])
            .expect("a transfer");
        assert_eq!(done(&write, Some(b"self")), SUCCESS);
        assert!(memory.read((10 << 20) + 3, 9 << 20) == memory.read(5, 9 << 20));
        let read = agent
            .prepare(false, NAME, &[range(0, region)], &[range(11 << 20, own)])
            .expect("a transfer");
        let expected = memory.read(11 << 20, 9 << 20);
        assert_eq!(done(&read, None), SUCCESS);
        assert!(memory.read(0, 9 << 20) == expected);
        assert_eq!(agent.notify(NAME, b"alone"), SUCCESS);
        let messages =
            [b"self".to_vec(), b"alone".to_vec()].map(|message| (NAME.to_owned(), message));
        assert_eq!(agent.notifications(), messages);
    }
}

pub fn a_transfer_is_posted_again_and_again() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let both = near.memories(&mut far, 100_000, 1);
    let write = near.transfer(true, &[both.pair(0, 0, 100_000)]);
    let read = near.transfer(false, &[both.pair(0, 0, 100_000)]);
    for round in 0..50 {
        let bytes = pattern(round, 100_000);
        both.near.write(0, &bytes);
        assert_eq!(done(&write, Some(&round.to_le_bytes())), SUCCESS);
        both.near.write(0, &vec![0; 100_000]);
        assert_eq!(done(&read, None), SUCCESS);
        assert!(both.near.read(0, 100_000) == bytes);
    }
    let told: Vec<_> = far
        .notifications(50)
        .into_iter()
        .map(|(_, message)| message)
        .collect();
    assert_eq!(
        told,
        (0_u64..50)
            .map(|round| round.to_le_bytes().to_vec())
            .collect::<Vec<_>>()
    );
}

pub fn several_threads_post_and_check_at_a_time() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let all: Vec<_> = (0..4)
        .map(|seed| near.memories(&mut far, 300_000, seed))
        .collect();
    std::thread::scope(|scope| {
        for (seed, both) in (0..).zip(all) {
            let near = &near;
            scope.spawn(move || {
                for round in 0..20 {
                    let bytes = pattern(seed * 100 + round, 300_000);
                    both.near.write(0, &bytes);
                    assert_eq!(
                        done(
                            &near.transfer(true, &[both.pair(0, 0, 300_000)]),
                            Some(b"n")
                        ),
                        SUCCESS
                    );
                    both.near.write(0, &vec![0; 300_000]);
                    assert_eq!(
                        done(&near.transfer(false, &[both.pair(0, 0, 300_000)]), None),
                        SUCCESS
                    );
                    assert!(both.near.read(0, 300_000) == bytes);
                }
            });
        }
    });
    assert_eq!(far.notifications(80).len(), 80);
}

pub fn ten_agents_write_to_each_other() {
    const AGENTS: usize = 10;
    let names: Vec<_> = (0..AGENTS).map(|index| format!("agent {index}")).collect();
    let agents: Vec<_> = names
        .iter()
        .map(|name| Agent::open(name, true, &[("connections", "1")]).expect("an agent"))
        .collect();
    let memories: Vec<_> = agents.iter().map(|_| Memory::new(AGENTS * 8192)).collect();
    let regions: Vec<_> = agents
        .iter()
        .zip(&memories)
        .map(|(agent, memory)| agent.register(memory))
        .collect();
    for (from, agent) in agents.iter().enumerate() {
        for to in (0..AGENTS).filter(|to| *to != from) {
            assert_eq!(agent.load_agent(&names[to], &agents[to].info()), SUCCESS);
            let remote = agent
                .load_region(&names[to], &agents[to].describe(regions[to]))
                .expect("a region");
            memories[from].write(from * 8192, &pattern(from as u64, 8192));
            let range = |memory: &Memory, region| Range {
                address: memory.address() + from as u64 * 8192,
                len: 8192,
                region,
            };
            let (here, there) = (
                range(&memories[from], regions[from]),
                range(&memories[to], remote),
            );
            let write = agent
                .prepare(true, &names[to], &[here], &[there])
                .expect("a transfer");
            assert_eq!(done(&write, Some(b"hello")), SUCCESS);
        }
    }
    for (agent, memory) in agents.iter().zip(&memories) {
        let mut from: Vec<_> = agent
            .notifications()
            .into_iter()
            .map(|(from, _)| from)
            .collect();
        from.sort();
        from.dedup();
        assert_eq!(from.len(), AGENTS - 1);
        for other in 0..AGENTS {
            assert!(memory.read(other * 8192, 8192) == pattern(other as u64, 8192));
        }
    }
}

pub fn both_sides_write_at_a_time() {
    const LEN: usize = 8 << 20;
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let out = near.memories(&mut far, LEN, 1);
    let back = near.memories(&mut far, LEN, 2);
    out.near.write(0, &pattern(3, LEN));
    let data = near.agent.describe(back.local);
    let address = back.near.address();
    far.begin(&format!(
        "write {NAME} {} {} {address} {LEN}",
        back.far.number,
        hex(&data)
    ));
    assert_eq!(
        done(&near.transfer(true, &[out.pair(0, 0, LEN)]), None),
        SUCCESS
    );
    assert_eq!(far.answer(), "0");
    assert!(far.bytes(&out.far, 0, LEN) == pattern(3, LEN));
    assert!(back.near.read(0, LEN) == pattern(2, LEN));
}

pub fn a_tebibyte_is_registered_and_its_end_is_written() {
    const TEBIBYTE: usize = 1 << 40;
    let Some(memory) = Memory::try_new(TEBIBYTE) else {
        println!("SKIP the kernel maps no tebibyte (vm.overcommit_memory, or RLIMIT_AS)");
        return;
    };
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let region = near.agent.register(&memory);
    let bytes = far.memory(1 << 20, 5);
    let remote = near
        .agent
        .load_region("far", &bytes.data)
        .expect("a region");
    let there = Range {
        address: bytes.address,
        len: 1 << 20,
        region: remote,
    };
    let here = Range {
        address: memory.address() + (TEBIBYTE - (1 << 20)) as u64,
        len: 1 << 20,
        region,
    };
    assert_eq!(done(&near.transfer(false, &[(here, there)]), None), SUCCESS);
    assert!(memory.read(TEBIBYTE - (1 << 20), 1 << 20) == pattern(5, 1 << 20));
    assert_eq!(near.agent.deregister(region), SUCCESS);
}

pub fn what_was_moved_is_told() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let both = near.memories(&mut far, 100_000, 1);
    let name = "an agent with paths";
    let agent = Agent::open(name, true, &[]).expect("an agent");
    assert_eq!(agent.load_agent("far", far.info()), SUCCESS);
    let region = agent.register(&both.near);
    let remote = agent.load_region("far", &both.far.data).expect("a region");
    let (mut here, mut there) = both.pair(0, 0, 100_000);
    (here.region, there.region) = (region, remote);
    let read = agent
        .prepare(false, "far", &[here], &[there])
        .expect("a transfer");
    assert_eq!(done(&read, None), SUCCESS);
    (here.len, there.len) = (10, 10);
    let write = agent
        .prepare(true, "far", &[here], &[there])
        .expect("a transfer");
    assert_eq!(done(&write, None), SUCCESS);
    let all = paths();
    let line = all
        .lines()
        .find(|line| line.contains(name))
        .expect("a line of this agent");
    let moved = match &*way() {
        "unix" => "\"unix_bytes\":100000,",
        _ => "\"received_bytes\":100000,",
    };
    for part in [
        &format!("\"way\":\"{}\"", way()),
        moved,
        "\"inline_bytes\":10,",
        "\"sent_bytes\":0,",
    ] {
        assert!(line.contains(part), "{line}");
    }
}
