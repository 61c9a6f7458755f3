//! Servers that keep a client busy without an end: each sends something all the time, and never what was requested.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::test_util::in_netns;
use devmem_tcp::Netdev;
use devmem_transfer::load::{Checkpoint, HttpFile, HttpRequest, Loader, Progress, Source};
use devmem_transfer::store::Storer;

use crate::nbd_script::{self, ACK, Peer, chunk, open, serve};
use crate::server::{After, Server, good};
use crate::world::{V4, World, memory_for, pattern, told, whole};

const FILE_BYTES: usize = 10_000;
/// Limit of a connection without progress.
const LIMIT: Duration = Duration::from_millis(150);
/// Pause of a server between two bytes.
const PAUSE: Duration = Duration::from_millis(10);
/// Time after which a test that would not end is ended.
const ENDLESS: Duration = Duration::from_secs(60);

/// A progress function that ends a run that has no end.
fn guard() -> impl FnMut() -> ControlFlow<()> {
    let start = Instant::now();
    move || match start.elapsed() > ENDLESS {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Asserts that a run was given up after `attempts` ones, each because of [`LIMIT`]: the server sent too little in this time or, on a busy
/// machine, nothing.
#[track_caller]
fn assert_ended_by_limit(error: &str, attempts: usize, name: &str) {
    let given_up = format!("gave up after {attempts} attempts: ");
    let is_limit = error.contains(&given_up) && error.contains("150ms");
    assert!(is_limit, "{name}: {error}");
}

fn guarded() -> impl FnMut(Progress) -> ControlFlow<()> {
    let mut cancel_check = guard();
    move |_| cancel_check()
}

/// Sends `bytes` one after the other, and again from their start, until the client is gone.
fn dribble(out: &mut TcpStream, bytes: &[u8]) -> io::Result<After> {
    loop {
        for byte in bytes {
            out.write_all(&[*byte])?;
            thread::sleep(PAUSE);
        }
    }
}

/// Sends `text` whole, and again, until the client is gone.
fn flood(out: &mut TcpStream, text: &[u8]) -> io::Result<After> {
    loop {
        out.write_all(text)?;
        thread::sleep(PAUSE);
    }
}

const PART: &[u8] = b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-9999/10000\r\n";
const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

type Answer = fn(&mut TcpStream) -> io::Result<After>;

/// How a server does not end, after it has answered the request for the first byte.
const ENDLESS_ANSWERS: &[(&str, Answer)] = &[
    ("informational responses", |out| flood(out, CONTINUE)),
    ("informational responses at once", |out| {
        loop {
            out.write_all(&CONTINUE.repeat(100))?;
        }
    }),
    ("a head byte by byte", |out| {
        out.write_all(PART)?;
        dribble(out, b"X-Pad: 1\r\n")
    }),
    ("a body byte by byte", |out| {
        out.write_all(PART)?;
        out.write_all(b"Content-Length: 10000\r\n\r\n")?;
        dribble(out, b"x")
    }),
    (
        "a body until the end of the connection, byte by byte",
        |out| {
            out.write_all(PART)?;
            out.write_all(b"\r\n")?;
            dribble(out, b"x")
        },
    ),
    ("the whole file instead of a part, byte by byte", |out| {
        out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")?;
        dribble(out, b"x")
    }),
    ("chunks of one byte", |out| {
        out.write_all(PART)?;
        out.write_all(CHUNKED)?;
        flood(out, b"1\r\nx\r\n")
    }),
    ("the extension of a chunk", |out| {
        out.write_all(PART)?;
        out.write_all(CHUNKED)?;
        out.write_all(b"2710;")?;
        dribble(out, b"x")
    }),
    ("trailers", |out| {
        out.write_all(PART)?;
        out.write_all(CHUNKED)?;
        out.write_all(b"2710\r\n")?;
        out.write_all(&[b'x'; FILE_BYTES])?;
        out.write_all(b"\r\n0\r\n")?;
        flood(out, b"X-Trailer: 1\r\n")
    }),
];

#[test]
fn an_http_answer_without_an_end_ends_the_load() {
    in_netns(
        "hostile::an_http_answer_without_an_end_ends_the_load",
        || {
            let world = World::new(V4);
            for (name, answer) in ENDLESS_ANSWERS {
                let file = pattern(FILE_BYTES);
                let server = Server::start(move |asked, out| match asked.range == Some(0..1) {
                    true => good(asked, &file, out),
                    false => answer(out),
                });
                let opened = world.open(&server.url(V4.host)).expect(name);
                let memory = memory_for(FILE_BYTES);
                let loader = Loader::new(&world.nic).attempts(2).idle_limit(LIMIT);
                let part = whole(&memory, FILE_BYTES);
                let loaded = loader.load(&opened, &[part], &mut guarded());
                let error = told(&loaded.expect_err(name));
                assert_ended_by_limit(&error, 2, name);
            }
            world.end();
        },
    );
}

/// The kernel wakes a program for few bytes only if that has asked for few.
#[test]
fn an_http_answer_without_an_end_ends_a_load_over_kernel_sockets() {
    const TEST: &str = "hostile::an_http_answer_without_an_end_ends_a_load_over_kernel_sockets";
    in_netns(TEST, || {
        let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
        for (name, answer) in ENDLESS_ANSWERS {
            let file = pattern(FILE_BYTES);
            let server = Server::start(move |asked, out| match asked.range == Some(0..1) {
                true => good(asked, &file, out),
                false => answer(out),
            });
            let request = HttpRequest::new(server.url("127.0.0.1").parse().expect("a URL"));
            let opened = HttpFile::open(&nic, request).expect(name);
            let memory = memory_for(FILE_BYTES);
            let loader = Loader::new(&nic).attempts(2).idle_limit(LIMIT);
            let part = whole(&memory, FILE_BYTES);
            let loaded = loader.load(&opened, &[part], &mut guarded());
            let error = told(&loaded.expect_err(name));
            assert_ended_by_limit(&error, 2, name);
        }
    });
}

#[test]
fn an_http_answer_without_an_end_ends_an_open() {
    in_netns(
        "hostile::an_http_answer_without_an_end_ends_an_open",
        || {
            let world = World::new(V4);
            for (name, answer) in &ENDLESS_ANSWERS[..3] {
                let server = Server::start(move |_, out| answer(out));
                let loader = Loader::new(&world.nic).idle_limit(LIMIT);
                let request = HttpRequest::new(server.url(V4.host).parse().expect("a URL"));
                let opened = Checkpoint::open_cancellable(&loader, request, &mut guard());
                let error = told(&opened.expect_err(name));
                assert_ended_by_limit(&error, 4, name);
            }
            world.end();
        },
    );
}

/// Sends chunks without payload as long as the client reads them.
fn empty_chunks(_: usize, peer: &mut Peer) -> io::Result<()> {
    peer.negotiate(ACK, 0, None)?;
    let (cookie, ..) = peer.request()?;
    loop {
        peer.say(&[&chunk(cookie, (0, 0), 0, &[])])?;
        thread::sleep(PAUSE);
    }
}

/// Sends the head of a reply in small pieces.
fn slow_header(_: usize, peer: &mut Peer) -> io::Result<()> {
    peer.negotiate(ACK, 0, None)?;
    let (cookie, ..) = peer.request()?;
    // An error, with a text of 4096 bytes.
    let text = [b'x'; 4096];
    let head = [&5_u32.to_be_bytes()[..], &4096_u16.to_be_bytes()].concat();
    let reply = chunk(cookie, (1, 0x8001), 6 + 4096, &[&head, &text]);
    for byte in reply {
        peer.say(&[&[byte]])?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

#[test]
fn nbd_replies_without_payload_end_a_load_and_a_store() {
    const TEST: &str = "hostile::nbd_replies_without_payload_end_a_load_and_a_store";
    in_netns(TEST, || {
        let world = World::new(V4);
        type Script = fn(usize, &mut Peer) -> io::Result<()>;
        let size = nbd_script::SIZE;
        let memory = memory_for(size);
        let scripts: [(&str, Script); 2] = [("empty", empty_chunks), ("slow", slow_header)];
        for (name, script) in scripts {
            let (port, _) = serve(script);
            let export = open(&world, port).expect(name);
            let loader = Loader::new(&world.nic).attempts(2).idle_limit(LIMIT);
            let part = whole(&memory, size);
            let loaded = loader.load(Source::from(&export), &[part], &mut guarded());
            let error = told(&loaded.expect_err(name));
            assert_ended_by_limit(&error, 2, name);
        }
        // A store: an endless reply, after its payload was taken.
        let (port, _) = serve(slow_header);
        let export = open(&world, port).expect("it is there");
        let part = devmem_transfer::store::Part {
            target: 0..size as u64,
            offset: 0,
        };
        let storer = Storer::new(&world.nic).attempts(2).idle_limit(LIMIT);
        let stored = storer.store(&export, &memory, &[part], &mut guarded());
        let error = told(&stored.expect_err("it has no end"));
        assert!(
            error.contains("the server answered no request and took"),
            "{error}"
        );
        world.end();
    });
}

#[test]
fn an_nbd_handshake_byte_by_byte_ends_an_open() {
    in_netns(
        "hostile::an_nbd_handshake_byte_by_byte_ends_an_open",
        || {
            let world = World::new(V4);
            let (port, _) = serve(|_, peer| {
                peer.greet()?;
                loop {
                    // The answer to an option of as many bytes as are allowed.
                    peer.say(&[&0x0003_e889_0455_65a9_u64.to_be_bytes(), &[0, 0, 0, 8]])?;
                    peer.say(&[&[0, 0, 0, 1, 0, 1, 0, 0]])?;
                    for _ in 0..64 << 10 {
                        peer.say(&[b"x"])?;
                        thread::sleep(PAUSE);
                    }
                }
            });
            let url = format!("nbd://{}:{port}/disk", V4.host)
                .parse()
                .expect("a URL");
            let opened =
                devmem_transfer::load::NbdExport::open_cancellable(&world.nic, url, &mut guard());
            let error = told(&opened.expect_err("it has no end"));
            assert!(
                error.contains("the server does not answer in time"),
                "{error}"
            );
            world.end();
        },
    );
}

/// Fields whose values an error shows.
const HOSTILE_FIELDS: [&str; 5] = [
    "Content-Encoding: gzip, ",
    "Transfer-Encoding: ",
    "Content-Length: ",
    "X-Error-Message: ",
    "Location: ftp://",
];

#[test]
fn the_texts_of_a_server_have_nothing_that_a_terminal_obeys() {
    const HOSTILE: &str = "a\u{9b}31m\u{202e}b\u{2066}";
    const TEST: &str = "hostile::the_texts_of_a_server_have_nothing_that_a_terminal_obeys";
    in_netns(TEST, || {
        let world = World::new(V4);
        let check = |error: String, of: &str| {
            let first = error.lines().next().unwrap_or_default();
            assert!(!error.contains("\x1b"), "{of}: {error:?}");
            assert!(error.contains("\\u{9b}31m\\u{202e}b"), "{of}: {error:?}");
            let is_obeyed = |c| devmem_tcp::text::is_unprintable(c) && c != '\n';
            assert!(!error.contains(is_obeyed), "{of}: {error:?}");
            assert!(error.lines().count() <= 2, "{of}: {error:?}");
            assert!(!first.is_empty(), "{of}");
        };
        for field in HOSTILE_FIELDS {
            let server = Server::start(move |_, out| {
                write!(out, "HTTP/1.1 301 Moved\r\n{field}{HOSTILE}\r\n\r\n")?;
                Ok(After::Close)
            });
            let error = world.open(&server.url(V4.host)).expect_err(field);
            let error = told(&error);
            match field.starts_with("Location") {
                // As in a URL.
                true => assert!(error.contains("ftp://a%C2%9B31m"), "{error:?}"),
                false => check(error, field),
            }
        }
        let file = pattern(FILE_BYTES);
        let server = Server::start(move |asked, out| match asked.range == Some(0..1) {
            true => good(asked, &file, out),
            false => {
                out.write_all(PART)?;
                write!(out, "ETag: \"{HOSTILE}\"\r\nContent-Length: 10000\r\n\r\n")?;
                Ok(After::Close)
            }
        });
        let opened = world.open(&server.url(V4.host)).expect("it opens");
        let part = whole(&memory_for(FILE_BYTES), FILE_BYTES);
        let loaded = Loader::new(&world.nic).load(&opened, &[part], &mut guarded());
        check(loaded.expect_err("it has changed").to_string(), "ETag");
        // The refusal of an NBD server, with what seems to be a remedy.
        let (port, _) = serve(|_, peer| {
            let go = peer.up_to_go(ACK)?;
            let text = format!("\x1b[2J{HOSTILE}\n  run this as root");
            peer.answer(go, 1 << 31 | 2, text.as_bytes())
        });
        check(
            open(&world, port)
                .expect_err("refused")
                .to_string()
                .replace("\\u{1b}[2J", ""),
            "NBD",
        );
        let url = "nbd://host/%1b%c2%9b31m%e2%80%aeb";
        let url: devmem_transfer::load::NbdUrl = url.parse().expect("a URL");
        assert!(
            !url.to_string().contains(devmem_tcp::text::is_unprintable),
            "{url}"
        );
        world.end();
    });
}
