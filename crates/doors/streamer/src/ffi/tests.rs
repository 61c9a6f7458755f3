// UNSAFETY: calls the functions as C does.

//! The interface, from the side of a caller.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::ptr;
use std::thread;

use super::calls::*;
use super::calls_of_0_15::*;

/// A range: file, offset and length, and its place in the buffer.
type Range = (usize, usize, usize, usize);

struct Caller {
    handle: *mut c_void,
}

impl Caller {
    fn start() -> Self {
        let mut handle = ptr::null_mut();
        // SAFETY: room for a pointer.
        assert_eq!(unsafe { runai_file_streamer_start(&raw mut handle) }, 0);
        assert!(!handle.is_null());
        Self { handle }
    }

    fn request(&self, paths: &[&str], ranges: &[Range], buffer: &mut [u8]) -> (c_int, u64) {
        let paths: Vec<CString> = paths
            .iter()
            .map(|path| CString::new(*path).unwrap())
            .collect();
        let texts: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
        let of = |file| ranges.iter().filter(|range| range.0 == file).count() as c_uint;
        let counts: Vec<c_uint> = (0..paths.len()).map(of).collect();
        let offsets: Vec<usize> = ranges.iter().map(|range| range.1).collect();
        let sizes: Vec<usize> = ranges.iter().map(|range| range.2).collect();
        let start = buffer.as_mut_ptr();
        let to = |range: &Range| start.wrapping_add(range.3).cast::<c_void>();
        let to: Vec<*mut c_void> = ranges.iter().map(to).collect();
        let mut submission = 0;
        // SAFETY: lists as long as the counts say; the buffer lives until all is answered.
        let code = unsafe {
            runai_file_streamer_request(
                self.handle,
                &raw mut submission,
                paths.len() as c_uint,
                texts.as_ptr(),
                counts.as_ptr(),
                offsets.as_ptr(),
                sizes.as_ptr(),
                to.as_ptr(),
                host(),
            )
        };
        (code, submission)
    }

    /// Returns code, submission, file, range, and whether it was the last.
    fn response(&self, timeout_ms: c_uint) -> (c_int, u64, u32, u32, bool) {
        let (mut submission, mut file, mut range, mut is_done) = (0, 0, 0, 0);
        // SAFETY: room for each.
        let code = unsafe {
            runai_file_streamer_response(
                self.handle,
                &raw mut submission,
                &raw mut file,
                &raw mut range,
                &raw mut is_done,
                timeout_ms,
            )
        };
        (code, submission, file, range, is_done != 0)
    }

    /// Takes all answers of a submission, and returns code, file and range of each.
    fn answers(&self, submission: u64, count: usize) -> BTreeSet<(c_int, u32, u32)> {
        let mut all = BTreeSet::new();
        for number in 1..=count {
            let (code, its, file, range, is_last) = self.response(0);
            assert_eq!((its, is_last), (submission, number == count));
            assert!(all.insert((code, file, range)));
        }
        all
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: ended once.
        unsafe { runai_file_streamer_end(self.handle) };
    }
}

#[test]
fn each_range_is_answered_once_and_lands_where_it_belongs() {
    let folder = tempfile::tempdir().unwrap();
    let long: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("long"), &long).unwrap();
    fs::write(path("short"), "ABCDEFGHIJ").unwrap();
    let caller = Caller::start();
    let mut buffer = vec![0; 9_000_100];
    let ranges = [
        (0, 10, 8_999_990, 100),
        (1, 7, 3, 0),
        (1, 0, 2, 10),
        (1, 5, 0, 20),
        (2, 0, 0, 30),
        (2, 0, 5, 30),
        (3, 8, 5, 40),
    ];
    let paths = [path("long"), path("short"), path("none"), path("short")];
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let (code, submission) = caller.request(&paths, &ranges, &mut buffer);
    assert_eq!(code, 0);
    let answers = caller.answers(submission, ranges.len());
    let expected = [
        (0, 0, 0),
        (0, 1, 0),
        (0, 1, 1),
        (0, 1, 2),
        (2, 2, 0),
        (2, 2, 1),
        (3, 3, 0),
    ];
    assert_eq!(answers, expected.into());
    assert!(buffer[100..100 + 8_999_990] == long[10..]);
    assert_eq!(&buffer[..13], b"HIJ\0\0\0\0\0\0\0AB\0");
    // Nothing is left.
    assert_eq!(caller.response(1).0, 16);
}

#[test]
fn what_is_no_request_is_refused_before_anything_is_read() {
    let caller = Caller::start();
    let mut buffer = [0; 10];
    for (path, code) in [("gs://a/b", 13), ("az://a/b", 14)] {
        assert_eq!(
            caller.request(&[path], &[(0, 0, 1, 0)], &mut buffer).0,
            code
        );
    }
    assert_eq!(
        caller
            .request(&["x"], &[(0, usize::MAX, 2, 0)], &mut buffer)
            .0,
        7
    );
    assert_eq!(caller.request(&[], &[], &mut buffer).0, 0);
    let mut submission = 0;
    let (path, null) = (CString::new("x").unwrap(), ptr::null());
    let texts = [path.as_ptr()];
    let call = |counts: &[c_uint], device| {
        // SAFETY: lists that are NULL, where the counts say that there are elements, are refused.
        unsafe {
            runai_file_streamer_request(
                caller.handle,
                &raw mut submission,
                1,
                texts.as_ptr(),
                counts.as_ptr(),
                null,
                null,
                ptr::null(),
                device,
            )
        }
    };
    let mut call = call;
    assert_eq!(call(&[1], host()), 7);
    assert_eq!(call(&[0], cuda()), 23);
    assert_eq!(call(&[0], host()), 0);
    // A handle that nobody has, and one that was ended.
    let gone = Caller::start();
    let handle = gone.handle;
    drop(gone);
    let gone = std::mem::ManuallyDrop::new(Caller { handle });
    assert_eq!(gone.response(0).0, 1);
    assert_eq!(gone.request(&["x"], &[(0, 0, 1, 0)], &mut buffer).0, 1);
}

