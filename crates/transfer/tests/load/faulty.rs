//! Servers that make mistakes, break and come back.

use std::collections::HashSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{Landed, LoadError, Loader, Part, PartError};

use crate::server::{After, Server, chunked, good};
use crate::world::{V4, V6, World, memory_for, pattern, told, whole};

const FILE_BYTES: usize = 3_000_001;

fn loader(world: &World) -> Loader {
    Loader::new(&world.nic)
        .piece_bytes(300_000)
        .idle_limit(Duration::from_secs(20))
}

#[test]
fn every_piece_arrives_over_any_number_of_connections() {
    in_netns(
        "faulty::every_piece_arrives_over_any_number_of_connections",
        || {
            for addresses in [V4, V6] {
                let file = Arc::new(pattern(FILE_BYTES));
                let world = World::far(addresses);
                let served = Arc::clone(&file);
                let server = Server::start(move |asked, out| good(asked, &served, out));
                for (connections, piece_bytes) in
                    [(1, 1 << 30), (1, 4096), (4, 65_536), (16, 100_000)]
                {
                    let loader = loader(&world)
                        .connections(connections)
                        .piece_bytes(piece_bytes)
                        .pipeline(2);
                    let before = server.requests();
                    let url = server.url(addresses.host);
                    let (loaded, together) = world.load_counted(&url, &file, &loader);
                    assert_eq!(together > 1, connections > 1);
                    let pieces = (FILE_BYTES as u64).div_ceil(piece_bytes);
                    assert_eq!((loaded.pieces, loaded.repeated), (pieces, 0));
                    assert_eq!(
                        server.requests() - before,
                        pieces as usize + 1,
                        "and one to open"
                    );
                    let stats = loaded.stats;
                    assert_eq!(stats.device_frags, stats.tokens_returned);
                    assert!(stats.device_bytes > FILE_BYTES as u64 / 2, "{stats:?}");
                }
                world.end();
            }
        },
    );
}

#[test]
fn a_server_that_does_not_answer_is_asked_over_all_connections() {
    const CONNECTIONS: usize = 16;
    in_netns(
        "faulty::a_server_that_does_not_answer_is_asked_over_all_connections",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            let (clients, all_asked) = (Mutex::new(HashSet::new()), Condvar::new());
            let server = Server::start(move |asked, out| {
                // The first request opens the file.
                if asked.number > 0 {
                    let mut clients = clients.lock().unwrap();
                    clients.insert(out.peer_addr()?);
                    all_asked.notify_all();
                    let is_early = |it: &mut HashSet<_>| it.len() < CONNECTIONS;
                    drop(all_asked.wait_while(clients, is_early).unwrap());
                }
                good(asked, &served, out)
            });
            let loader = loader(&world).connections(CONNECTIONS).piece_bytes(30_000);
            let loaded = world.load_all(&server.url(V4.host), &file, &loader);
            assert_eq!(loaded.connections, CONNECTIONS as u64);
            assert_eq!((loaded.broken, loaded.repeated), (0, 0));
            world.end();
        },
    );
}

#[test]
fn every_byte_arrives_over_a_packet_socket() {
    in_netns("faulty::every_byte_arrives_over_a_packet_socket", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| good(asked, &served, out));
        let world = World::on_veth(V4);
        let loaded = world.load_all(&server.url(V4.host), &file, &loader(&world));
        assert_eq!((loaded.bytes, loaded.repeated), (FILE_BYTES as u64, 0));
        world.end();
    });
}

#[test]
fn every_byte_arrives_over_a_bad_link() {
    in_netns("faulty::every_byte_arrives_over_a_bad_link", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| good(asked, &served, out));
        let world = World::impaired(V4, "loss=1%,reorder=2%,dup=1%,seed=5");
        let loaded = world.load_all(&server.url(V4.host), &file, &loader(&world));
        assert_eq!((loaded.broken, loaded.repeated), (0, 0));
        world.end();
    });
}

#[test]
fn a_chunked_body_arrives_without_its_chunk_headers() {
    in_netns(
        "faulty::a_chunked_body_arrives_without_its_chunk_headers",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| chunked(asked, &served, out));
            let loaded = world.load_all(&server.url(V4.host), &file, &loader(&world));
            assert_eq!(loaded.repeated, 0);
            world.end();
        },
    );
}

