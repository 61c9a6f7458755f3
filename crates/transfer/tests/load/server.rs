//! A small HTTP server over kernel sockets that does what a test tells it to, mistakes included.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Number of requests before it, on all connections.
    pub number: usize,
    /// The whole head.
    pub head: String,
    pub range: Option<Range<u64>>,
}

impl Asked {
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns whether the answer has no body (RFC 9110 9.3.2).
    pub fn is_for_head(&self) -> bool {
        self.head.starts_with("HEAD ")
    }
}

/// What to do after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keep,
    Close,
}

pub struct Server {
    pub port: u16,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Answers requests by `answer` until the process ends.
    pub fn start(
        answer: impl Fn(&Asked, &mut TcpStream) -> io::Result<After> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let requests = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (Arc::new(answer), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                // The client may end a connection at any time.
                thread::spawn(move || drop(serve(stream, &*answer, &count)));
            }
        });
        Self { port, requests }
    }

    pub fn url(&self, host: &str) -> String {
        match host.contains(':') {
            true => format!("http://[{host}]:{}/file", self.port),
            false => format!("http://{host}:{}/file", self.port),
        }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn serve(
    stream: TcpStream,
    answer: &dyn Fn(&Asked, &mut TcpStream) -> io::Result<After>,
    count: &AtomicUsize,
) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let number = count.fetch_add(1, Ordering::Relaxed);
        if answer(&asked(number, head), &mut answers)? == After::Close {
            return answers.shutdown(Shutdown::Both);
        }
    }
}

/// Returns a request with this head.
pub fn asked(number: usize, head: String) -> Asked {
    let range = range_of(&head);
    Asked {
        number,
        head,
        range,
    }
}

fn range_of(head: &str) -> Option<Range<u64>> {
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("Range: bytes="));
    let (first, last) = line?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
}

/// A response without a body.
pub fn empty(status: &str, fields: &str, out: &mut impl Write) -> io::Result<After> {
    write!(
        out,
        "HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\n\r\n"
    )?;
    Ok(After::Keep)
}

/// The range that is asked for, up to the end of `file` (RFC 9110 14.1.2).
fn requested(asked: &Asked, file: &[u8]) -> Range<u64> {
    let end = file.len() as u64;
    let range = asked.range.clone().unwrap_or(0..end);
    range.start..range.end.min(end)
}

/// The correct answer: the requested range of `file`.
pub fn good(asked: &Asked, file: &[u8], out: &mut impl Write) -> io::Result<After> {
    let range = requested(asked, file);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\nETag: \"1\"\r\n\r\n",
        range.start,
        range.end - 1,
        file.len(),
        range.end - range.start
    );
    out.write_all(head.as_bytes())?;
    if !asked.is_for_head() {
        out.write_all(&file[range.start as usize..range.end as usize])?;
    }
    Ok(After::Keep)
}

/// The same in chunks of growing length, the first of one byte.
pub fn chunked(asked: &Asked, file: &[u8], out: &mut impl Write) -> io::Result<After> {
    let range = requested(asked, file);
    write!(
        out,
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\nTransfer-Encoding: chunked\r\n\r\n",
        range.start,
        range.end - 1,
        file.len()
    )?;
    let mut rest = &file[range.start as usize..range.end as usize];
    let mut size = 1;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        write!(out, "{:x};note=\"any\"\r\n", chunk.len())?;
        out.write_all(chunk)?;
        out.write_all(b"\r\n")?;
        rest = after;
        size = size * 3 + 1;
    }
    out.write_all(b"0\r\nX-Sum: none\r\n\r\n")?;
    Ok(After::Keep)
}
