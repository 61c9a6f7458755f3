//! Stores in stock NBD servers: every byte is read back from the server's file, or by a load.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use devmem_linux::test_util::in_netns;
use devmem_tcp::Dmabuf;
use devmem_transfer::load::{Loader, Part as LoadPart};
use devmem_transfer::store::{Durability, Filled, NbdExport, Part, StoreError, Stored, Storer};

use crate::nbd::Daemon;
use crate::process::{Server, has, start};
use crate::world::{V4, World, memory_for, pattern, told};

const PORT: u16 = 10_809;
const EXPORT_BYTES: usize = 6 << 20;

/// A server that takes all writes, and cannot flush them. It has no FUA.
const FLUSH_FAILS: [&str; 7] = [
    "eval",
    "get_size=echo 6M",
    "can_write=exit 0",
    "pwrite=cat >/dev/null",
    "can_flush=exit 0",
    "can_fua=echo none",
    "flush=echo EIO no disk >&2; exit 1",
];

fn url(export: &str) -> devmem_transfer::store::NbdUrl {
    format!("nbd://{}/{export}", V4.host).parse().unwrap()
}

fn open(world: &World, export: &str) -> NbdExport {
    NbdExport::open(&world.nic, url(export)).expect("it is there")
}

/// Makes a file of zeros for an export.
fn disk(path: &Path) {
    let file = File::create(path).expect("there is room");
    file.set_len(EXPORT_BYTES as u64).expect("there is room");
}

/// Runs `test`, the test of this name, with a folder for the server's files in a network namespace, if `program` is here.
fn with_server(name: &'static str, program: &str, test: impl FnOnce(&Path)) {
    if !has(name, program, "--version") {
        return;
    }
    in_netns(name, || {
        let folder = tempfile::tempdir().expect("there is room");
        test(folder.path());
    });
}

/// Serves a disk of zeros with qemu-nbd, and returns its path, too.
fn qemu_nbd_of_zeros(folder: &Path) -> (Server, PathBuf) {
    let path = folder.join("disk");
    disk(&path);
    (qemu_nbd(&path, ""), path)
}

/// The part that is all of the export.
fn all_bytes() -> Part {
    Part {
        target: 0..EXPORT_BYTES as u64,
        offset: 0,
    }
}

fn qemu_nbd(path: &Path, options: &str) -> Server {
    let mut command = Command::new("qemu-nbd");
    command.args("--format raw --persistent --shared 16 --export-name disk".split(' '));
    command.args(options.split_whitespace()).arg(path);
    start(command.stderr(Stdio::null()), PORT)
}

fn nbdkit<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Server {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").args(arguments);
    start(command.stderr(Stdio::null()), PORT)
}