#[test]
fn the_end_wakes_who_waits() {
    let caller = Caller::start();
    let handle = caller.handle.addr();
    let waiter = thread::spawn(move || {
        let handle = ptr::without_provenance_mut(handle);
        let caller = std::mem::ManuallyDrop::new(Caller { handle });
        caller.response(0).0
    });
    drop(caller);
    assert_eq!(waiter.join().unwrap(), 1);
}

/// Serves one file to every connection, in ranges.
fn serve(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/file", listener.local_addr().unwrap());
    let body = std::sync::Arc::new(body);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let body = std::sync::Arc::clone(&body);
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                let mut range = 0..body.len();
                while let Some(Ok(line)) = lines.next() {
                    if let Some(asked) = line.strip_prefix("Range: bytes=") {
                        let (start, last) = asked.split_once('-').unwrap();
                        let end = last.parse::<usize>().unwrap() + 1;
                        range = start.parse().unwrap()..end.min(body.len());
                    }
                    if line.is_empty() {
                        let head = format!(
                            "HTTP/1.1 206 Partial\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\n\r\n",
                            range.start,
                            range.end - 1,
                            body.len(),
                            range.len()
                        );
                        let sent = stream.write_all(head.as_bytes());
                        if sent
                            .and_then(|()| stream.write_all(&body[range.clone()]))
                            .is_err()
                        {
                            return;
                        }
                    }
                }
            });
        }
    });
    url
}

#[test]
fn objects_are_read_by_the_loader_also_where_ranges_overlap() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 253) as u8).collect();
    let url = serve(body.clone());
    let caller = Caller::start();
    let mut buffer = vec![0; 4_000_000];
    let ranges = [
        (0, 1_000_000, 2_000_000, 0),
        (0, 999_990, 20, 2_000_000),
        (0, 5, 0, 0),
        (0, 0, 900_000, 2_100_000),
        (0, 2_999_999, 1, 3_900_000),
    ];
    for _ in 0..2 {
        buffer.fill(0);
        let (code, submission) = caller.request(&[&url], &ranges, &mut buffer);
        assert_eq!(code, 0);
        let answers = caller.answers(submission, ranges.len());
        assert_eq!(answers, (0..5).map(|range| (0, 0, range)).collect());
        for (_, at, len, to) in ranges {
            assert!(buffer[to..to + len] == body[at..at + len]);
        }
    }
    let past = [(0, 2_999_999, 2, 0), (0, 0, 1, 10)];
    let (_, submission) = caller.request(&[&url], &past, &mut buffer);
    assert_eq!(caller.answers(submission, 2), [(3, 0, 0), (3, 0, 1)].into());
    let nobody = "http://127.0.0.1:9/file";
    let (_, submission) = caller.request(&[nobody], &[(0, 0, 1, 0)], &mut buffer);
    assert_eq!(caller.answers(submission, 1), [(2, 0, 0)].into());
}

#[test]
fn the_old_interface_fills_one_buffer_and_takes_one_request_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| CString::new(folder.path().join(name).to_str().unwrap()).unwrap();
    let (first, second) = (path("1"), path("2"));
    fs::write(folder.path().join("1"), "XTest Text1TestText2Test-Text3\n").unwrap();
    fs::write(folder.path().join("2"), "YTest Text44TestText").unwrap();
    let mut handle = ptr::null_mut();
    // SAFETY: room for a pointer.
    assert_eq!(unsafe { runai_start(&raw mut handle) }, 0);
    let mut buffer = [0_u8; 60];
    let texts = [first.as_ptr(), second.as_ptr()];
    let to = [buffer.as_mut_ptr().cast::<c_void>()];
    let parts: [[usize; 2]; 2] = [[10, 9], [11, 8]];
    let lists = parts.each_ref().map(|list| list.as_ptr());
    let request = |sizes: [usize; 2]| {
        let null = ptr::null();
        // SAFETY: lists as long as the counts say; the buffer lives until all is answered.
        unsafe {
            runai_request(
                handle,
                2,
                texts.as_ptr(),
                [1, 1].as_ptr(),
                sizes.as_ptr(),
                to.as_ptr(),
                [2, 2].as_ptr(),
                lists.as_ptr(),
                null,
                null,
                null,
                null,
                null,
            )
        }
    };
    let response = || {
        let (mut file, mut part) = (9, 9);
        // SAFETY: room for each.
        let code = unsafe { runai_response(handle, &raw mut file, &raw mut part) };
        (code, file, part)
    };
    assert_eq!(request([19, 18]), 7);
    assert_eq!(request([19, 19]), 0);
    assert_eq!(request([19, 19]), 9);
    // Small ranges are answered in order.
    let all: Vec<_> = (0..4).map(|_| response()).collect();
    assert_eq!(all, [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]);
    assert_eq!(response().0, 1);
    assert_eq!(&buffer[..38], b"Test Text1TestText2Test Text44TestText");
    // SAFETY: ended once.
    unsafe { runai_end(handle) };
}
