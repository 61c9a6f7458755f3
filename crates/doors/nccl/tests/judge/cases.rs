//! What two ranks do with each other.

use crate::loaded::{NOTES, Pointer, WARNINGS};
use crate::rank::{Buffer, Link, Rank, pattern, until};
use crate::roles;

/// A byte that nobody sends on purpose.
pub const GUARD: u8 = 0xee;

/// NCCL's codes.
pub const INTERNAL: i32 = 3;
pub const USAGE: i32 = 5;
pub const REMOTE: i32 = 6;

/// Sends one message in each direction at the same time, and checks it. The receive is longer than the message.
fn both_ways(rank: &Rank, link: Link, len: usize, seed: usize) {
    let ours = pattern(seed * 2 + rank.number, len);
    let theirs = pattern(seed * 2 + 1 - rank.number, len);
    let from = rank.buffer(link.to, ours);
    let mut to = rank.buffer(link.from, vec![GUARD; len + 17]);
    let receiving = rank.receive(link.from, &mut to, len + 17, 3);
    let sending = rank.send(link.to, &from, len, 3);
    assert_eq!(rank.finish(receiving), len);
    assert_eq!(rank.finish(sending), len);
    assert!(to.bytes[..len] == theirs, "message {seed} of {len} bytes");
    assert_eq!(
        to.bytes[len..],
        [GUARD; 17],
        "bytes behind a message of {len} changed"
    );
    rank.plugin
        .deregister(link.to, from.handle)
        .expect("deregMr");
    rank.plugin
        .deregister(link.from, to.handle)
        .expect("deregMr");
}

/// Messages of no byte to 64 MiB.
pub fn sizes(rank: &Rank) {
    let link = rank.link("link");
    let lens = [
        0,
        1,
        7,
        8,
        127,
        128,
        4096,
        65_536,
        600_000,
        (4 << 20) + 3,
        64 << 20,
    ];
    for (seed, len) in lens.into_iter().enumerate() {
        both_ways(rank, link, len, seed);
    }
    rank.meet("end");
    rank.close(link);
}

/// Messages whose payload the plugin must receive by way of device memory, apart from the first two, which fit into the record that
/// announces them.
pub fn device(rank: &Rank) {
    let link = rank.link("link");
    let lens = [0, 1, 65_536, 600_000, (4 << 20) + 3, 24 << 20];
    for (seed, len) in lens.into_iter().enumerate() {
        both_ways(rank, link, len, seed);
    }
    rank.meet("end");
    rank.close(link);
    let (all, by_device): (usize, usize) = (lens.iter().sum(), lens[2..].iter().sum());
    let received = format!("{all} received, {by_device} of them by way of device memory");
    let notes = NOTES.lock().expect("no test panics with it");
    assert!(
        notes.iter().any(|note| note.contains(&received)),
        "not {received:?}: {notes:?}"
    );
}

/// The lengths that matter to the version differences only.
pub fn few_sizes(rank: &Rank) {
    let link = rank.link("link");
    for (seed, len) in [0, 1, 4096, 600_000].into_iter().enumerate() {
        both_ways(rank, link, len, seed);
    }
    // With the mark of a receive that the GPU polls.
    let bytes = pattern(rank.number, 70_001);
    let from = rank.buffer(link.to, bytes);
    let mut to = rank.buffer(link.from, vec![GUARD; 70_010]);
    let part = (to.bytes.as_mut_ptr(), 70_010, 9);
    let receiving = rank.plugin.receive(link.from, &[part], Some(to.handle), 1);
    let receiving = receiving.expect("irecv").expect("taken");
    let sending = rank.send(link.to, &from, 70_001, 9);
    assert_eq!(rank.finish(receiving), 70_001);
    rank.finish(sending);
    assert!(to.bytes[..70_001] == pattern(1 - rank.number, 70_001));
    assert_eq!(to.bytes[70_001..], [GUARD; 9]);
    rank.meet("end");
    rank.close(link);
}