fn never_cancelled(_: devmem_transfer::store::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Memory with these bytes.
fn memory_with(bytes: &[u8]) -> Dmabuf {
    let memory = memory_for(bytes.len());
    memory.copy_in(0, bytes).unwrap();
    memory
}

/// Stores all bytes of an export, from memory.
fn store_all(storer: &Storer, export: &NbdExport, bytes: &[u8]) -> Result<Stored, StoreError> {
    assert_eq!(bytes.len(), EXPORT_BYTES);
    storer.store(
        export,
        &memory_with(bytes),
        &[all_bytes()],
        &mut never_cancelled,
    )
}

/// Reads an export back by a load.
fn read_back(world: &World, export: &NbdExport) -> Vec<u8> {
    let len = export.size() as usize;
    let memory = memory_for(len);
    let part = LoadPart {
        source: 0..len as u64,
        memory: memory.clone(),
        offset: 0,
    };
    let loader = Loader::new(&world.nic);
    loader
        .load(export, &[part], &mut never_cancelled)
        .expect("it loads");
    memory.slice(0..len).to_vec()
}

#[test]
fn qemu_nbd_gets_every_byte_from_memory() {
    const TEST: &str = "store::qemu_nbd_gets_every_byte_from_memory";
    with_server(TEST, "qemu-nbd", |folder| {
        let (_server, path) = qemu_nbd_of_zeros(folder);
        let world = World::new(V4);
        let export = open(&world, "disk");
        let mut expected = pattern(EXPORT_BYTES);
        for (connections, piece, window) in [(1, 1 << 20, 16), (4, 100 << 10, 3)] {
            expected.rotate_left(1);
            let storer = Storer::new(&world.nic)
                .connections(connections)
                .piece_bytes(piece)
                .window(window);
            let stored = store_all(&storer, &export, &expected).expect("it stores");
            assert_eq!(stored.bytes, EXPORT_BYTES as u64);
            assert_eq!((stored.broken, stored.repeated, stored.flushes), (0, 0, 1));
            assert_eq!(stored.copied_sends, 0);
            assert!(fs::read(&path).unwrap() == expected);
        }

        // Parts in another order than in memory, which one request covers; what is around them stays.
        let memory = memory_with(&pattern(64 << 10));
        let parts = [
            Part {
                target: 8192..8704,
                offset: 512,
            },
            Part {
                target: 4096..8192,
                offset: 9000,
            },
        ];
        let storer = Storer::new(&world.nic).durability(Durability::EachWrite);
        let stored = storer
            .store(&export, &memory, &parts, &mut never_cancelled)
            .unwrap();
        assert_eq!((stored.bytes, stored.pieces, stored.flushes), (4608, 1, 0));
        let source = pattern(64 << 10);
        expected[4096..8192].copy_from_slice(&source[9000..9000 + 4096]);
        expected[8192..8704].copy_from_slice(&source[512..1024]);
        assert!(fs::read(&path).unwrap() == expected);
        world.end();
    });
}

#[test]
fn bytes_go_through_two_chunks_and_zeros_are_not_sent() {
    const TEST: &str = "store::bytes_go_through_two_chunks_and_zeros_are_not_sent";
    with_server(TEST, "qemu-nbd", |folder| {
        let path = folder.join("disk");
        fs::write(&path, vec![0xee; EXPORT_BYTES]).expect("there is room");
        let _server = qemu_nbd(&path, "");
        let world = World::new(V4);
        let export = open(&world, "disk");
        let mut expected = pattern(EXPORT_BYTES);
        expected[1 << 20..3 << 20].fill(0);
        let memory = memory_for(512 << 10);
        let storer = Storer::new(&world.nic).piece_bytes(256 << 10);
        let mut fill = |target: std::ops::Range<u64>, place: std::ops::Range<usize>| {
            let bytes = &expected[target.start as usize..target.end as usize];
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(Filled::Zeros);
            }
            memory
                .copy_in(place.start, bytes)
                .map_err(std::io::Error::other)?;
            Ok(Filled::Bytes)
        };
        let all = 0..EXPORT_BYTES as u64;
        let ranges = [all];
        let stored = storer.store_from(&export, &memory, &ranges, &mut fill, &mut never_cancelled);
        let stored = stored.expect("it stores");
        assert_eq!(stored.unsent_bytes, 2 << 20);
        assert!(fs::read(&path).unwrap() == expected);

        storer
            .write_zeroes(&export, &[0..4096], &mut never_cancelled)
            .unwrap();
        expected[..4096].fill(0);
        assert!(fs::read(&path).unwrap() == expected);
        let trimmed = storer
            .trim(&export, &[5 << 20..6 << 20], &mut never_cancelled)
            .unwrap();
        assert_eq!(trimmed.unsent_bytes, 1 << 20);
        world.end();
    });
}

#[test]
fn nbd_server_gets_every_byte() {
    const TEST: &str = "store::nbd_server_gets_every_byte";
    with_server(TEST, "nbd-server", |folder| {
        let path = folder.join("disk");
        disk(&path);
        let _server = Daemon::nbd_server(folder, &path, "flush = true\n");
        let world = World::impaired(V4, "loss=1%,reorder=2%,seed=5");
        let export = open(&world, "disk");
        let expected = pattern(EXPORT_BYTES);
        let storer = Storer::new(&world.nic).piece_bytes(300 << 10);
        let stored = store_all(&storer, &export, &expected).expect("it stores");
        assert_eq!(stored.flushes, 1);
        assert!(fs::read(&path).unwrap() == expected);
        world.end();
    });
}

#[test]
fn a_server_that_was_restarted_and_lost_its_memory_gets_all_bytes_again() {
    const TEST: &str =
        "store::a_server_that_was_restarted_and_lost_its_memory_gets_all_bytes_again";
    with_server(TEST, "nbdkit", |_| {
        let serve = || nbdkit("--filter=rate memory 6M rate=200M".split(' '));
        let mut server = Some(serve());
        let world = World::new(V4);
        let export = open(&world, "");
        let expected = pattern(EXPORT_BYTES);
        let memory = memory_with(&expected);
        let storer = Storer::new(&world.nic)
            .connections(2)
            .piece_bytes(64 << 10)
            .window(4);
        let mut restarts = 0;
        let stored = storer.store(&export, &memory, &[all_bytes()], &mut |so_far| {
            if so_far.bytes > 1 << 20 && restarts == 0 {
                // It forgets what it has acknowledged.
                if let Some(server) = server.take() {
                    server.kill();
                }
                restarts = 1;
            } else if so_far.connections == 0 && server.is_none() {
                server = Some(serve());
            }
            ControlFlow::Continue(())
        });
        let stored = stored.expect("it stores after the restart");
        assert_eq!(stored.bytes, EXPORT_BYTES as u64);
        assert!(stored.repeated * (64 << 10) > 1 << 20, "{stored:?}");
        assert!(stored.broken > 0);
        assert!(read_back(&world, &open(&world, "")) == expected);
        world.end();
    });
}