#[test]
fn a_server_without_ranges_sends_the_file_once() {
    in_netns(
        "faulty::a_server_without_ranges_sends_the_file_once",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            let server = Server::start(move |_, out| {
                write!(
                    out,
                    "HTTP/1.0 200 OK\r\nContent-Length: {FILE_BYTES}\r\n\r\n"
                )?;
                out.write_all(&served)?;
                Ok(After::Close)
            });
            let loader = loader(&world).connections(8);
            let loaded = world.load_all(&server.url(V4.host), &file, &loader);
            assert_eq!((loaded.connections, loaded.repeated), (1, 0));
            assert_eq!(server.requests(), 2, "one to open, one to load");
            world.end();
        },
    );
}

#[test]
fn connections_that_break_lose_only_their_pieces() {
    in_netns(
        "faulty::connections_that_break_lose_only_their_pieces",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            // Every third response ends in the middle of its body or of its head.
            let server = Server::start(move |asked, out| {
                let mut whole = Vec::new();
                good(asked, &served, &mut whole)?;
                let sent = match asked.number % 6 {
                    2 => whole.len() / 2,
                    5 => 20,
                    _ => whole.len(),
                };
                out.write_all(&whole[..sent])?;
                Ok(match sent == whole.len() {
                    true => After::Keep,
                    false => After::Close,
                })
            });
            let loaded = world.load_all(&server.url(V4.host), &file, &loader(&world));
            assert!(loaded.broken >= 2 && loaded.repeated >= 2, "{loaded:?}");
            assert_eq!(loaded.pieces, 11);
            world.end();
        },
    );
}

#[test]
fn a_busy_server_is_asked_again_and_a_closing_one_at_once() {
    in_netns(
        "faulty::a_busy_server_is_asked_again_and_a_closing_one_at_once",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| match asked.number % 4 {
                0 => {
                    out.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")?;
                    Ok(After::Keep)
                }
                _ => good(asked, &served, out).map(|_| After::Close),
            });
            let loader = loader(&world).connections(2).piece_bytes(1_000_000);
            let loaded = world.load_all(&server.url(V4.host), &file, &loader);
            // How many requests the server reads behind one that it answers and closes after is a matter of time. The fifth of
            // all is refused, and four are answered, each on a connection of its own.
            assert!(loaded.broken >= 1, "{loaded:?}");
            assert!(loaded.connections > loaded.pieces, "{loaded:?}");
            world.end();
        },
    );
}

