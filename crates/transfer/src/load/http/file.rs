//! A file of an HTTP server: found, and asked for its size.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use devmem_tcp::text::printable;
use devmem_tcp::{Netdev, RecvError, RxBatch, Stream};

use super::head::{self, Head, HeadError};
use super::request::HttpRequest;
use crate::load::dial::{self, GoOn};
use crate::load::error::LoadError;
use crate::load::session::Fault;
use crate::parallel::{Breakage, Piece, retry};

/// Most redirects in a row.
const MAX_REDIRECTS: usize = 10;
/// Most attempts if the server is busy or breaks the connection.
const ATTEMPTS: u32 = 4;
/// How long to wait for the whole head of the response, if no other limit is set.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A file of an HTTP server, as it was when it was opened. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct HttpFile {
    found: Arc<Found>,
}

#[derive(Debug)]
struct Found {
    request: HttpRequest,
    addresses: Vec<SocketAddr>,
    size: Option<u64>,
    serves_ranges: bool,
    version: Option<String>,
    crc32c: Option<u32>,
}

impl HttpFile {
    /// Finds the file: resolves the name, follows redirects, and asks for the first byte, which tells the size and whether
    /// the server serves ranges.
    ///
    /// # Errors
    /// The host is not found or does not answer, or the server refuses.
    pub fn open(nic: &Netdev, request: HttpRequest) -> Result<Self, LoadError> {
        Self::open_while(nic, request, &mut dial::always)
    }

    /// As [`open`](Self::open), while `go_on` says so. It is asked at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_while(
        nic: &Netdev,
        request: HttpRequest,
        go_on: &mut GoOn<'_>,
    ) -> Result<Self, LoadError> {
        Self::open_within(nic, request, ANSWER_LIMIT, go_on)
    }

    /// As [`open_while`](Self::open_while), with another time limit for each answer.
    pub(crate) fn open_within(
        nic: &Netdev,
        request: HttpRequest,
        limit: Duration,
        go_on: &mut GoOn<'_>,
    ) -> Result<Self, LoadError> {
        let mut request = request;
        for _ in 0..MAX_REDIRECTS {
            let hop = request.next_hop();
            let addresses = dial::resolve(nic, hop.host(), hop.port(), go_on)?;
            let head = ask(nic, &request, &addresses, limit, go_on)?;
            let found = Found::of(request, addresses, &head);
            match head.status {
                200 | 206 => return Ok(found.into()),
                // An empty file has no first byte.
                416 if found.size == Some(0) => return Ok(found.into()),
                301 | 302 | 303 | 307 | 308 => {
                    let place = head.location.as_deref();
                    let place = place.ok_or_else(|| found.invalid("a redirect to nowhere"))?;
                    let url = found.request.url().join(place)?;
                    request = found.request.redirected(url);
                }
                _ => return Err(Self::from(found).refused(&head)),
            }
        }
        Err(LoadError::Invalid {
            host: request.url().authority(),
            problem: format!("more than {MAX_REDIRECTS} redirects in a row"),
        })
    }

    /// Returns a file that no server has, for the fuzz targets.
    #[cfg(feature = "test-util")]
    pub(crate) fn of_size(size: u64, serves_ranges: bool) -> Self {
        let url = "http://host/file".parse().expect("a URL");
        Self::from(Found {
            request: HttpRequest::new(url),
            addresses: Vec::new(),
            size: Some(size),
            serves_ranges,
            version: None,
            crc32c: None,
        })
    }

    /// Returns the number of bytes, if the server tells.
    pub fn size(&self) -> Option<u64> {
        self.found.size
    }

    /// Returns whether the server serves ranges. If not, it sends the whole file over one connection, and after a broken
    /// connection again from the start.
    pub fn serves_ranges(&self) -> bool {
        self.found.serves_ranges
    }

    /// Returns the CRC-32C of the whole file, if the server sends it.
    pub fn crc32c(&self) -> Option<u32> {
        self.found.crc32c
    }

    /// Returns the request, of the place that the server has redirected to.
    pub fn request(&self) -> &HttpRequest {
        &self.found.request
    }

    /// Returns the addresses of the server, or of the proxy, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.found.addresses
    }

    pub(crate) fn host(&self) -> String {
        self.found.request.url().authority()
    }

    /// Returns the error of a status that is not one of success.
    pub(crate) fn refused(&self, head: &Head) -> LoadError {
        LoadError::Status {
            host: self.host(),
            status: head.status,
            reason: head.reason.clone(),
        }
    }

    /// Checks that a response is of the file that was opened.
    ///
    /// # Errors
    /// Size or validator are different.
    pub(crate) fn check_version(&self, head: &Head) -> Result<(), Fault> {
        let changed = |problem| {
            let host = self.host();
            Err(Fault::Fatal(LoadError::Changed { host, problem }))
        };
        let size = size_of(head);
        if let (Some(then), Some(now)) = (self.found.size, size)
            && then != now
        {
            return changed(format!("it had {then} bytes and has {now}"));
        }
        match (&self.found.version, &head.version) {
            (Some(then), Some(now)) if then != now => {
                let (then, now) = (printable(then), printable(now));
                changed(format!("its version was {then} and is {now}"))
            }
            _ => Ok(()),
        }
    }
}

