//! Descriptors that the plugin has open: over the kernel's loopback each connection has one. None may stay when NCCL is done with it, although
//! no further call of the plugin is made; and handles that are not the plugin's.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

use exchange::{Hello, Record};

use crate::cases::USAGE;
use crate::gpu::Case;
use crate::loaded::{HANDLE_BYTES, Handle, WARNINGS};
use crate::rank::{Rank, until};
use crate::{VERSIONS, Wire, judge, single, single_with};

/// By their names.
pub const CASES: &[(&str, Case)] = &[
    ("fd_closed", closed),
    ("fd_half_made", half_made),
    ("fd_abandoned", abandoned),
    ("fd_unloaded", unloaded),
    ("fd_foreign_handle", foreign_handle),
    ("fd_idle", idle),
];

/// Connections of a case that makes many.
const MANY: usize = 20;

pub fn a_closed_communicator_keeps_none_although_its_peer_stays() {
    for version in VERSIONS {
        judge("fd_closed", Wire::Loopback, version);
    }
}

pub fn a_closed_listener_keeps_none_of_what_was_half_made() {
    for version in VERSIONS {
        single("fd_half_made", version);
    }
}

pub fn an_abandoned_attempt_is_closed_and_can_be_begun_again() {
    with_patience("fd_abandoned", &VERSIONS);
}

/// Versions 8 to 10 have no `finalize`.
pub fn a_plugin_without_an_end_keeps_none_when_it_is_idle() {
    with_patience("fd_idle", &[8, 9, 10]);
}

/// Takes as long as the plugin waits for another call, for all versions at the same time.
fn with_patience(case: &str, versions: &[u32]) {
    let patience = [("NCCL_DEVMEM_PATIENCE", "5".to_owned())];
    std::thread::scope(|scope| {
        for version in versions {
            let patience = &patience;
            scope.spawn(move || single_with(case, *version, patience));
        }
    });
}

pub fn a_finalized_plugin_keeps_none() {
    for version in [11, 12] {
        single("fd_unloaded", version);
    }
}

pub fn a_handle_of_another_network_says_that_the_peer_has_no_plugin() {
    for version in VERSIONS {
        single("fd_foreign_handle", version);
    }
}

/// Counts the descriptors of this process.
pub fn count() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("proc is mounted");
    open.count()
}

/// Waits until as many are left. Makes no call of the plugin.
fn wait_for(expected: usize, what: &str) {
    let last = Mutex::new(0);
    let what = format!("{what}: {expected} descriptors");
    until(&what, || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = count();
        let before = std::mem::replace(&mut *last.lock().expect("one thread"), now);
        if before != now {
            eprintln!("{what}: {now} are open");
        }
        (now == expected).then_some(())
    });
}

/// Opens the device, which keeps descriptors as long as the plugin is loaded, and counts.
fn opened(rank: &Rank) -> usize {
    let (_, listening) = rank.plugin.listen(0).expect("listen");
    rank.plugin.close_listen(listening).expect("closeListen");
    count()
}

/// The first rank closes its communicators, one that is idle, one with operations that wait, and one in the middle of a message. The second
/// one keeps all of them, and does nothing meanwhile.
fn closed(rank: &Rank) {
    let before = opened(rank);
    let links = ["idle", "waiting", "busy"].map(|name| rank.link(name));
    let [_, waiting, busy] = links;
    let len = 64 << 20;
    let from = rank.buffer(busy.to, vec![1; len]);
    let mut to = rank.buffer(busy.from, vec![0; len]);
    if rank.number == 0 {
        rank.receive(waiting.from, &mut to, 100, 1);
        rank.send(waiting.to, &from, 100, 1);
    } else {
        rank.receive(busy.from, &mut to, len, 1);
    }
    rank.meet("posted");
    if rank.number == 0 {
        let sending = rank.send(busy.to, &from, len, 1);
        // The permission to send may have arrived with this call, or not yet.
        let _ = rank.plugin.test(sending, 1);
        for (comm, buffer) in [(busy.to, &from), (busy.from, &to)] {
            rank.plugin
                .deregister(comm, buffer.handle)
                .expect("deregMr");
        }
        links.into_iter().for_each(|link| rank.close(link));
        wait_for(before, "closed");
    }
    rank.meet("end");
    if rank.number == 1 {
        links.into_iter().for_each(|link| rank.close(link));
        wait_for(before, "closed after the peer");
    }
}

/// Where a handle has its cookie and its two addresses: 16 bytes of IPv6, and the port.
const COOKIE_AT: usize = 12;
const CONTROL_AT: usize = 20;
const DATA_AT: usize = 38;

/// Says the beginning of a connection to the listener of `handle`: a hello that names three data connections, of which `made` are made.
fn hello(handle: &Handle, made: usize) -> Vec<TcpStream> {
    let address = |at: usize| {
        let ip: [u8; 16] = handle[at..at + 16].try_into().expect("16 bytes");
        let port = u16::from_le_bytes([handle[at + 16], handle[at + 17]]);
        SocketAddr::new(std::net::Ipv6Addr::from(ip).to_canonical(), port)
    };
    let connect = |at| TcpStream::connect(address(at)).expect("the plugin listens");
    let mut control = connect(CONTROL_AT);
    let data: Vec<_> = (0..made).map(|_| connect(DATA_AT)).collect();
    let hello = Hello {
        cookie: u64::from_le_bytes(handle[COOKIE_AT..][..8].try_into().expect("8 bytes")),
        streams: 3,
        chunk: 4096,
    };
    let mut said = Record::Hello(hello).encode().to_vec();
    let ip = control.local_addr().expect("connected").ip();
    for stream in 0..3 {
        let made = data.get(usize::from(stream));
        let nowhere = SocketAddr::new(ip, 1 + stream);
        let local = made.map_or(nowhere, |data| data.local_addr().expect("connected"));
        said.extend(Record::Address { stream, local }.encode());
    }
    control.write_all(&said).expect("the plugin reads");
    std::iter::once(control).chain(data).collect()
}

