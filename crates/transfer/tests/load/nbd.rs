//! Stock NBD servers: qemu-nbd, nbdkit and nbd-server.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use devmem_linux::test_util::in_netns;
use devmem_transfer::load::{LoadError, Loader, NbdExport, Part};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{has, start, until_listening};
use crate::world::{V4, World, load_counted, memory_for, pattern, told, whole};

const PORT: u16 = 10_809;
const EXPORT_BYTES: usize = 12 << 20;
/// A range that is not written, which some servers describe instead of sending it.
const HOLE: std::ops::Range<usize> = 4 << 20..7 << 20;

/// Writes a file with a hole, and returns its bytes.
fn sparse_file(path: &Path) -> Vec<u8> {
    let mut bytes = pattern(EXPORT_BYTES);
    let file = File::create(path).expect("there is room");
    file.set_len(EXPORT_BYTES as u64).expect("there is room");
    file.write_all_at(&bytes[..HOLE.start], 0)
        .expect("there is room");
    let after = HOLE.end as u64;
    file.write_all_at(&bytes[HOLE.end..], after)
        .expect("there is room");
    bytes[HOLE].fill(0);
    bytes
}

/// Loads the whole export over one connection, and compares every byte.
#[track_caller]
fn load_once(world: &World, export: &NbdExport, expected: &[u8]) {
    let memory = memory_for(expected.len());
    let part = whole(&memory, expected.len());
    let loader = Loader::new(&world.nic).connections(1).attempts(1);
    let loaded = loader.load(export, &[part], &mut |_| ControlFlow::Continue(()));
    let loaded = loaded.expect("it loads");
    assert_eq!((loaded.connections, loaded.broken), (1, 0));
    assert!(memory.slice(0..expected.len()).to_vec() == expected);
}

/// Loads the whole export into memory that is not zero, and compares every byte.
#[track_caller]
fn load_all(world: &World, url: &str, expected: &[u8]) {
    let export = NbdExport::open(&world.nic, url.parse().unwrap()).expect("it is there");
    assert_eq!(export.size(), expected.len() as u64);
    let memory = memory_for(expected.len());
    for (connections, piece_bytes, window) in
        [(1, 1 << 20, 16), (4, 300 << 10, 2), (1, 64 << 20, 1)]
    {
        memory.fill(0..memory.size(), 0xee).unwrap();
        let part = whole(&memory, expected.len());
        let loader = Loader::new(&world.nic)
            .connections(connections)
            .piece_bytes(piece_bytes)
            .pipeline(window);
        let (loaded, together) = load_counted(&loader, &export, part);
        assert_eq!((loaded.broken, loaded.repeated), (0, 0));
        let is_many = export.takes_many_connections() && connections > 1;
        assert_eq!(together > 1, is_many, "{loaded:?}");
        assert!(
            memory.slice(0..expected.len()).to_vec() == expected,
            "{url}"
        );
    }
}

/// Serves a sparse file with the command that `serve` makes, and loads it.
fn load_from(test: &str, program: &str, export: &str, serve: impl Fn(&Path) -> Command) {
    if !has(test, program, "--version") {
        return;
    }
    in_netns(test, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        let expected = sparse_file(&path);
        let mut command = serve(&path);
        let _server = start(command.stderr(Stdio::null()), PORT);
        let world = World::far(V4);
        load_all(&world, &format!("nbd://{}/{export}", V4.host), &expected);
        world.end();
    });
}

#[test]
fn an_export_of_qemu_nbd_arrives_with_its_holes() {
    load_from(
        "nbd::an_export_of_qemu_nbd_arrives_with_its_holes",
        "qemu-nbd",
        "disk",
        |path| {
            let mut command = Command::new("qemu-nbd");
            let options = "--format raw --read-only --persistent --shared 16 --export-name disk";
            command.args(options.split(' ')).arg(path);
            command
        },
    );
}

#[test]
fn an_export_of_nbdkit_arrives() {
    load_from("nbd::an_export_of_nbdkit_arrives", "nbdkit", "", |path| {
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--readonly", "file"])
            .arg(path);
        command
    });
}

#[test]
fn the_connection_that_opened_an_export_loads_it_from_a_server_of_one_client() {
    const TEST: &str =
        "nbd::the_connection_that_opened_an_export_loads_it_from_a_server_of_one_client";
    if !has(TEST, "qemu-nbd", "--version") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        let expected = sparse_file(&path);
        let mut command = Command::new("qemu-nbd");
        command.args("--format raw --persistent --shared 1 --export-name disk".split(' '));
        let _server = start(command.arg(&path).stderr(Stdio::null()), PORT);
        let world = World::new(V4);
        let url = format!("nbd://{}/disk", V4.host).parse().unwrap();
        let export = NbdExport::open(&world.nic, url).expect("it is there");
        // The server takes another connection only when this one has ended.
        load_once(&world, &export, &expected);
        load_once(&world, &export, &expected);
        world.end();
    });
}

#[test]
fn a_server_that_was_started_again_after_it_was_opened_gets_a_new_connection() {
    const TEST: &str =
        "nbd::a_server_that_was_started_again_after_it_was_opened_gets_a_new_connection";
    with_nbdkit(TEST, (&[], &[]), |world, export, expected, restart| {
        restart();
        load_once(world, export, expected);
    });
}