impl Found {
    fn of(request: HttpRequest, addresses: Vec<SocketAddr>, head: &Head) -> Self {
        Self {
            request,
            addresses,
            size: size_of(head),
            serves_ranges: head.status == 206,
            version: head.version.clone(),
            crc32c: head.crc32c,
        }
    }

    fn invalid(&self, problem: &str) -> LoadError {
        LoadError::Invalid {
            host: self.request.url().authority(),
            problem: problem.to_owned(),
        }
    }
}

impl From<Found> for HttpFile {
    fn from(found: Found) -> Self {
        Self {
            found: Arc::new(found),
        }
    }
}

/// Returns the size of the file, if a response tells.
fn size_of(head: &Head) -> Option<u64> {
    match head.status {
        200 if !head.is_chunked => head.length,
        206 | 416 => head.range.as_ref().and_then(|range| range.size),
        _ => None,
    }
}

/// Requests the first byte and returns the head of the response.
fn ask(
    nic: &Netdev,
    request: &HttpRequest,
    addresses: &[SocketAddr],
    limit: Duration,
    go_on: &mut GoOn<'_>,
) -> Result<Head, LoadError> {
    let mut failures = 0;
    loop {
        let stream = dial::connect(nic, addresses, go_on)?;
        let (cause, wait) = match head_of_first_byte(stream, request, limit, go_on)? {
            Ok(head) if !matches!(head.status, 408 | 429 | 500..=599) => return Ok(head),
            Ok(head) if failures + 1 == ATTEMPTS => return Ok(head),
            Ok(head) => (None, head.retry_after),
            Err(cause) => (Some(cause), None),
        };
        failures += 1;
        if let Some(cause) = cause.filter(|_| failures == ATTEMPTS) {
            let attempts = failures;
            return Err(LoadError::GaveUp { attempts, cause });
        }
        dial::pause(retry::delay(failures, wait), go_on)?;
    }
}

/// Returns the head, or why the connection ended before it.
fn head_of_first_byte(
    mut stream: Stream,
    request: &HttpRequest,
    limit: Duration,
    go_on: &mut GoOn<'_>,
) -> Result<Result<Head, Breakage>, LoadError> {
    stream.set_timeout(Some(dial::SLICE));
    let mut text = Vec::new();
    request.write(Some(Piece { start: 0, end: 1 }), &mut text);
    if let Err(error) = stream.write_all(&text) {
        return Ok(Err(Breakage::of_io(error).during("send a request")));
    }
    text.clear();
    let mut batch = RxBatch::with_capacity(64);
    let start = Instant::now();
    loop {
        dial::ask(go_on)?;
        // Also of a server that sends a head in small pieces, or informational responses without an end.
        if start.elapsed() >= limit {
            return Ok(Err(format!("no answer within {limit:?}").into()));
        }
        // All of these bytes may be copied: the body is one byte, or not wanted.
        let received = match stream.recv_at_most(&mut batch, head::MAX_HEAD_BYTES) {
            Ok(0) => return Ok(Err("the server closed the connection".into())),
            Ok(received) => received,
            Err(RecvError::TimedOut { .. }) => continue,
            Err(RecvError::Failed(error)) => return Ok(Err(Breakage::of(&error))),
            Err(error) => return Err(error.into()),
        };
        let before = text.len();
        text.resize(before + received, 0);
        batch
            .copy_to(&mut text[before..])
            .map_err(LoadError::Gather)?;
        let found = final_head(&mut text).map_err(|error| LoadError::Invalid {
            host: request.url().authority(),
            problem: error.to_string(),
        })?;
        if let Some(head) = found {
            return Ok(Ok(head));
        }
    }
}

/// Removes informational responses (RFC 9110 15.2) and returns the head that follows them, if it is complete.
fn final_head(text: &mut Vec<u8>) -> Result<Option<Head>, HeadError> {
    while let Some((head, len)) = head::parse(text)? {
        if !(100..200).contains(&head.status) {
            return Ok(Some(head));
        }
        text.drain(..len);
    }
    Ok(None)
}