/// Half-made connections of peers that stay, and of peers that leave.
fn half_made(rank: &Rank) {
    let before = opened(rank);
    for peers_stay in [true, false] {
        let (handle, listening) = rank.plugin.listen(0).expect("listen");
        let peers: Vec<_> = (0..MANY).flat_map(|at| hello(&handle, at % 3)).collect();
        until("accepting", || {
            let none = rank.plugin.accept(listening).expect("accept");
            assert!(none.is_none(), "nothing is complete");
            (count() == before + 2 * peers.len()).then_some(())
        });
        if peers_stay {
            rank.plugin.close_listen(listening).expect("closeListen");
            assert_eq!(count(), before + peers.len());
            drop(peers);
        } else {
            drop(peers);
            wait_for(before, "the peers have left");
            rank.plugin.close_listen(listening).expect("closeListen");
        }
    }
    assert_eq!(count(), before);
}

/// NCCL stops asking about attempts that it has begun.
fn abandoned(rank: &Rank) {
    let before = opened(rank);
    let (mut handle, listening) = rank.plugin.listen(0).expect("listen");
    for _ in 0..MANY {
        let mut copy = handle.clone();
        let begun = rank.plugin.connect(0, &mut copy).expect("connect");
        assert!(begun.is_none(), "nobody accepts");
    }
    assert!(
        rank.plugin
            .connect(0, &mut handle)
            .expect("connect")
            .is_none()
    );
    assert!(count() > before + MANY);
    wait_for(before, "abandoned");
    // Asked about again, it is begun again. The attempts above are closed, some of which the listener still finds.
    let link = rank.meet_at(&mut handle, || rank.plugin.accept(listening));
    rank.close(link);
    rank.plugin.close_listen(listening).expect("closeListen");
    wait_for(before, "closed");
}

/// Leaves open and half-made what there can be. [`check_unloaded`] follows.
fn unloaded(rank: &Rank) {
    let before = opened(rank);
    let (mut handle, listening) = rank.plugin.listen(0).expect("listen");
    let link = rank.meet_at(&mut handle, || rank.plugin.accept(listening));
    rank.plugin.close_send(link.to).expect("closeSend");
    let mut copy = handle.clone();
    let begun = rank.plugin.connect(0, &mut copy).expect("connect");
    assert!(begun.is_none(), "nobody accepts");
    drop(
        (0..MANY)
            .map(|at| hello(&handle, at % 3))
            .collect::<Vec<_>>(),
    );
    // It may find the second attempt, or not yet.
    let _accepted = rank.plugin.accept(listening).expect("accept");
    assert!(count() > before);
}

/// Checks that the plugin, which is unloaded, has left as many descriptors as there were `before` it was loaded. Versions without `finalize` have
/// no end that they are told: the loader may keep the library, and with it the devices, until the process ends.
pub fn check_unloaded(case: &str, version: u32, before: usize) {
    if case.starts_with("fd_") && version >= 11 {
        assert_eq!(count(), before, "{case}: descriptors after dlclose");
    }
}

/// The last communicator is closed, and no further call is made. The device is opened again when it is needed.
fn idle(rank: &Rank) {
    let before = count();
    for _ in 0..2 {
        let (mut handle, listening) = rank.plugin.listen(0).expect("listen");
        let link = rank.meet_at(&mut handle, || rank.plugin.accept(listening));
        rank.close(link);
        rank.plugin.close_listen(listening).expect("closeListen");
        assert!(count() > before, "the device stays for a while");
        wait_for(before, "idle");
    }
}

/// Handles as another network writes them: an address family first, or anything at all.
fn foreign_handle(rank: &Rank) {
    let socket: Vec<u8> = [2, 0, 0x1f, 0x90, 127, 0, 0, 1].to_vec();
    for bytes in [socket, vec![0; HANDLE_BYTES], vec![0xa5; HANDLE_BYTES]] {
        let mut handle: Handle = Box::new([0; HANDLE_BYTES]);
        handle[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(rank.plugin.connect(0, &mut handle), Err(USAGE));
    }
    // As of another release: the version is behind 8 bytes that all have.
    let (mut handle, listening) = rank.plugin.listen(0).expect("listen");
    handle[8] ^= 0x40;
    assert_eq!(rank.plugin.connect(0, &mut handle), Err(USAGE));
    rank.plugin.close_listen(listening).expect("closeListen");
    let warnings = WARNINGS.lock().expect("no test panics with it").clone();
    let [foreign @ .., other] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert_eq!(foreign.len(), 3, "{warnings:?}");
    for text in foreign {
        for expected in [
            "has not loaded the plugin",
            "NCCL_DEBUG=INFO",
            "NCCL_NET_PLUGIN",
        ] {
            assert!(text.contains(expected), "not {expected:?}: {text}");
        }
    }
    assert!(other.contains("another release"), "{other}");
    let is_internal = |text: &String| text.contains("Ticket") || text.contains("ticket");
    assert!(!warnings.iter().any(is_internal), "{warnings:?}");
}
