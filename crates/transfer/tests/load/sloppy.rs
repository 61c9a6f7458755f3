//! Servers that are not as standards say, and that curl copes with: empty files in every form, other ranges than asked, long responses that end early, answers that
//! come when the server likes.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::Loader;

use crate::server::{After, Server, empty, good};
use crate::world::{V4, World, memory_for, pattern, told, whole};

const FILE_BYTES: usize = 3_000_001;

#[test]
fn an_empty_file_is_one_in_every_form() {
    in_netns("sloppy::an_empty_file_is_one_in_every_form", || {
        let world = World::new(V4);
        // The answer to a range, and to a request without one.
        for (ranged, plain) in [
            (
                "HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n",
                "unused",
            ),
            (
                "HTTP/1.1 416 No\r\nContent-Range: bytes 0-0/0\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 416 No\r\nContent-Range: bytes */*\r\nContent-Length: 2\r\n\r\nno",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Range: bytes 0--1/0\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 206 X\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 204 No Content\r\n\r\n",
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "unused"),
            ("HTTP/1.1 204 No Content\r\n\r\n", "unused"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "unused",
            ),
            ("HTTP/1.0 200 OK\r\n\r\n", "unused"),
        ] {
            let server = Server::start(move |asked, out| {
                let answer = if asked.range.is_some() { ranged } else { plain };
                out.write_all(answer.as_bytes())?;
                Ok(After::Close)
            });
            let opened = world.open(&server.url(V4.host)).expect(ranged);
            assert_eq!(opened.size(), Some(0), "{ranged}");
        }
        world.end();
    });
}

#[test]
fn a_file_that_cannot_say_its_range_is_loaded_whole() {
    in_netns(
        "sloppy::a_file_that_cannot_say_its_range_is_loaded_whole",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| match asked.range {
                Some(_) => empty("416 Range Not Satisfiable", "", out),
                None => {
                    write!(
                        out,
                        "HTTP/1.1 200 OK\r\nContent-Length: {FILE_BYTES}\r\n\r\n"
                    )?;
                    out.write_all(&served).map(|()| After::Keep)
                }
            });
            let world = World::new(V4);
            let loaded = world.load_all(&server.url(V4.host), &file, &Loader::new(&world.nic));
            assert_eq!(loaded.repeated, 0);
            world.end();
        },
    );
}

#[test]
fn ranges_that_are_shorter_or_longer_than_asked_are_taken() {
    in_netns(
        "sloppy::ranges_that_are_shorter_or_longer_than_asked_are_taken",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let world = World::new(V4);
            let end = FILE_BYTES as u64;
            type Sent = fn(u64, u64, u64) -> (u64, u64);
            let sent: [(&str, Sent); 4] = [
                ("at most 70,000 bytes", |start, end, _| {
                    (start, end.min(start + 70_000))
                }),
                ("whole blocks", |start, end, size| {
                    (start / 4096 * 4096, end.next_multiple_of(4096).min(size))
                }),
                ("up to the end", |start, _, size| (start, size)),
                ("from the start", |_, end, _| (0, end)),
            ];
            for (name, sent) in sent {
                let served = Arc::clone(&file);
                let server = Server::start(move |asked, out| {
                    let mut asked = asked.clone();
                    if let Some(range) = asked.range.as_mut().filter(|range| **range != (0..1)) {
                        (range.start, range.end) = sent(range.start, range.end, end);
                    }
                    good(&asked, &served, out)
                });
                let loader = Loader::new(&world.nic).piece_bytes(300_000);
                println!("{name}");
                world.load_all(&server.url(V4.host), &file, &loader);
            }
            world.end();
        },
    );
}

#[test]
fn a_server_that_ends_long_responses_is_asked_for_the_rest() {
    /// Most bytes of one response.
    const MOST: usize = 100_000;
    in_netns(
        "sloppy::a_server_that_ends_long_responses_is_asked_for_the_rest",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| {
                let mut whole = Vec::new();
                good(asked, &served, &mut whole)?;
                out.write_all(&whole[..whole.len().min(MOST)])?;
                Ok(After::Close)
            });
            let world = World::new(V4);
            // The whole file in one piece, and more responses than attempts.
            let loader = Loader::new(&world.nic).piece_bytes(1 << 30).attempts(2);
            let loaded = world.load_all(&server.url(V4.host), &file, &loader);
            assert!(loaded.broken > 2, "{loaded:?}");
            world.end();
        },
    );
}

