//! NBD servers by script: answers that no stock server gives, and the stock ones' mistakes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{LoadError, Loaded, Loader, NbdExport, Part};
use devmem_transfer::store::{Durability, Storer};

use crate::world::{V4, World, memory_for, pattern, told, whole};

pub const SIZE: usize = 100_000;
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const OPT_EXPORT_NAME: u32 = 1;
const OPT_STRUCTURED_REPLY: u32 = 8;
pub const ACK: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = 1 << 31 | 1;
const HAS_FLAGS: u16 = 1;
const MULTI_CONN: u16 = 1 << 8;
const EIO: u32 = 5;
const ESHUTDOWN: u32 = 108;

/// One connection of a server.
pub struct Peer(pub TcpStream);

impl Peer {
    pub fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).map(|()| bytes)
    }

    pub fn u32(&mut self) -> io::Result<u32> {
        self.read().map(u32::from_be_bytes)
    }

    pub fn say(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.0.write_all(&parts.concat())
    }

    /// Greets, and reads the client's flags.
    pub fn greet(&mut self) -> io::Result<()> {
        self.say(&[GREETING])?;
        self.u32().map(drop)
    }

    /// Reads an option; returns its number and its data.
    fn option(&mut self) -> io::Result<(u32, Vec<u8>)> {
        assert_eq!(&self.read::<8>()?, b"IHAVEOPT");
        let (option, len) = (self.u32()?, self.u32()?);
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data)?;
        Ok((option, data))
    }

    pub fn answer(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u32;
        let head = [option, kind, len].map(u32::to_be_bytes).concat();
        self.say(&[&0x0003_e889_0455_65a9_u64.to_be_bytes(), &head, data])
    }

    /// Negotiates up to the answer to the request for an export; returns the number of the last option.
    pub fn up_to_go(&mut self, structured: u32) -> io::Result<u32> {
        self.greet()?;
        let (option, _) = self.option()?;
        assert_eq!(option, OPT_STRUCTURED_REPLY);
        self.answer(option, structured, &[])?;
        self.option().map(|(option, _)| option)
    }

    /// Negotiates an export of `SIZE` bytes.
    pub fn negotiate(
        &mut self,
        structured: u32,
        flags: u16,
        block: Option<[u32; 3]>,
    ) -> io::Result<()> {
        let go = self.up_to_go(structured)?;
        self.answer(go, INFO, &export(SIZE as u64, flags))?;
        if let Some(sizes) = block {
            self.answer(go, INFO, &blocks(sizes))?;
        }
        self.answer(go, ACK, &[])
    }

    /// Reads a request; returns its cookie, and its range.
    pub fn request(&mut self) -> io::Result<(u64, usize, usize)> {
        let _magic_and_flags: [u8; 8] = self.read()?;
        let cookie = u64::from_be_bytes(self.read()?);
        let at = u64::from_be_bytes(self.read()?) as usize;
        Ok((cookie, at, self.u32()? as usize))
    }
}

fn export(size: u64, flags: u16) -> Vec<u8> {
    [
        &[0, 0][..],
        &size.to_be_bytes(),
        &(HAS_FLAGS | flags).to_be_bytes(),
    ]
    .concat()
}

fn blocks(sizes: [u32; 3]) -> Vec<u8> {
    [&[0, 3][..], &sizes.map(u32::to_be_bytes).concat()].concat()
}

pub fn simple(cookie: u64, error: u32) -> Vec<u8> {
    [
        &0x6744_6698_u32.to_be_bytes()[..],
        &error.to_be_bytes(),
        &cookie.to_be_bytes(),
    ]
    .concat()
}

/// A chunk of a structured reply; `rest` is not its payload where `len` says otherwise.
pub fn chunk(cookie: u64, (last, kind): (u16, u16), len: u32, rest: &[&[u8]]) -> Vec<u8> {
    let magic = 0x668e_33ef_u32.to_be_bytes();
    let kinds = [last, kind].map(u16::to_be_bytes).concat();
    [
        &magic[..],
        &kinds,
        &cookie.to_be_bytes(),
        &len.to_be_bytes(),
        &rest.concat(),
    ]
    .concat()
}

