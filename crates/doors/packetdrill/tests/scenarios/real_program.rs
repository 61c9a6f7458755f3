//! What the real packetdrill does beside calling the interface: it waits by reading the clock, closes files and reads
//! options with libc's functions, and notes the results of blocking calls in a second thread.
//!
//! This test program loads the library and does not link it, as packetdrill does.

use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::player::loaded::library;
use crate::player::{Loaded, this_task, wait_until_blocked};

const SOL_SOCKET: i32 = 1;
const SO_RCVTIMEO: i32 = 20;
const SO_SNDTIMEO: i32 = 21;
const SO_MEMINFO: i32 = 55;
const SOL_TCP: i32 = 6;
const TCP_INFO: i32 = 11;
const TCP_CC_INFO: i32 = 26;
const LISTEN: u8 = 10;
const ENOTSOCK: i32 = 88;
const EBADF: i32 = 9;
const EPIPE: i32 = 32;
const EINPROGRESS: i32 = 115;
const MSG_FASTOPEN: i32 = 0x2000_0000;

/// Says that the test program was started again, with the library preloaded.
const PRELOADED: &str = "DEVMEM_TEST_PRELOADED";

/// 192.168.7.77:8080.
const LOCAL: [u8; 16] = [2, 0, 0x1f, 0x90, 192, 168, 7, 77, 0, 0, 0, 0, 0, 0, 0, 0];

/// 192.0.2.1:8080.
const REMOTE: [u8; 16] = [2, 0, 0x1f, 0x90, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];

fn socket(loaded: &Loaded) -> i32 {
    i32::try_from(loaded.socket(2, 1, 0).unwrap()).unwrap()
}

fn listener(loaded: &Loaded) -> i32 {
    let fd = socket(loaded);
    assert_eq!(loaded.bind(fd, &LOCAL), Ok(0));
    assert_eq!(loaded.listen(fd, 1), Ok(0));
    fd
}

fn is_descriptor(fd: i32) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()
}

#[test]
fn a_clock_that_is_only_read_moves_by_a_microsecond() {
    let loaded = Loaded::new("");
    let before = loaded.now();
    let readings: Vec<i64> = (1..=250).map(|_| loaded.now() - before).collect();
    assert_eq!(readings, (1..=250).collect::<Vec<i64>>());
}

#[test]
fn timers_run_while_the_clock_is_read() {
    let loaded = Loaded::new("");
    let fd = socket(&loaded);
    let timeval = [0i64.to_ne_bytes(), 100i64.to_ne_bytes()].concat();
    assert_eq!(
        loaded.setsockopt(fd, (SOL_SOCKET, SO_RCVTIMEO), &timeval),
        Ok(0)
    );
    let listens = listener(&loaded);
    assert_eq!(
        loaded.setsockopt(listens, (SOL_SOCKET, SO_RCVTIMEO), &timeval),
        Ok(0)
    );
    let loaded = Arc::new(loaded);
    let other = Arc::clone(&loaded);
    let begun = loaded.now();
    let thread = std::thread::spawn(move || (other.accept(listens), other.now()));
    let mut now = begun;
    while !thread.is_finished() {
        now = loaded.now();
    }
    let (accepted, ended) = thread.join().unwrap();
    assert_eq!(accepted, Err(11), "EAGAIN after SO_RCVTIMEO");
    assert!(
        ended >= begun + 100 && ended <= now,
        "{begun} {ended} {now}"
    );
}

#[test]
fn files_have_numbers_of_the_process_that_libc_can_close() {
    let loaded = Loaded::new("");
    let fds = [
        socket(&loaded),
        i32::try_from(loaded.epoll_create().unwrap()).unwrap(),
        loaded.pipe().unwrap()[0],
    ];
    for fd in fds {
        assert!(is_descriptor(fd));
        assert_eq!(Loaded::libc_close(fd), Ok(0));
        assert!(!is_descriptor(fd));
    }
    let closed = socket(&loaded);
    assert_eq!(loaded.close(closed), Ok(0));
    assert!(!is_descriptor(closed));
    let left_open = socket(&loaded);
    drop(loaded);
    assert!(!is_descriptor(left_open));
}

#[test]
fn a_call_that_blocks_on_the_main_thread_lets_time_pass() {
    let loaded = Loaded::new("");
    let fd = listener(&loaded);
    let mut fds = [libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }];
    let before = loaded.now();
    assert_eq!(loaded.poll(&mut fds, 100), Ok(0));
    let passed = loaded.now() - before;
    assert!((100_000..100_010).contains(&passed), "{passed}");
    let second = [1i64.to_ne_bytes(), 0i64.to_ne_bytes()].concat();
    assert_eq!(
        loaded.setsockopt(fd, (SOL_SOCKET, SO_RCVTIMEO), &second),
        Ok(0)
    );
    let before = loaded.now();
    assert_eq!(loaded.accept(fd), Err(11));
    let passed = loaded.now() - before;
    assert!((1_000_000..1_000_010).contains(&passed), "{passed}");
}