#[test]
fn a_load_goes_on_while_most_of_its_connections_are_refused() {
    in_netns(
        "sloppy::a_load_goes_on_while_most_of_its_connections_are_refused",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let served = Arc::clone(&file);
            // One request is answered at a time, and its connection closed; all others are refused.
            let one_at_a_time = Mutex::new(());
            let server = Server::start(move |asked, out| {
                if asked.range == Some(0..1) {
                    return good(asked, &served, out);
                }
                match one_at_a_time.try_lock() {
                    Ok(_busy) => {
                        std::thread::sleep(Duration::from_millis(2));
                        good(asked, &served, out).map(|_| After::Close)
                    }
                    Err(_) => empty("429 Too Many Requests", "", out),
                }
            });
            let world = World::far(V4);
            let loader = Loader::new(&world.nic)
                .connections(8)
                .piece_bytes(10_000)
                .attempts(2);
            world.load_all(&server.url(V4.host), &file, &loader);
            world.end();
        },
    );
}

#[test]
fn a_server_that_stalls_on_several_requests_is_asked_one_at_a_time() {
    in_netns(
        "sloppy::a_server_that_stalls_on_several_requests_is_asked_one_at_a_time",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let served = Arc::clone(&file);
            // It reads what has come with a request, and stops if that is another one.
            let server = Server::start(move |asked, out| {
                if asked.range == Some(0..1) {
                    return good(asked, &served, out);
                }
                let mut whole = Vec::new();
                good(asked, &served, &mut whole)?;
                let (begun, rest) = whole.split_at(whole.len() / 2);
                out.write_all(begun)?;
                std::thread::sleep(Duration::from_millis(100));
                out.set_nonblocking(true)?;
                let has_more = out.peek(&mut [0]).is_ok();
                out.set_nonblocking(false)?;
                if has_more {
                    loop {
                        std::thread::park();
                    }
                }
                out.write_all(rest).map(|()| After::Keep)
            });
            let world = World::new(V4);
            let limit = Duration::from_secs(6);
            let loader = Loader::new(&world.nic)
                .connections(1)
                .pipeline(2)
                .piece_bytes(1_000_000)
                .idle_limit(limit);
            let loaded = world.load_all(&server.url(V4.host), &file, &loader);
            assert!(loaded.broken <= 1, "learned once: {loaded:?}");
            world.end();
        },
    );
}

#[test]
fn a_sloppy_head_is_read_as_curl_reads_it() {
    in_netns("sloppy::a_sloppy_head_is_read_as_curl_reads_it", || {
        let file = Arc::new(pattern(FILE_BYTES));
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| {
            let mut whole = Vec::new();
            good(asked, &served, &mut whole)?;
            let end = whole.iter().position(|byte| *byte == b'\n');
            let (status, rest) = whole.split_at(end.expect("a status line") + 1);
            out.write_all(status)?;
            // A space before a colon, a field without one, and a name that is none.
            out.write_all(b"Accept-Ranges : bytes\r\nno colon\r\n\"x\": y\r\n")?;
            out.write_all(rest).map(|()| After::Keep)
        });
        let world = World::new(V4);
        world.load_all(&server.url(V4.host), &file, &Loader::new(&world.nic));
        world.end();
    });
}

#[test]
fn a_slow_first_byte_is_waited_for_up_to_the_limit() {
    /// What a server needs for its first byte.
    const SLOW: Duration = Duration::from_millis(300);
    in_netns(
        "sloppy::a_slow_first_byte_is_waited_for_up_to_the_limit",
        || {
            let file = Arc::new(pattern(FILE_BYTES));
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| {
                if asked.range != Some(0..1) {
                    std::thread::sleep(SLOW);
                }
                good(asked, &served, out)
            });
            let world = World::new(V4);
            let url = server.url(V4.host);
            let patient = Loader::new(&world.nic).idle_limit(200 * SLOW);
            world.load_all(&url, &file, &patient);

            let impatient = Loader::new(&world.nic)
                .attempts(1)
                .connections(1)
                .pipeline(1)
                .idle_limit(SLOW / 10);
            let opened = world.open(&url).expect("its first byte comes at once");
            let memory = memory_for(FILE_BYTES);
            let part = whole(&memory, FILE_BYTES);
            let given_up = impatient.load(&opened, &[part], &mut |_| ControlFlow::Continue(()));
            let error = told(&given_up.expect_err("it is too slow"));
            assert!(
                error.ends_with("first byte: `idle_limit` of the loader"),
                "{error}"
            );
            world.end();
        },
    );
}