#[test]
fn after_a_failure_requests_are_sent_one_by_one_until_a_piece_is_whole() {
    const TEST: &str =
        "faulty::after_a_failure_requests_are_sent_one_by_one_until_a_piece_is_whole";
    /// Payload of the first piece that the server sends before it looks for another request.
    const BEGUN: u64 = 100_000;
    in_netns(TEST, || {
        let file = Arc::new(pattern(FILE_BYTES));
        let world = World::new(V4);
        let served = Arc::clone(&file);
        // Calls of the progress function since the client has all that was begun: at the second one it has sent all requests
        // that it sends then.
        let idle_calls = Arc::new(AtomicUsize::new(0));
        let outstanding = Arc::new(Mutex::new(Vec::new()));
        let (calls, seen) = (Arc::clone(&idle_calls), Arc::clone(&outstanding));
        let server = Server::start(move |asked, out| {
            // Number 0 opens the file. 1 is the first of the load, and 2 the first after the failure.
            if !matches!(asked.number, 1 | 2) {
                return good(asked, &served, out);
            }
            let mut whole = Vec::new();
            good(asked, &served, &mut whole)?;
            let range = asked.range.clone().expect("it asks for a piece");
            let head_bytes = whole.len() - (range.end - range.start) as usize;
            let (begun, rest) = whole.split_at(head_bytes + BEGUN as usize);
            calls.store(0, Ordering::Relaxed);
            out.write_all(begun)?;
            while calls.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            out.set_nonblocking(true)?;
            seen.lock()
                .unwrap()
                .push(1 + out.peek(&mut [0]).is_ok() as usize);
            out.set_nonblocking(false)?;
            match asked.number {
                1 => Ok(After::Close),
                _ => out.write_all(rest).map(|()| After::Keep),
            }
        });
        let opened = world.open(&server.url(V4.host)).unwrap();
        let memory = memory_for(FILE_BYTES);
        let part = whole(&memory, FILE_BYTES);
        let loader = loader(&world).connections(1).pipeline(4);
        let loaded = loader.load(&opened, &[part], &mut |so_far| {
            // What had come of the piece stays.
            if [BEGUN, 2 * BEGUN].contains(&so_far.bytes) {
                idle_calls.fetch_add(1, Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        });
        let loaded = loaded.expect("it loads");
        assert_eq!(loaded.broken, 1, "{loaded:?}");
        assert_eq!(*outstanding.lock().unwrap(), [2, 1]);
        assert!(memory.slice(0..FILE_BYTES).to_vec() == **file);
        world.end();
    });
}

/// Loads from a server that answers every request for more than the first byte with `answer`, and returns the error.
fn error_of(world: &World, answer: &'static str) -> LoadError {
    let file = pattern(10_000);
    let server = Server::start(move |asked, out| {
        if asked.range == Some(0..1) {
            return good(asked, &file, out);
        }
        out.write_all(answer.as_bytes())?;
        Ok(After::Close)
    });
    let opened = world.open(&server.url(V4.host)).expect("it opens");
    let part = Part {
        source: 0..10_000,
        memory: memory_for(10_000),
        offset: 0,
    };
    let loader = Loader::new(&world.nic).attempts(2);
    let loaded = loader.load(&opened, &[part], &mut |_| ControlFlow::Continue(()));
    loaded.expect_err("it cannot load")
}

#[test]
fn a_wrong_answer_is_an_error_with_its_cause() {
    in_netns("faulty::a_wrong_answer_is_an_error_with_its_cause", || {
        let world = World::new(V4);
        for (answer, expected) in [
            ("\x00\x01garbage\r\n\r\n", "its head is not HTTP"),
            ("HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
            ("HTTP/1.1 403 No\r\n\r\n", "signatures expire"),
            (
                "HTTP/1.1 416 No\r\n\r\n",
                "shorter than the requested range",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 5000-9999/10000\r\nContent-Length: 5000\r\n\r\n",
                "bytes 0 to 10000 were requested, and 5000 to 10000 sent\n  requests for fewer bytes may help: `piece_bytes` of the loader",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Length: 10000\r\n\r\n",
                "Content-Range",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\nContent-Length: 18446744073709551615\r\n\r\n",
                "Content-Length is 18446744073709551615",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/20000\r\n\r\n",
                "has changed since it was opened: it had 10000 bytes and has 20000",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\nETag: \"2\"\r\n\r\n",
                "its version was \"1\" and is \"2\"",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                "longer than the requested range",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                "the body ends at byte 5",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\nContent-Encoding: gzip\r\n\r\n",
                "gzip",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0-9999/10000\r\n\r\ntoo short",
                "gave up after 2 attempts: the body ended at byte 9",
            ),
            (
                "HTTP/1.1 500 Oh\r\n\r\n",
                "gave up after 2 attempts: the server answers 500 Oh",
            ),
            (
                "",
                "gave up after 2 attempts: the server closed the connection",
            ),
        ] {
            let error = told(&error_of(&world, answer));
            assert!(error.contains(expected), "{answer}: {error}");
        }
        world.end();
    });
}

#[test]
fn redirects_are_followed_to_their_end() {
    in_netns("faulty::redirects_are_followed_to_their_end", || {
        let file = Arc::new(pattern(100_000));
        let world = World::new(V4);
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| match asked.target() {
            "/file" => {
                out.write_all(
                    b"HTTP/1.1 302 Found\r\nLocation: sub/../there?x\r\nContent-Length: 0\r\n\r\n",
                )?;
                Ok(After::Keep)
            }
            "/there?x" => good(asked, &served, out),
            _ => {
                out.write_all(
                    b"HTTP/1.1 301 Moved\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n",
                )?;
                Ok(After::Keep)
            }
        });
        world.load_all(&server.url(V4.host), &file, &loader(&world));
        let endless = format!("http://{}:{}/loop", V4.host, server.port);
        let error = told(&world.open(&endless).unwrap_err());
        assert!(error.contains("more than 10 redirects"), "{error}");
        world.end();
    });
}

#[test]
fn a_load_can_be_cancelled_and_loses_nothing() {
    in_netns("faulty::a_load_can_be_cancelled_and_loses_nothing", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let world = World::new(V4);
        let served = Arc::clone(&file);
        // The last piece never becomes whole, so that every load ends by being cancelled.
        let server = Server::start(move |asked, out| {
            let mut whole = Vec::new();
            good(asked, &served, &mut whole)?;
            let is_last = asked
                .range
                .as_ref()
                .is_some_and(|range| range.end == FILE_BYTES as u64);
            if !is_last {
                out.write_all(&whole)?;
                return Ok(After::Keep);
            }
            out.write_all(&whole[..whole.len() / 2])?;
            loop {
                std::thread::park();
            }
        });
        let opened = world.open(&server.url(V4.host)).unwrap();
        let memory = memory_for(FILE_BYTES);
        let part = whole(&memory, FILE_BYTES);
        for limit in [0, 1, 500_000, 2_700_000] {
            let cancelled = loader(&world).load(
                &opened,
                std::slice::from_ref(&part),
                &mut |so_far| match so_far.bytes >= limit {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                },
            );
            assert!(
                matches!(cancelled, Err(LoadError::Cancelled)),
                "{cancelled:?}"
            );
        }
        world.end();
    });
}

#[test]
fn parts_land_in_their_places_and_only_there() {
    in_netns("faulty::parts_land_in_their_places_and_only_there", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let world = World::new(V4);
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| good(asked, &served, out));
        let opened = world.open(&server.url(V4.host)).unwrap();
        let (a, b) = (memory_for(1 << 20), memory_for(1 << 20));
        let part = |source: std::ops::Range<u64>, memory: &devmem_tcp::Dmabuf, offset| Part {
            source,
            memory: memory.clone(),
            offset,
        };
        let mut parts = vec![
            part(2_000_000..2_400_000, &b, 256),
            part(10..1_000_000, &a, 8),
            part(3_000_000..3_000_001, &b, 0),
        ];
        // Small neighbours: one request for all of them.
        for index in 0..500u64 {
            let start = 2_400_000 + index * 100;
            let offset = 500_000 + index as usize * 256;
            parts.push(part(start..start + 100, &b, offset));
        }
        let loaded = loader(&world).load(&opened, &parts, &mut |_| ControlFlow::Continue(()));
        assert_eq!(loaded.unwrap().pieces, 4 + 2 + 1);
        for Part {
            source,
            memory,
            offset,
        } in &parts
        {
            let expected = &file[source.start as usize..source.end as usize];
            let landed = memory.slice(*offset..offset + expected.len()).to_vec();
            assert!(landed == expected, "{source:?}");
        }
        assert_eq!(a.slice(0..8).to_vec(), [0; 8]);
        let gap = b.slice(500_100..500_256).to_vec();
        assert!(gap.iter().all(|byte| *byte == 0), "the gap stays");

        let past_end = part(0..FILE_BYTES as u64 + 1, &memory_for(FILE_BYTES + 1), 0);
        let refused = loader(&world).load(&opened, &[past_end], &mut |_| ControlFlow::Continue(()));
        assert!(
            matches!(refused, Err(LoadError::PastEnd { .. })),
            "{refused:?}"
        );
        let refused = loader(&world).deliver(&opened, &[5..10, 0..6], &mut |_| Ok(()), &mut |_| {
            ControlFlow::Continue(())
        });
        let overlap = matches!(refused, Err(LoadError::Part(PartError::Overlap { .. })));
        assert!(overlap, "{refused:?}");
        world.end();
    });
}