/// The tester's global lock, and what its second thread has noted.
#[derive(Default)]
struct Tester {
    noted: Mutex<Option<i64>>,
    idle: Condvar,
}

#[test]
fn a_blocking_call_is_noted_before_the_main_thread_has_slept() {
    for round in 0..50 {
        let loaded = Arc::new(Loaded::new(""));
        let fd = listener(&loaded);
        let timeval = [0i64.to_ne_bytes(), 5000i64.to_ne_bytes()].concat();
        assert_eq!(
            loaded.setsockopt(fd, (SOL_SOCKET, SO_RCVTIMEO), &timeval),
            Ok(0)
        );
        let tester = Arc::new(Tester::default());
        let begun = loaded.now();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn({
            let (loaded, tester) = (Arc::clone(&loaded), Arc::clone(&tester));
            move || {
                tell.send(this_task()).unwrap();
                assert_eq!(loaded.accept(fd), Err(11));
                let ended = loaded.now();
                let mut noted = tester.noted.lock().unwrap();
                *noted = Some(ended);
                // As packetdrill's thread waits for the next call; there is none.
                let waited = tester.idle.wait_while(noted, |noted| noted.is_some());
                drop(waited.unwrap());
            }
        });
        wait_until_blocked(&thread, &told.recv().unwrap());
        // Sleeps past the end of the call, with the lock released meanwhile and no longer.
        loaded.usleep(6000);
        let ended = tester.noted.lock().unwrap().take();
        let ended = ended.unwrap_or_else(|| panic!("round {round}: not noted yet"));
        assert_eq!(ended - begun, 5000, "round {round}");
        tester.idle.notify_all();
        thread.join().unwrap();
    }
}

#[test]
fn the_clock_stands_still_until_a_thread_has_read_it_after_a_blocking_send() {
    let loaded = Arc::new(Loaded::new(""));
    let fd = socket(&loaded);
    let timeval = [0i64.to_ne_bytes(), 5000i64.to_ne_bytes()].concat();
    let set = loaded.setsockopt(fd, (SOL_SOCKET, SO_SNDTIMEO), &timeval);
    assert_eq!(set, Ok(0));
    let begun = loaded.now();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn({
        let loaded = Arc::clone(&loaded);
        move || {
            tell.send(this_task()).unwrap();
            let sent = loaded.sendto(fd, b"no cookie", MSG_FASTOPEN, &REMOTE);
            assert_eq!(sent, Err(EINPROGRESS));
            // Long enough that a driver which does not wait reads the clock first.
            let returned = Instant::now();
            while returned.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            loaded.now()
        }
    });
    wait_until_blocked(&thread, &told.recv().unwrap());
    loaded.usleep(6000);
    assert_eq!(thread.join().unwrap() - begun, 5000);
}

#[test]
fn libc_answers_for_files_of_a_library_that_was_preloaded() {
    if std::env::var_os(PRELOADED).is_none() {
        let again = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "real_program::libc_answers_for_files_of_a_library_that_was_preloaded",
            ])
            .env("LD_PRELOAD", library())
            .env(PRELOADED, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&again.stdout);
        assert!(
            again.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let loaded = Loaded::new("");
    let fd = listener(&loaded);
    let get = |name, room: usize| {
        let mut value = vec![0; room];
        Loaded::libc_getsockopt(fd, name, &mut value).map(|_| value)
    };
    let info = get((SOL_TCP, TCP_INFO), 400).unwrap();
    assert!(info.len() > 200 && info[0] == LISTEN, "{info:?}");
    assert_eq!(get((SOL_TCP, TCP_CC_INFO), 64), Ok(Vec::new()));
    let memory = get((SOL_SOCKET, SO_MEMINFO), 36).unwrap();
    assert_eq!(
        &memory[4..8],
        &131_072u32.to_ne_bytes(),
        "the receive buffer"
    );
    let (source, copy) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    (&source).write_all(b"some bytes").unwrap();
    (&source).rewind().unwrap();
    let (source, copy) = (source.as_raw_fd(), copy.as_raw_fd());
    assert_eq!(
        Loaded::libc_sendfile(fd, source, 5),
        Err(EPIPE),
        "a listener"
    );
    assert_eq!(
        Loaded::libc_sendfile(copy, source, 20),
        Ok(10),
        "the kernel's"
    );
    assert_eq!(Loaded::libc_close(fd), Ok(0));
    assert!(!is_descriptor(fd));
    assert_eq!(
        loaded.listen(fd, 1),
        Err(EBADF),
        "the stack's file is closed, too"
    );
    // What is no file of an instance is the kernel's.
    assert_eq!(Loaded::libc_close(fd), Err(EBADF));
    assert_eq!(
        Loaded::libc_getsockopt(0, (SOL_TCP, TCP_INFO), &mut vec![0; 8]),
        Err(ENOTSOCK)
    );
}
