//! NBD servers with old negotiations, exports that are not whole blocks, and zeros that a server cannot write.

use std::io::{self, Read};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{Loader, NbdExport, Part};
use devmem_transfer::store::{self, Filled, Storer};

use crate::nbd_script::{ACK, Peer, SIZE, serve, simple};
use crate::world::{V4, World, memory_for, pattern, told, whole};

/// Commands, a flag and an error of the protocol.
const WRITE: u8 = 1;
const FLUSH: u8 = 3;
const WRITE_ZEROES: u8 = 6;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const EINVAL: u32 = 22;
const ENOTSUP: u32 = 95;

/// Answers reads of the pattern, without structured replies.
fn answer_reads(peer: &mut Peer, smallest: usize) -> io::Result<()> {
    let disk = pattern(SIZE);
    loop {
        let (cookie, at, len) = peer.request()?;
        let is_tail = at + len == SIZE;
        match at.is_multiple_of(smallest) && (len.is_multiple_of(smallest) || is_tail) {
            true => peer.say(&[&simple(cookie, 0), &disk[at..at + len]])?,
            false => peer.say(&[&simple(cookie, 22)])?,
        }
    }
}

/// Loads the whole export and compares every byte.
#[track_caller]
fn load_all(world: &World, url: &str) {
    let export = NbdExport::open(&world.nic, url.parse().expect("a URL")).expect(url);
    assert_eq!(export.size(), SIZE as u64, "{url}");
    let memory = memory_for(SIZE);
    let loader = Loader::new(&world.nic).piece_bytes(8192);
    let part = whole(&memory, SIZE);
    let loaded = loader.load(&export, &[part], &mut |_| ControlFlow::Continue(()));
    assert_eq!(loaded.expect(url).bytes, SIZE as u64);
    assert!(memory.slice(0..SIZE).to_vec() == pattern(SIZE), "{url}");
}

#[test]
fn servers_with_old_negotiations_are_loaded_from() {
    in_netns(
        "nbd_old::servers_with_old_negotiations_are_loaded_from",
        || {
            let world = World::new(V4);
            let size = (SIZE as u64).to_be_bytes();
            let has_flags = 1_u16.to_be_bytes();
            let (port, _) = serve(move |_, peer| {
                peer.say(&[
                    b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53",
                    &size,
                    &[0; 2],
                    &has_flags,
                    &[0; 124],
                ])?;
                answer_reads(peer, 1)
            });
            load_all(&world, &format!("nbd://{}:{port}", V4.host));

            for has_zeroes in [true, false] {
                let (port, _) = serve(move |_, peer| {
                    let flags = if has_zeroes { [0, 0] } else { [0, 2] };
                    peer.say(&[b"NBDMAGICIHAVEOPT", &flags])?;
                    assert_eq!(peer.u32()?, u32::from(flags[1]));
                    assert_eq!(&peer.read::<16>()?, b"IHAVEOPT\0\0\0\x01\0\0\0\x04");
                    assert_eq!(&peer.read::<4>()?, b"disk");
                    let zeroes = [0; 124];
                    let zeroes = if has_zeroes { &zeroes[..] } else { &[] };
                    peer.say(&[&size, &has_flags, zeroes])?;
                    answer_reads(peer, 1)
                });
                load_all(
                    &world,
                    &format!("nbd://{}:{port}/disk?ignored=1#too", V4.host),
                );
            }
            world.end();
        },
    );
}

/// Block sizes of which the export is no multiple.
const BLOCKS: [u32; 3] = [512, 4096, 1 << 20];

#[test]
fn an_export_that_ends_with_a_part_of_a_block_is_loaded() {
    in_netns(
        "nbd_old::an_export_that_ends_with_a_part_of_a_block_is_loaded",
        || {
            assert!(!SIZE.is_multiple_of(512));
            let world = World::new(V4);
            let (port, _) = serve(|_, peer| {
                peer.negotiate(ACK + 1, 0, Some(BLOCKS))?;
                answer_reads(peer, 512)
            });
            let url = format!("nbd://{}:{port}/disk", V4.host);
            load_all(&world, &url);

            let export = NbdExport::open(&world.nic, url.parse().expect("a URL")).expect(&url);
            let end = SIZE as u64;
            let part = Part {
                source: end - 1..end,
                memory: memory_for(SIZE),
                offset: 0,
            };
            let loader = Loader::new(&world.nic);
            let refused = loader.load(&export, &[part], &mut |_| ControlFlow::Continue(()));
            let refused = told(&refused.expect_err("it is no block"));
            let blocks = format!("widen the range to {} to {end}", end / 512 * 512);
            assert!(refused.ends_with(&blocks), "{refused}");
            world.end();
        },
    );
}

