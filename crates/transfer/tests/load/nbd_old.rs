//! NBD servers with old negotiations, and exports that are not whole blocks.

use std::io;
use std::ops::ControlFlow;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{Loader, NbdExport};

use crate::nbd_script::{ACK, Peer, SIZE, serve, simple};
use crate::world::{V4, World, memory_for, pattern, whole};

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

#[test]
fn an_export_that_ends_with_a_part_of_a_block_is_loaded() {
    in_netns(
        "nbd_old::an_export_that_ends_with_a_part_of_a_block_is_loaded",
        || {
            assert!(!SIZE.is_multiple_of(512));
            let world = World::new(V4);
            let (port, _) = serve(|_, peer| {
                peer.negotiate(ACK + 1, 0, Some([512, 4096, 1 << 20]))?;
                answer_reads(peer, 512)
            });
            load_all(&world, &format!("nbd://{}:{port}/disk", V4.host));
            world.end();
        },
    );
}
