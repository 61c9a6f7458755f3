//! A client that sends a file on a FUSE file system that does not reply.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::*;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Requests of a FUSE file system (linux include/uapi/linux/fuse.h).
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;
const ENOSYS: i32 = 38;

/// DMA_MAP flags: for reading and writing.
const MAP_RW: u32 = 3;
/// SET_IRQS flags: eventfds that the device raises.
const ASSIGN: u32 = 0x24;

/// A file on a FUSE file system that replies until the file is open, and then no longer. When the control file is dropped,
/// pending requests fail.
struct SilentFile {
    file: OwnedFd,
    _mount: OwnedFd,
    control: Arc<File>,
}

impl SilentFile {
    /// Mounts the file system without attaching it to a folder; needs root and FUSE.
    fn new() -> std::io::Result<Self> {
        let control = File::options().read(true).write(true).open("/dev/fuse")?;
        let config = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let fd = control.as_raw_fd().to_string();
        for (key, value) in [
            ("fd", fd.as_str()),
            ("rootmode", "40000"),
            ("user_id", "0"),
            ("group_id", "0"),
        ] {
            fsconfig_set_string(config.as_fd(), key, value)?;
        }
        fsconfig_create(config.as_fd())?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = fsmount(config.as_fd(), flags, MountAttrFlags::empty())?;
        let control = Arc::new(control);
        let silent = Arc::new(AtomicBool::new(false));
        let (answers, ends) = (Arc::clone(&control), Arc::clone(&silent));
        std::thread::spawn(move || answer(&answers, &ends));
        let file = openat(
            &mount,
            "file",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        silent.store(true, Ordering::Relaxed);
        Ok(Self {
            file,
            _mount: mount,
            control,
        })
    }
}

/// Replies to requests until the file is open.
fn answer(mut control: &File, silent: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    while let Ok(len) = control.read(&mut request) {
        if silent.load(Ordering::Relaxed) {
            return;
        }
        let request = &request[..len];
        let operation = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let (error, body) = match operation {
            // Version 7.31; the rest is 0.
            INIT => (0, words(&[7, 31], 64)),
            LOOKUP => (0, [words(&[2, 0, 1, 0], 40), attributes()].concat()),
            GETATTR => (0, [words(&[], 16), attributes()].concat()),
            OPEN => (0, words(&[], 16)),
            _ => (-ENOSYS, Vec::new()),
        };
        let len = u32::try_from(16 + body.len()).unwrap();
        let head = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
        let reply = [&head[..], &request[8..16], &body].concat();
        let _ = control.write(&reply);
    }
}

/// `struct fuse_attr` of a regular file of one page.
fn attributes() -> Vec<u8> {
    let mut attributes = words(&[2, 0, 4096, 0, 8], 88);
    attributes[60..64].copy_from_slice(&0o100_600_u32.to_ne_bytes());
    attributes[64..68].copy_from_slice(&1_u32.to_ne_bytes());
    attributes
}

/// Returns `len` bytes that begin with these words.
fn words(words: &[u32], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.resize(len, 0);
    bytes
}

#[test]
fn a_file_system_that_never_answers_does_not_stop_the_server() {
    const TEST: &str = "a_file_system_that_never_answers_does_not_stop_the_server";
    let silent = match SilentFile::new() {
        Ok(silent) => silent,
        Err(error) => {
            // Not with println, whose output the test harness captures.
            writeln!(std::io::stderr(), "SKIP {TEST}: no FUSE file: {error}").unwrap();
            return;
        }
    };
    let SilentFile {
        file,
        _mount,
        control,
    } = silent;
    let (done, waits) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bench = Bench::new();
        let mut client = bench.client();
        for _ in 0..20 {
            let map = dma_map(MAP_RW, 0, 0, 0x1000);
            let reply = bench.ask(&mut client, DMA_MAP, &map, &[file.as_fd()]);
            assert_eq!(reply.errno, EINVAL);
            let irqs = set_irqs(ASSIGN, 2, 0, 1);
            let reply = bench.ask(&mut client, SET_IRQS, &irqs, &[file.as_fd()]);
            assert_eq!(reply.errno, EINVAL);
        }
        let memory = guest_memory(0x1000);
        let map = dma_map(MAP_RW, 0, 0, 0x1000);
        bench.ask_ok(&mut client, DMA_MAP, &map, &[memory.as_fd()]);
        done.send(()).unwrap();
        // This operation also waits for the file system.
        drop(file);
    });
    // Far longer than the test needs: a blocked server would never end.
    let ended = waits.recv_timeout(Duration::from_secs(20));
    // The thread that does not reply any more holds the last descriptor of the control file.
    drop(control);
    assert_eq!(ended, Ok(()), "the server waits for a file system");
}