fn data(cookie: u64, last: u16, at: usize, bytes: &[u8]) -> Vec<u8> {
    let len = 8 + bytes.len() as u32;
    chunk(cookie, (last, 1), len, &[&(at as u64).to_be_bytes(), bytes])
}

fn hole(cookie: u64, last: u16, at: usize, len: u32) -> Vec<u8> {
    let at = (at as u64).to_be_bytes();
    chunk(cookie, (last, 2), 12, &[&at, &len.to_be_bytes()])
}

/// Runs `script` for each connection, with its number; returns the port and the number of connections so far.
pub fn serve(
    script: impl Fn(usize, &mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (count, script) = (Arc::new(AtomicUsize::new(0)), Arc::new(script));
    let connections = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let script = Arc::clone(&script);
            let run = move || {
                let mut peer = Peer(stream);
                script(number, &mut peer)?;
                // An end without a reset, also if the client still sends.
                peer.0.shutdown(Shutdown::Write)?;
                until_closed(&mut peer)
            };
            // The client may end a connection at any time.
            thread::spawn(move || drop::<io::Result<()>>(run()));
        }
    });
    (port, connections)
}

pub fn open(world: &World, port: u16) -> Result<NbdExport, LoadError> {
    let url = format!("nbd://{}:{port}/disk", V4.host);
    NbdExport::open(&world.nic, url.parse().expect("a URL"))
}

/// Waits for the end of the connection.
fn until_closed(peer: &mut Peer) -> io::Result<()> {
    peer.0.read_to_end(&mut Vec::new()).map(drop)
}

type Script = fn(&mut Peer) -> io::Result<()>;