#[test]
fn errors_of_the_server_name_their_range_and_a_remedy() {
    const TEST: &str = "store::errors_of_the_server_name_their_range_and_a_remedy";
    with_server(TEST, "nbdkit", |_| {
        let world = World::new(V4);
        let bytes = pattern(EXPORT_BYTES);
        let failed = |arguments: &[&str], storer: &Storer| {
            let _server = nbdkit(arguments.iter().copied());
            let stored = store_all(storer, &open(&world, ""), &bytes);
            stored.unwrap_err()
        };
        let plain = Storer::new(&world.nic);
        let writes_fail = ["--filter=error", "memory", "6M", "error-pwrite-rate=100%"];
        for (errno, expected) in [
            ("ENOSPC", "make room"),
            ("EIO", "dmesg"),
            ("EPERM", "forbids"),
        ] {
            let error = failed(
                &[&writes_fail[..], &[&format!("error={errno}")]].concat(),
                &plain,
            );
            let text = told(&error);
            assert!(
                matches!(error, StoreError::Server { .. }) && text.contains(expected),
                "{text}"
            );
        }
        let text = failed(&FLUSH_FAILS, &plain).to_string();
        assert!(text.contains("cannot flush: Input/output error"), "{text}");
        let error = failed(&["--readonly", "memory", "6M"], &plain);
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
        let error = failed(&["memory", "2M"], &plain);
        assert!(
            matches!(
                error,
                StoreError::PastEnd {
                    size: 0x20_0000,
                    ..
                }
            ),
            "{error}"
        );
        let durable = plain.clone().durability(Durability::EachWrite);
        let error = failed(&FLUSH_FAILS, &durable);
        assert!(
            matches!(error, StoreError::Lacks { lacking: "FUA", .. }),
            "{error}"
        );
        world.end();
    });
}

#[test]
fn the_block_sizes_of_the_server_are_obeyed() {
    const TEST: &str = "store::the_block_sizes_of_the_server_are_obeyed";
    with_server(TEST, "nbdkit", |_| {
        let limits = "blocksize-minimum=4096 blocksize-preferred=65536 blocksize-maximum=131072";
        let line =
            format!("--filter=blocksize-policy memory 6M {limits} blocksize-error-policy=error");
        let _server = nbdkit(line.split(' '));
        let world = World::new(V4);
        let export = open(&world, "");
        let expected = pattern(EXPORT_BYTES);
        // The server refuses what is longer than its maximum.
        let stored = store_all(&Storer::new(&world.nic), &export, &expected).expect("it stores");
        assert_eq!(stored.pieces, (EXPORT_BYTES / 131_072) as u64);
        assert!(read_back(&world, &export) == expected);
        let short = Part {
            target: 0..5000,
            offset: 0,
        };
        let refused = Storer::new(&world.nic).store(
            &export,
            &memory_for(8192),
            &[short],
            &mut never_cancelled,
        );
        assert!(
            matches!(refused, Err(StoreError::Unaligned { block: 4096, .. })),
            "{refused:?}"
        );
        world.end();
    });
}

#[test]
fn a_store_that_is_cancelled_or_has_no_server_any_more_says_what_was_acknowledged() {
    const TEST: &str =
        "store::a_store_that_is_cancelled_or_has_no_server_any_more_says_what_was_acknowledged";
    with_server(TEST, "qemu-nbd", |folder| {
        let (server, _) = qemu_nbd_of_zeros(folder);
        let world = World::new(V4);
        let export = open(&world, "disk");
        let memory = memory_with(&pattern(EXPORT_BYTES));
        let storer = Storer::new(&world.nic).piece_bytes(64 << 10).attempts(2);
        let parts = [all_bytes()];
        let cancelled = storer.store(&export, &memory, &parts, &mut |so_far| match so_far.bytes {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        });
        let Err(StoreError::Cancelled {
            acknowledged,
            total,
        }) = cancelled
        else {
            panic!("{cancelled:?}");
        };
        assert!(acknowledged > 0 && total == EXPORT_BYTES as u64);
        let mut server = Some(server);
        let failed = storer.store(&export, &memory, &parts, &mut |so_far| {
            if so_far.bytes > 0 {
                server = None;
            }
            ControlFlow::Continue(())
        });
        let text = told(&failed.unwrap_err());
        assert!(
            text.contains("0 of 6291456 bytes were acknowledged"),
            "{text}"
        );
        world.end();
    });
}