/// Many communicators at once.
pub fn many(rank: &Rank) {
    let links: Vec<Link> = (0..24).map(|at| rank.link(&format!("link{at}"))).collect();
    for round in 0..3 {
        for (at, link) in links.iter().enumerate() {
            both_ways(rank, *link, 20_000 + at, round * 100 + at);
        }
    }
    rank.meet("end");
    for link in links {
        rank.close(link);
    }
}

/// Requests are tested in the reverse order of their posting.
pub fn reversed(rank: &Rank) {
    let link = rank.link("link");
    let len = 50_000;
    let mut posted: Vec<(Pointer, Pointer, Buffer, Buffer)> = Vec::new();
    for at in 0..32 {
        let from = rank.buffer(link.to, pattern(at * 2 + rank.number, len));
        let mut to = rank.buffer(link.from, vec![GUARD; len]);
        let receiving = rank.receive(link.from, &mut to, len, 1);
        let sending = rank.send(link.to, &from, len, 1);
        posted.push((receiving, sending, from, to));
    }
    for (at, (receiving, sending, _from, to)) in posted.iter().enumerate().rev() {
        assert_eq!(rank.finish(*receiving), len);
        assert_eq!(rank.finish(*sending), len);
        assert!(
            to.bytes == pattern(at * 2 + 1 - rank.number, len),
            "message {at}"
        );
    }
    rank.meet("end");
    rank.close(link);
}

/// Receives of several parts, whose sends come in another order.
pub fn grouped(rank: &Rank) {
    let link = rank.link("link");
    let tags = [7, 5, 7, 9];
    let mut to = rank.buffer(link.from, vec![GUARD; 4000]);
    let base = to.bytes.as_mut_ptr();
    let parts: Vec<_> = (0..4)
        .map(|at| (base.wrapping_add(at * 1000), 1000, tags[at]))
        .collect();
    let receiving = rank.plugin.receive(link.from, &parts, Some(to.handle), 0);
    let receiving = receiving.expect("irecv").expect("taken");
    let from: Vec<_> = (0..4)
        .map(|at| rank.buffer(link.to, vec![at as u8; 100 + at]))
        .collect();
    // The sends of tag 7 fill the parts of tag 7 in order.
    let sends: Vec<_> = [(0, 9), (1, 7), (2, 5), (3, 7)]
        .into_iter()
        .map(|(at, tag)| rank.send(link.to, &from[at], 100 + at, tag))
        .collect();
    let sizes = until("a group", || rank.plugin.test(receiving, 4).expect("test"));
    assert_eq!(sizes, [101, 102, 103, 100]);
    for (part, byte) in [1_u8, 2, 3, 0].into_iter().enumerate() {
        let got = &to.bytes[part * 1000..][..1000];
        assert!(
            got[..sizes[part]].iter().all(|it| *it == byte),
            "part {part}"
        );
        assert!(
            got[sizes[part]..].iter().all(|it| *it == GUARD),
            "part {part}"
        );
    }
    for send in sends {
        rank.finish(send);
    }
    rank.meet("end");
    rank.close(link);
}

/// A thousand requests in turn.
pub fn in_turn(rank: &Rank) {
    let link = rank.link("link");
    let mut from = rank.buffer(link.to, vec![0; 1000]);
    let mut to = rank.buffer(link.from, vec![0; 1000]);
    for turn in 0..1000_usize {
        from.bytes.fill(turn as u8);
        let receiving = rank.receive(link.from, &mut to, 1000, 0);
        let sending = rank.send(link.to, &from, turn, 0);
        assert_eq!(rank.finish(receiving), turn);
        assert_eq!(rank.finish(sending), turn);
        assert!(
            to.bytes[..turn].iter().all(|byte| *byte == turn as u8),
            "turn {turn}"
        );
    }
    rank.meet("end");
    rank.close(link);
}

/// Four threads, each with a communicator.
pub fn threads(rank: &Rank) {
    let links: Vec<Link> = (0..4).map(|at| rank.link(&format!("link{at}"))).collect();
    std::thread::scope(|scope| {
        for (at, link) in links.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20 {
                    both_ways(rank, *link, 100_000 + round, at * 1000 + round);
                }
            });
        }
    });
    rank.meet("end");
    for link in links {
        rank.close(link);
    }
}