/// What a server does, and the error.
const HANDSHAKES: &[(Script, &str)] = &[
    (|_| Ok(()), "the server closed the connection"),
    (
        |peer| peer.say(&[&GREETING[..9]]),
        "the server closed the connection",
    ),
    (Peer::greet, "the server closed the connection"),
    (
        |peer| peer.up_to_go(ACK).map(drop),
        "the server closed the connection",
    ),
    (
        |peer| peer.say(&[b"SSH-2.0-OpenSSH_9"]),
        "it does not begin as an NBD server does",
    ),
    (
        |peer| peer.say(&[b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53"]),
        "it has the old negotiation: one export, without a name, and not \"disk\"",
    ),
    (
        |peer| peer.say(&[b"NBDMAGICNBDMAGIC"]),
        "it does not go on as an NBD server does",
    ),
    (
        |peer| peer.say(&[&GREETING[..16], &[0, 0]]),
        "the server closed the connection",
    ),
    (
        |peer| {
            peer.greet()?;
            peer.option()?;
            peer.answer(7, ACK, &[])
        },
        "an answer to another option",
    ),
    (
        |peer| {
            let go = peer.up_to_go(ACK)?;
            let head = [go, INFO, u32::MAX].map(u32::to_be_bytes).concat();
            peer.say(&[&0x0003_e889_0455_65a9_u64.to_be_bytes(), &head])
        },
        "an answer of more than 64 KiB",
    ),
    (
        |peer| {
            let go = peer.up_to_go(ACK)?;
            peer.answer(go, ACK, &[])
        },
        "it does not tell the size of the export",
    ),
    (
        |peer| {
            let go = peer.up_to_go(ACK)?;
            loop {
                peer.answer(go, INFO, &export(1, 0))?;
            }
        },
        "its answers do not end",
    ),
    (
        |peer| {
            let go = peer.up_to_go(ACK)?;
            peer.answer(go, 1 << 31 | 5, &[])
        },
        "it requires TLS",
    ),
    (
        |peer| {
            let go = peer.up_to_go(ACK)?;
            peer.answer(go, 1 << 31 | 2, b"not on Sundays")
        },
        "NBD error 2 (not on Sundays)",
    ),
];

#[test]
fn a_handshake_that_makes_no_sense_is_an_error_with_its_cause() {
    in_netns(
        "nbd_script::a_handshake_that_makes_no_sense_is_an_error_with_its_cause",
        || {
            let world = World::new(V4);
            for (script, expected) in HANDSHAKES {
                let script = *script;
                let (port, _) = serve(move |_, peer| script(peer));
                let error = told(&open(&world, port).expect_err(expected));
                assert!(error.contains(expected), "{expected}: {error}");
            }
            // Zero, no power of two, larger than the protocol allows, longest payload shorter than a block.
            for sizes in [
                [0, 0, 1],
                [3, 3, 9],
                [1 << 17, 1 << 17, 1 << 20],
                [512, 512, 511],
            ] {
                let (port, _) = serve(move |_, peer| peer.negotiate(ACK, 0, Some(sizes)));
                let error = told(&open(&world, port).expect_err("no block"));
                assert!(error.contains("the sizes of blocks"), "{sizes:?}: {error}");
            }
            world.end();
        },
    );
}

/// Loads all bytes over at most `connections` connections, in as many pieces.
fn load(
    world: &World,
    export: &NbdExport,
    connections: usize,
) -> Result<(Loaded, Vec<u8>), LoadError> {
    let memory = memory_for(SIZE);
    memory.fill(0..SIZE, 0xee).expect("it is mapped");
    let loader = Loader::new(&world.nic)
        .attempts(2)
        .connections(connections)
        .piece_bytes(SIZE as u64 / connections as u64)
        .pipeline(1);
    let part = whole(&memory, SIZE);
    let loaded = loader.load(export, &[part], &mut |_| ControlFlow::Continue(()))?;
    Ok((loaded, memory.slice(0..SIZE).to_vec()))
}

#[test]
fn a_server_without_option_go_and_structured_replies_is_read_over_one_connection() {
    const TEST: &str =
        "nbd_script::a_server_without_option_go_and_structured_replies_is_read_over_one_connection";
    in_netns(TEST, || {
        let world = World::new(V4);
        let disk = Arc::new(pattern(SIZE));
        let served = Arc::clone(&disk);
        let (port, connections) = serve(move |_, peer| {
            let go = peer.up_to_go(UNSUPPORTED)?;
            peer.answer(go, UNSUPPORTED, &[])?;
            let (option, name) = peer.option()?;
            assert_eq!((option, &name[..]), (OPT_EXPORT_NAME, &b"disk"[..]));
            // Without the 124 zeros, which the client has asked to leave out.
            peer.say(&[&(SIZE as u64).to_be_bytes(), &HAS_FLAGS.to_be_bytes()])?;
            loop {
                let (cookie, at, len) = peer.request()?;
                peer.say(&[&simple(cookie, 0), &served[at..at + len]])?;
            }
        });
        let export = open(&world, port).expect("it is there");
        assert_eq!((export.size(), export.block_bytes()), (SIZE as u64, 1));
        assert!(!export.takes_many_connections() && !export.is_read_only());
        let (_, bytes) = load(&world, &export, 4).expect("it loads");
        assert!(bytes == *disk);
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        // The connection that opened the export does not matter: nothing is sent.
        let mut never_cancelled = |_| ControlFlow::Continue(());
        let storer = Storer::new(&world.nic);
        let refused = storer
            .trim(&export, &[0..4096], &mut never_cancelled)
            .unwrap_err();
        assert!(told(&refused).contains("has no NBD_CMD_TRIM"), "{refused}");
        let durable = storer.durability(Durability::EachWrite);
        let part = devmem_transfer::store::Part {
            target: 0..4096,
            offset: 0,
        };
        let refused = durable.store(&export, &memory_for(SIZE), &[part], &mut never_cancelled);
        let refused = told(&refused.unwrap_err());
        assert!(refused.contains("FUA"), "{refused}");
        world.end();
    });
}

#[test]
fn the_first_piece_of_an_export_is_longer_than_the_others() {
    const TEST: &str = "nbd_script::the_first_piece_of_an_export_is_longer_than_the_others";
    const MIB: usize = 1 << 20;
    const LONG: usize = 6 * MIB + 5;
    in_netns(TEST, || {
        let world = World::new(V4);
        let disk = Arc::new(pattern(LONG));
        let lens = Arc::new(Mutex::new(Vec::new()));
        let (served, asked) = (Arc::clone(&disk), Arc::clone(&lens));
        let (port, _) = serve(move |_, peer| {
            let go = peer.up_to_go(UNSUPPORTED)?;
            peer.answer(go, INFO, &export(LONG as u64, 0))?;
            peer.answer(go, ACK, &[])?;
            loop {
                let (cookie, at, len) = peer.request()?;
                if len == 0 {
                    // The end.
                    return Ok(());
                }
                asked.lock().unwrap().push(len);
                peer.say(&[&simple(cookie, 0), &served[at..at + len]])?;
            }
        });
        let export = open(&world, port).expect("it is there");
        let load = |loader: Loader| {
            let memory = memory_for(LONG);
            let part = whole(&memory, LONG);
            let loaded = loader.load(&export, &[part], &mut |_| ControlFlow::Continue(()));
            loaded.expect("it loads");
            assert!(memory.slice(0..LONG).to_vec() == *disk);
            std::mem::take(&mut *lens.lock().unwrap())
        };
        let loader = || Loader::new(&world.nic);
        assert_eq!(load(loader()), [4 * MIB, MIB, MIB, 5]);
        let pieces = load(loader().piece_bytes(MIB as u64 / 2));
        assert_eq!(pieces, [4 * MIB, MIB / 2, MIB / 2, MIB / 2, MIB / 2, 5]);
        assert_eq!(load(loader().piece_bytes(8 * MIB as u64)), [LONG]);
        world.end();
    });
}

#[test]
fn chunks_in_any_order_holes_and_a_server_that_shuts_down_lose_no_byte() {
    const TEST: &str =
        "nbd_script::chunks_in_any_order_holes_and_a_server_that_shuts_down_lose_no_byte";
    in_netns(TEST, || {
        let world = World::new(V4);
        let mut disk = pattern(SIZE);
        disk[40_000..70_000].fill(0);
        let served = disk.clone();
        let (port, connections) = serve(move |number, peer| {
            peer.negotiate(ACK, MULTI_CONN, Some([4, 32, 1 << 20]))?;
            let (cookie, at, len) = peer.request()?;
            assert_eq!((at, len), (0, SIZE));
            if number == 0 {
                // Some of it, and the news that there will be no more.
                peer.say(&[&data(cookie, 0, 70_000, &served[70_000..80_000])])?;
                let error = [&ESHUTDOWN.to_be_bytes()[..], &[0, 0]];
                return peer.say(&[&chunk(cookie, (1, 0x8001), 6, &error)]);
            }
            peer.say(&[
                &data(cookie, 0, 70_000, &served[70_000..]),
                &hole(cookie, 0, 40_000, 30_000),
                &data(cookie, 0, 0, &served[..40_000]),
                &chunk(cookie, (1, 0), 0, &[]),
            ])
        });
        let export = open(&world, port).expect("it is there");
        let (loaded, bytes) = load(&world, &export, 1).expect("it loads");
        assert!(bytes == disk);
        assert_eq!((loaded.broken, loaded.repeated), (1, 1));
        assert_eq!(connections.load(Ordering::Relaxed), 2);
        let half_a_block = Part {
            source: 0..6,
            memory: memory_for(SIZE),
            offset: 0,
        };
        let loader = Loader::new(&world.nic);
        let refused = loader.load(&export, &[half_a_block], &mut |_| ControlFlow::Continue(()));
        let refused = told(&refused.expect_err("the block is 4"));
        assert!(refused.contains("multiples of 4"), "{refused}");
        world.end();
    });
}

type Reply = fn(u64) -> Vec<u8>;

/// Replies to a read of the whole export in structured form, and the error.
const REPLIES: &[(Reply, &str)] = &[
    (|_| vec![0x55; 64], "a reply does not begin as one"),
    (
        |cookie| simple(cookie, 0),
        "of the kind that was not negotiated",
    ),
    (
        |cookie| simple(cookie, EIO),
        "cannot read its export at byte 0: Input/output error",
    ),
    (
        |cookie| data(cookie + 1, 1, 0, &[7; 9]),
        "a reply without a request",
    ),
    (
        |cookie| data(cookie, 1, SIZE, &[7; 9]),
        "bytes that were not requested",
    ),
    (
        |cookie| hole(cookie, 1, 1, SIZE as u32),
        "bytes that were not requested",
    ),
    (
        |cookie| hole(cookie, 1, usize::MAX, u32::MAX),
        "bytes that were not requested",
    ),
    (
        |cookie| [data(cookie, 0, 0, &[7; 9]), data(cookie, 0, 8, &[7; 9])].concat(),
        "or some twice",
    ),
    (
        |cookie| data(cookie, 1, 0, &[7; 9]),
        "a reply ends before its last byte",
    ),
    (
        |cookie| chunk(cookie, (1, 1), u32::MAX, &[&[0; 8]]),
        "bytes that were not requested",
    ),
    (
        |cookie| chunk(cookie, (1, 9), 0, &[]),
        "a chunk of an unknown type",
    ),
    (
        |cookie| chunk(cookie, (1, 0x8001), u32::MAX, &[]),
        "a chunk of an unknown type",
    ),
];

#[test]
fn replies_that_make_no_sense_are_errors_with_their_cause() {
    const TEST: &str = "nbd_script::replies_that_make_no_sense_are_errors_with_their_cause";
    in_netns(TEST, || {
        let world = World::new(V4);
        let of_error = |cookie, at: &[u8], text: &[u8]| {
            let len = (6 + text.len() + at.len()) as u32;
            let text_len = (text.len() as u16).to_be_bytes();
            let kind = if at.is_empty() { 0x8001 } else { 0x8002 };
            chunk(
                cookie,
                (1, kind),
                len,
                &[&EIO.to_be_bytes(), &text_len, text, at],
            )
        };
        let in_mid_reply = move |cookie| {
            let error = of_error(cookie, &50_u64.to_be_bytes(), b"bad sector");
            [data(cookie, 0, 0, &[7; 50]), error].concat()
        };
        let check = |reply: Arc<dyn Fn(u64) -> Vec<u8> + Send + Sync>, expected: &str| {
            let (port, _) = serve(move |_, peer| {
                peer.negotiate(ACK, 0, None)?;
                let (cookie, ..) = peer.request()?;
                peer.say(&[&reply(cookie)])
            });
            let export = open(&world, port).expect("it is there");
            let error = told(&load(&world, &export, 1).expect_err(expected));
            assert!(error.contains(expected), "{expected}: {error}");
        };
        for (reply, expected) in REPLIES {
            check(Arc::new(*reply), expected);
        }
        check(
            Arc::new(in_mid_reply),
            "cannot read its export at byte 0: Input/output error",
        );
        world.end();
    });
}

#[test]
fn an_open_and_a_connection_of_a_load_or_a_store_can_be_cancelled_in_the_handshake() {
    const TEST: &str = "nbd_script::an_open_and_a_connection_of_a_load_or_a_store_can_be_cancelled_in_the_handshake";
    in_netns(TEST, || {
        let world = World::new(V4);
        // The first connection ends after its handshake, the others do not come to the end of theirs.
        let (port, connections) = serve(|number, peer| match number {
            0 => peer.negotiate(ACK, 0, None),
            _ => until_closed(peer),
        });
        let url = || {
            format!("nbd://{}:{port}/disk", V4.host)
                .parse()
                .expect("a URL")
        };
        let export = NbdExport::open(&world.nic, url()).expect("it is there");
        let mut left = 3;
        let mut stop_at_third = || {
            left -= 1;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        let opened = NbdExport::open_cancellable(&world.nic, url(), &mut stop_at_third);
        assert!(matches!(opened, Err(LoadError::Cancelled)), "{opened:?}");
        // The connection that opened the export has ended.
        let memory = memory_for(SIZE);
        let part = whole(&memory, SIZE);
        let mut calls = 0;
        let loaded = Loader::new(&world.nic).load(&export, &[part], &mut |_| {
            calls += 1;
            match calls {
                20 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        assert!(matches!(loaded, Err(LoadError::Cancelled)), "{loaded:?}");
        let mut calls = 0;
        let part = devmem_transfer::store::Part {
            target: 0..SIZE as u64,
            offset: 0,
        };
        let stored = Storer::new(&world.nic).store(&export, &memory, &[part], &mut |_| {
            calls += 1;
            match calls {
                20 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        let error = told(&stored.expect_err("it was cancelled"));
        assert!(error.contains("cancelled"), "{error}");
        // Each was in its first handshake when it was cancelled.
        assert_eq!(connections.load(Ordering::Relaxed), 4);
        world.end();
    });
}