/// Opens an export of nbdkit in a network namespace; `body` gets the export, its bytes, and a function that kills the server and starts it again, without
/// the filters and their `parameters` that it had first.
fn with_nbdkit(
    test: &str,
    at_first: (&[&str], &[&str]),
    body: impl FnOnce(&World, &NbdExport, &[u8], &mut dyn FnMut()),
) {
    if !has(test, "nbdkit", "--version") {
        return;
    }
    in_netns(test, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        let expected = sparse_file(&path);
        let serve = |(filters, parameters): (&[&str], &[&str])| {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--readonly"]);
            command.args(filters).arg("file").arg(&path);
            start(command.args(parameters), PORT)
        };
        let mut server = Some(serve(at_first));
        let world = World::new(V4);
        let url = format!("nbd://{}/", V4.host).parse().unwrap();
        let export = NbdExport::open(&world.nic, url).expect("it is there");
        body(&world, &export, &expected, &mut || {
            // The old one must be gone before the new one has its port.
            server.take().expect("it runs").kill();
            server = Some(serve((&[], &[])));
        });
        drop(server);
        world.end();
    });
}

#[test]
fn a_server_that_is_killed_and_started_again_in_the_middle_sends_the_rest() {
    const TEST: &str =
        "nbd::a_server_that_is_killed_and_started_again_in_the_middle_sends_the_rest";
    // A megabyte in each second: the replies that are in the buffers of its kernel when it is killed are not all.
    let slowly: (&[&str], &[&str]) = (&["--filter=rate"], &["rate=8M"]);
    with_nbdkit(TEST, slowly, |world, export, expected, restart| {
        let memory = memory_for(EXPORT_BYTES);
        let part = whole(&memory, EXPORT_BYTES);
        let loader = Loader::new(&world.nic).piece_bytes(1 << 20);
        let mut is_first = true;
        let loaded = loader.load(export, &[part], &mut |so_far| {
            if so_far.bytes > 0 && std::mem::take(&mut is_first) {
                restart();
            }
            ControlFlow::Continue(())
        });
        let loaded = loaded.expect("it goes on");
        assert!(loaded.broken > 0 && loaded.repeated > 0, "{loaded:?}");
        assert!(memory.slice(0..EXPORT_BYTES).to_vec() == *expected);
    });
}

/// An nbd-server in the background, killed at the end.
pub struct Daemon(std::path::PathBuf);

impl Daemon {
    /// Serves the file `path` as the export `disk`, with further lines of configuration for it. Its files are in `folder`.
    #[track_caller]
    pub fn nbd_server(folder: &Path, path: &Path, lines: &str) -> Self {
        let (pid, conf) = (folder.join("pid"), folder.join("conf"));
        let text = format!(
            "[generic]\nport = {PORT}\n[disk]\nexportname = {}\n{lines}",
            path.display()
        );
        std::fs::write(&conf, text).expect("there is room");
        // In the foreground it ends with its first connection.
        let mut command = Command::new("nbd-server");
        command
            .arg("-C")
            .arg(conf)
            .arg("-p")
            .arg(&pid)
            .stderr(Stdio::null());
        let server = Self(pid);
        assert!(command.status().expect("it was found before").success());
        until_listening(PORT);
        server
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn an_export_of_nbd_server_arrives() {
    const TEST: &str = "nbd::an_export_of_nbd_server_arrives";
    if !has(TEST, "nbd-server", "--version") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        let expected = sparse_file(&path);
        let _server = Daemon::nbd_server(folder.path(), &path, "readonly = true\n");
        let world = World::far(V4);
        load_all(&world, &format!("nbd://{}/disk", V4.host), &expected);
        world.end();
    });
}

#[test]
fn an_export_that_is_not_there_is_an_error() {
    const TEST: &str = "nbd::an_export_that_is_not_there_is_an_error";
    if !has(TEST, "qemu-nbd", "--version") {
        return;
    }
    in_netns(TEST, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        sparse_file(&path);
        let mut command = Command::new("qemu-nbd");
        command.args("--format raw --persistent --shared 4 --export-name disk".split(' '));
        let _server = start(command.arg(&path).stderr(Stdio::null()), PORT);
        let world = World::new(V4);
        let url = |export: &str| format!("nbd://{}/{export}", V4.host).parse().unwrap();
        let missing = told(&NbdExport::open(&world.nic, url("nosuch")).unwrap_err());
        assert!(
            missing.contains("there is no export \"nosuch\""),
            "{missing}"
        );
        let names = NbdExport::list(&world.nic, &url("")).expect("it lists them");
        assert_eq!(names, ["disk"]);
        let export = NbdExport::open(&world.nic, url("disk")).unwrap();
        let past_end = Part {
            source: 0..EXPORT_BYTES as u64 + 4096,
            memory: memory_for(EXPORT_BYTES + 4096),
            offset: 0,
        };
        let loader = Loader::new(&world.nic);
        let refused = loader.load(&export, &[past_end], &mut |_| ControlFlow::Continue(()));
        assert!(
            matches!(refused, Err(LoadError::PastEnd { .. })),
            "{refused:?}"
        );
        world.end();
    });
}