/// A message longer than its receive: an error at both ends, with the lengths in the log, and nothing written.
pub fn too_long(rank: &Rank) {
    let link = rank.link("link");
    let from = rank.buffer(link.to, vec![1; 100]);
    let mut to = rank.buffer(link.from, vec![GUARD; 100]);
    let receiving = rank.receive(link.from, &mut to, 99, 4);
    let sending = rank.send(link.to, &from, 100, 4);
    assert_eq!(rank.fails(receiving), USAGE);
    assert_eq!(rank.fails(sending), USAGE);
    assert_eq!(to.bytes, [GUARD; 100]);
    let warnings = WARNINGS.lock().expect("no test panics with it").clone();
    assert_eq!(warnings.len(), 2, "once per communicator: {warnings:?}");
    assert!(
        warnings[0].contains("100 bytes") && warnings[0].contains("99 bytes"),
        "{warnings:?}"
    );
    rank.meet("end");
    rank.close(link);
}

/// One side closes with requests in flight: its close succeeds, and the other side's requests fail once.
pub fn early_close(rank: &Rank) {
    let link = rank.link("link");
    let mut to = rank.buffer(link.from, vec![GUARD; 1 << 20]);
    let receiving = rank.receive(link.from, &mut to, 1 << 20, 1);
    rank.meet("posted");
    if rank.number == 0 {
        rank.plugin
            .deregister(link.from, to.handle)
            .expect("deregMr");
        rank.close(link);
    } else {
        assert_eq!(rank.fails(receiving), REMOTE);
        // A new request on a broken communicator is taken, and fails. The first one may still find the room that the peer
        // had posted.
        let from = rank.buffer(link.to, vec![1; 10]);
        let code = until("a send that fails", || {
            let sending = rank.send(link.to, &from, 10, 1);
            until("a send", || {
                rank.plugin
                    .test(sending, 1)
                    .map_or_else(|code| Some(Some(code)), |sizes| sizes.map(|_| None))
            })
        });
        assert_eq!(code, REMOTE);
        rank.close(link);
    }
    rank.meet("end");
}

/// The first rank dies: the requests of the second one fail.
pub fn killed(rank: &Rank) {
    let link = rank.link("link");
    let mut to = rank.buffer(link.from, vec![GUARD; 1 << 20]);
    let receiving = rank.receive(link.from, &mut to, 1 << 20, 1);
    rank.meet("posted");
    if rank.number == 0 {
        std::process::abort();
    }
    assert_eq!(rank.fails(receiving), REMOTE);
    tells_cause();
    rank.close(link);
}

/// Checks that the plugin has logged the cause that the test expects, if it does.
fn tells_cause() {
    let cause = roles::setting("NCCL_JUDGE_CAUSE").unwrap_or_default();
    let warnings = WARNINGS.lock().expect("no test panics with it").clone();
    assert!(
        warnings.iter().any(|warning| warning.contains(&cause)),
        "not {cause:?}: {warnings:?}"
    );
}