#[test]
fn an_export_that_ends_with_a_part_of_a_block_is_stored_in() {
    in_netns(
        "nbd_old::an_export_that_ends_with_a_part_of_a_block_is_stored_in",
        || {
            let disk = Arc::new(Mutex::new(vec![0xee; SIZE]));
            let served = Arc::clone(&disk);
            let (port, _) = serve(move |_, peer| {
                peer.negotiate(ACK + 1, 0, Some(BLOCKS))?;
                take_writes(peer, &served)
            });
            let world = World::new(V4);
            let url = format!("nbd://{}:{port}/disk", V4.host);
            let export = NbdExport::open(&world.nic, url.parse().expect("a URL")).expect(&url);
            let memory = memory_for(SIZE);
            memory.copy_in(0, &pattern(SIZE)).expect("it fits");
            let all = store::Part {
                target: 0..SIZE as u64,
                offset: 0,
            };
            let storer = Storer::new(&world.nic).piece_bytes(4096);
            let stored = storer.store(&export, &memory, &[all], &mut |_| ControlFlow::Continue(()));
            assert_eq!(stored.expect("it stores").bytes, SIZE as u64);
            assert!(*disk.lock().expect("no panic") == pattern(SIZE));
            world.end();
        },
    );
}

/// Stores what is written in `disk`, and refuses to write zeros, and to flush.
fn take_writes(peer: &mut Peer, disk: &Mutex<Vec<u8>>) -> io::Result<()> {
    loop {
        let [_, _, _, _, _, _, 0, command]: [u8; 8] = peer.read()? else {
            panic!("a request without flags");
        };
        let cookie = u64::from_be_bytes(peer.read()?);
        let at = u64::from_be_bytes(peer.read()?) as usize;
        let len = peer.u32()? as usize;
        let errno = match command {
            WRITE => {
                let mut bytes = vec![0; len];
                peer.0.read_exact(&mut bytes)?;
                disk.lock().expect("no panic")[at..at + len].copy_from_slice(&bytes);
                0
            }
            WRITE_ZEROES => ENOTSUP,
            FLUSH => EINVAL,
            // A goodbye.
            _ => return Ok(()),
        };
        peer.say(&[&simple(cookie, errno)])?;
    }
}

#[test]
fn zeros_that_the_server_cannot_write_are_sent() {
    in_netns(
        "nbd_old::zeros_that_the_server_cannot_write_are_sent",
        || {
            let disk = Arc::new(Mutex::new(vec![0xee; SIZE]));
            let served = Arc::clone(&disk);
            let (port, connections) = serve(move |_, peer| {
                peer.negotiate(ACK + 1, SEND_WRITE_ZEROES, None)?;
                take_writes(peer, &served)
            });
            let world = World::new(V4);
            let url = format!("nbd://{}:{port}/disk", V4.host);
            let export =
                NbdExport::open(&world.nic, url.parse().expect("a URL")).expect("it is there");
            let (chunks, bytes) = (memory_for(64 << 10), pattern(SIZE));
            let mut fill = |target: Range<u64>, place: Range<usize>| {
                let is_hole = target.start < 8192;
                let bytes = &bytes[target.start as usize..target.end as usize];
                // In a hole something else lies in the chunk, which must not be sent.
                let filled = chunks.copy_in(place.start, bytes);
                filled.map_err(io::Error::other)?;
                Ok(if is_hole {
                    Filled::Zeros
                } else {
                    Filled::Bytes
                })
            };
            let storer = Storer::new(&world.nic).piece_bytes(4096);
            let all = [0..SIZE as u64];
            let stored = storer.store_from(&export, &chunks, &all, &mut fill, &mut |_| {
                ControlFlow::Continue(())
            });
            assert_eq!(stored.expect("it stores").bytes, SIZE as u64);
            let mut expected = bytes.clone();
            expected[..8192].fill(0);
            assert!(*disk.lock().expect("no panic") == expected);
            assert!(
                connections.load(Ordering::Relaxed) >= 2,
                "the first one was refused"
            );
            let refused =
                storer.write_zeroes(&export, &[0..4096], &mut |_| ControlFlow::Continue(()));
            let refused = told(&refused.expect_err("it cannot"));
            assert!(refused.contains("cannot write zeros"), "{refused}");
            world.end();
        },
    );
}

#[test]
fn a_flush_that_the_server_offers_and_refuses_is_told() {
    in_netns(
        "nbd_old::a_flush_that_the_server_offers_and_refuses_is_told",
        || {
            let (port, _) = serve(|_, peer| {
                peer.negotiate(ACK + 1, SEND_FLUSH, None)?;
                take_writes(peer, &Mutex::new(vec![0; SIZE]))
            });
            let world = World::new(V4);
            let url = format!("nbd://{}:{port}/disk", V4.host);
            let export = NbdExport::open(&world.nic, url.parse().expect("a URL")).expect(&url);
            let all = store::Part {
                target: 0..SIZE as u64,
                offset: 0,
            };
            let storer = Storer::new(&world.nic);
            let stored = storer.store(&export, &memory_for(SIZE), &[all], &mut |_| {
                ControlFlow::Continue(())
            });
            let refused = told(&stored.expect_err("it does not flush"));
            assert!(refused.contains("cannot flush"), "{refused}");
            assert!(refused.contains("all bytes are written"), "{refused}");
            world.end();
        },
    );
}
