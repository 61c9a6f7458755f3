//! The heads of responses between short pieces: where they are as long as those before them, the pieces are received at their place.

use std::io::Write;
use std::sync::Arc;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{Loaded, Loader};

use crate::server::{Server, good};
use crate::world::{V4, World, pattern};

const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 128;
const FILE_BYTES: usize = PIECES * PIECE_BYTES;

/// Loads a file in short pieces over one connection, and compares every byte. The head of each response has `pad` more bytes, by the number
/// of its request. Returns the load, and the bytes that were received at their place.
fn load(pad: fn(usize) -> usize) -> (Loaded, u64) {
    let world = World::new(V4);
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let server = Server::start(move |asked, out| {
        let mut response = Vec::new();
        let after = good(asked, &served, &mut response)?;
        let (status, rest) = response.split_at(b"HTTP/1.1 206 Partial Content\r\n".len());
        out.write_all(status)?;
        if let Some(filling) = pad(asked.number).checked_sub(5) {
            write!(out, "X: {:>filling$}\r\n", "")?;
        }
        out.write_all(rest)?;
        Ok(after)
    });
    let loader = Loader::new(&world.nic)
        .connections(1)
        .piece_bytes(PIECE_BYTES as u64);
    let loaded = world.load_all(&server.url(V4.host), &file, &loader);
    let queues = world.nic.queue_stats();
    let at_once = queues
        .iter()
        .map(|it| it.direct_bytes - it.direct_copied_bytes);
    let at_once = at_once.sum();
    println!("{at_once} of {FILE_BYTES} bytes were received at their place at once");
    world.end();
    (loaded, at_once)
}

#[test]
fn short_pieces_are_received_at_their_place_behind_heads_that_are_alike() {
    const TEST: &str =
        "heads::short_pieces_are_received_at_their_place_behind_heads_that_are_alike";
    in_netns(TEST, || {
        let (loaded, at_once) = load(|_| 0);
        assert_eq!((loaded.mispredicted, loaded.broken), (0, 0));
        assert!(at_once > FILE_BYTES as u64 / 2, "{at_once}");
    });
}

#[test]
fn pieces_behind_heads_of_other_lengths_are_moved_to_their_place() {
    const TEST: &str = "heads::pieces_behind_heads_of_other_lengths_are_moved_to_their_place";
    in_netns(TEST, || {
        // Longer, shorter, and longer than several packets.
        let (loaded, _) = load(|number| match number / 20 {
            0 | 2 => 0,
            1 => 40,
            _ => 3000,
        });
        assert_eq!(loaded.broken, 0);
        // 20 heads are alike each time, and after the first three times more than that must be.
        let moved = loaded.mispredicted;
        assert!((1..=3).contains(&moved), "{moved}");
    });
}