/// The first rank dies in the middle of messages: each send of the second one is done or fails, and its receive fails. Which of the sends are
/// done is the scheduler's choice: from none (the bytes have arrived, but their last acknowledgement was never sent) to all that have room. The
/// dead rank has posted room for half of them.
pub fn killed_in_transfer(rank: &Rank) {
    const MESSAGES: usize = 24;
    let link = rank.link("link");
    let len = 4 << 20;
    let bytes = pattern(0, len);
    if rank.number == 0 {
        let mut to = rank.buffer(link.from, vec![GUARD; len]);
        let receives: Vec<_> = (0..MESSAGES / 2)
            .map(|_| rank.receive(link.from, &mut to, len, 1))
            .collect();
        rank.meet("posted");
        assert_eq!(rank.finish(receives[0]), len);
        assert!(to.bytes == bytes);
        std::process::abort();
    }
    let mut to = rank.buffer(link.from, vec![GUARD; len]);
    let receiving = rank.receive(link.from, &mut to, len, 1);
    let from = rank.buffer(link.to, bytes);
    let sends: Vec<_> = (0..MESSAGES)
        .map(|_| rank.send(link.to, &from, len, 1))
        .collect();
    rank.meet("posted");
    let ends: Vec<_> = sends
        .into_iter()
        .map(|sending| {
            until("an end", || match rank.plugin.test(sending, 1) {
                Ok(None) => None,
                Ok(Some(_)) => Some(0),
                Err(code) => Some(code),
            })
        })
        .collect();
    let (done, failed): (Vec<i32>, Vec<i32>) = ends.iter().partition(|code| **code == 0);
    assert!(done.len() <= MESSAGES / 2, "half had no room: {ends:?}");
    assert!(failed.iter().all(|code| *code == REMOTE), "{ends:?}");
    assert_eq!(rank.fails(receiving), REMOTE);
    assert!(to.bytes.iter().all(|byte| *byte == GUARD));
    tells_cause();
    rank.close(link);
}

/// A rank connects to itself, with both ends polled by one thread.
pub fn alone(rank: &Rank) {
    let Link { to, from } = rank.link_to_itself();
    let source = rank.buffer(to, pattern(1, 300_000));
    let mut target = rank.buffer(from, vec![0; 300_000]);
    let receiving = rank.receive(from, &mut target, 300_000, 0);
    let sending = rank.send(to, &source, 300_000, 0);
    rank.finish(receiving);
    rank.finish(sending);
    assert!(target.bytes == source.bytes);
    assert!(
        rank.plugin
            .flush(from, target.bytes.as_mut_ptr(), target.handle)
            .expect("iflush")
            .is_none()
    );
    rank.close(Link { to, from });
}

/// What is refused, and with which code.
pub fn refusals(rank: &Rank) {
    assert_eq!(rank.plugin.devices(), Ok(1));
    let properties = rank.plugin.properties(0).expect("properties");
    assert_eq!(
        (properties.pointers, properties.device_type),
        (1, 0),
        "{properties:?}"
    );
    assert!(
        properties.speed >= 10_000 && properties.max_recvs == 8,
        "{properties:?}"
    );
    assert!(!properties.name.is_empty());
    assert!(
        properties.max_p2p.is_none_or(|bytes| bytes == 1 << 30),
        "{properties:?}"
    );
    assert_eq!(rank.plugin.properties(1).map(drop), Err(4));
    assert_eq!(rank.plugin.properties(-1).map(drop), Err(4));
    let Link { to, from } = rank.link_to_itself();
    let mut bytes = vec![0; 100];
    assert_eq!(
        rank.plugin.register_as(to, &mut bytes, 2).map(drop),
        Err(INTERNAL)
    );
    // No dma-buf: standard error.
    assert_eq!(
        rank.plugin
            .register_fd(to, (1 << 30, 4096), (2, 0))
            .map(drop),
        Err(2)
    );
    // An empty message needs no memory.
    let receiving = rank
        .plugin
        .receive(from, &[(std::ptr::null_mut(), 0, 1)], None, 0);
    let sending = rank.plugin.send(to, (std::ptr::null(), 0), 1, None);
    let receiving = receiving.expect("irecv").expect("taken");
    assert_eq!(rank.finish(receiving), 0);
    rank.finish(sending.expect("isend").expect("taken"));
    // A request that was done is gone, and a closed communicator, too.
    assert_eq!(rank.plugin.test(receiving, 1), Err(INTERNAL));
    // A range outside of the registered memory.
    let short = rank.buffer(to, vec![1; 10]);
    let refused = rank
        .plugin
        .send(to, (short.bytes.as_ptr(), 11), 1, Some(short.handle));
    assert_eq!(refused.map(drop), Err(INTERNAL));
    rank.close(Link { to, from });
    assert_eq!(rank.plugin.close_send(to), Err(INTERNAL));
}