#[test]
fn the_caller_may_keep_frags_until_the_memory_is_short() {
    in_netns(
        "faulty::the_caller_may_keep_frags_until_the_memory_is_short",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| good(asked, &served, out));
            let opened = world.open(&server.url(V4.host)).unwrap();
            let mut copy = vec![0; FILE_BYTES];
            let mut kept = std::collections::VecDeque::new();
            let loaded = loader(&world).deliver(
                &opened,
                &[0..FILE_BYTES as u64],
                &mut |landed| {
                    let Landed::Frags { at, batch } = landed else {
                        panic!("HTTP has no holes");
                    };
                    let out = &mut copy[at as usize..];
                    batch.copy_to(out).map_err(std::io::Error::other)?;
                    kept.extend(batch.take());
                    // About a megabyte of the four.
                    while kept.len() > 16 {
                        kept.pop_front();
                    }
                    Ok(())
                },
                &mut |_| ControlFlow::Continue(()),
            );
            assert_eq!(loaded.unwrap().repeated, 0);
            assert!(copy == **file);
            drop(kept);
            world.end();
        },
    );
}

#[test]
fn a_bad_cable_changes_no_byte() {
    in_netns("faulty::a_bad_cable_changes_no_byte", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let world = World::impaired(V4, "loss=1%,reorder=1%,dup=1%,delay=1ms,seed=5");
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| good(asked, &served, out));
        world.load_all(&server.url(V4.host), &file, &loader(&world));
        world.end();
    });
}
