//! One request and its response on host memory: for what the CPU needs, such as the size of a file and the beginning of its bytes.

use std::time::{Duration, Instant};

use devmem_tcp::RxBatch;

use super::chunks::Chunks;
use super::error_details;
use super::head::{self, Head, HeadError};
use super::request::{Ask, HttpRequest};
use crate::cause::Cause;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::transport::{self, Transport};

/// Most bytes of a body that is read for its end alone: so that its length is known, or that the connection can be used again.
const TAIL_BYTES: usize = 64 << 10;
/// How long to wait for such a body. It is of use, and not needed.
const TAIL_LIMIT: Duration = Duration::from_secs(1);

/// A response, and the beginning of its body.
#[derive(Debug)]
pub(crate) struct Response {
    pub head: Head,
    pub(crate) body: Vec<u8>,
    /// All of the body is there.
    pub(crate) is_whole: bool,
    /// The connection takes another request.
    pub(crate) is_reusable: bool,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) cause: Cause,
    /// No byte of a response has come.
    pub(crate) is_silent: bool,
}

/// How the end of a body is found.
enum Framing {
    Length(u64),
    Chunked(Chunks),
    /// At the end of the connection.
    Close,
}

/// What has come of a body.
enum Arrival {
    Bytes,
    /// The server has ended the connection.
    End,
    /// Nothing in time.
    Late,
    Broken(Cause),
}

/// Sends a request on a connection and reads the response: its head, and up to `wanted` bytes of the body of a success, as many as come in time.
///
/// # Errors
/// The response makes no sense; the wait was cancelled. The inner error: the connection broke, or the server took longer than `limit`.
pub(crate) fn exchange(
    transport: &mut Transport,
    request: &HttpRequest,
    ask: Ask,
    wanted: usize,
    limit: Duration,
    cancel_check: &mut CancelCheck<'_>,
) -> Result<Result<Response, Broken>, LoadError> {
    transport.stream().set_timeout(Some(dial::SLICE));
    let mut text = Vec::new();
    request.write(ask, &mut text);
    if let Err(error) = transport.write_all(&text) {
        let cause = Cause::of_io(error).during("send a request");
        let is_silent = true;
        return Ok(Err(Broken { cause, is_silent }));
    }
    text.clear();
    let mut reader = ResponseReader {
        transport,
        batch: RxBatch::with_capacity(64),
        text,
        end: Instant::now() + limit,
        cancel_check,
    };
    let invalid = |problem: Cause| LoadError::Invalid {
        host: request.url().authority(),
        problem,
    };
    let head = loop {
        let head = final_head(&mut reader.text);
        if let Some(head) = head.map_err(|error| invalid(error.into()))? {
            break head;
        }
        let cause = match reader.receive()? {
            Arrival::Bytes => continue,
            Arrival::End => "the server closed the connection".into(),
            Arrival::Late => format!("no answer within {limit:?}").into(),
            Arrival::Broken(cause) => cause,
        };
        let is_silent = reader.text.is_empty();
        return Ok(Err(Broken { cause, is_silent }));
    };
    let response = reader.body(head, ask, wanted)?;
    match response {
        Ok(response) => Ok(Ok(response)),
        Err(BodyError::Broken(cause)) => Ok(Err(Broken {
            cause,
            is_silent: false,
        })),
        Err(BodyError::Invalid(problem)) => Err(invalid(problem.into())),
    }
}

/// Why there is too little of a body.
enum BodyError {
    Broken(Cause),
    Invalid(&'static str),
}

struct ResponseReader<'a, 'b> {
    transport: &'a mut Transport,
    batch: RxBatch,
    /// Received bytes that are not used yet.
    text: Vec<u8>,
    /// When the wait is over.
    end: Instant,
    cancel_check: &'a mut CancelCheck<'b>,
}

impl ResponseReader<'_, '_> {
    /// Receives once.
    fn receive(&mut self) -> Result<Arrival, LoadError> {
        loop {
            dial::check_cancelled(self.cancel_check)?;
            // Also of a server that sends a head in small pieces, or informational responses without an end.
            if Instant::now() >= self.end {
                return Ok(Arrival::Late);
            }
            // All of these bytes may be copied to host memory.
            return Ok(
                match self.transport.receive(&mut self.batch, &mut self.text)? {
                    transport::ReadOutcome::Nothing => continue,
                    transport::ReadOutcome::Bytes => Arrival::Bytes,
                    transport::ReadOutcome::End => Arrival::End,
                    transport::ReadOutcome::Broken(cause) => Arrival::Broken(cause),
                },
            );
        }
    }

    /// Reads as much of the body as is wanted.
    fn body(
        mut self,
        head: Head,
        ask: Ask,
        wanted: usize,
    ) -> Result<Result<Response, BodyError>, LoadError> {
        let has_length = head.length.is_some() && !head.is_chunked;
        let (least, most) = match head.status {
            200 if !has_length => (0, TAIL_BYTES.max(wanted)),
            // A server may send the head of a whole file, and nothing before it is read.
            200 if wanted <= 1 => (0, 0),
            206 if wanted <= 1 => (0, wanted),
            200 | 206 => (wanted, wanted),
            status if status >= 400 => (0, error_details::MOST_BYTES),
            _ => (0, TAIL_BYTES),
        };
        let mut framing = match head.length {
            _ if ask == Ask::Checksum || head.status == 204 => Framing::Length(0),
            _ if head.is_chunked => Framing::Chunked(Chunks::default()),
            Some(length) => Framing::Length(length),
            None => Framing::Close,
        };
        let mut body = Vec::new();
        let mut is_whole = false;
        if least == 0 {
            self.end = self.end.min(Instant::now() + TAIL_LIMIT);
        }
        loop {
            match framing.take(&mut self.text, &mut body, most) {
                Err(problem) => return Ok(Err(BodyError::Invalid(problem))),
                Ok(true) => is_whole = true,
                Ok(false) => {}
            }
            if is_whole || body.len() >= most {
                break;
            }
            let cause = match self.receive()? {
                Arrival::Bytes => continue,
                Arrival::End if matches!(framing, Framing::Close) => {
                    is_whole = true;
                    break;
                }
                Arrival::End => format!("the body ended at byte {}", body.len()).into(),
                Arrival::Late => format!("{} bytes of the body came in time", body.len()).into(),
                Arrival::Broken(cause) => cause,
            };
            match least > 0 && body.is_empty() {
                true => return Ok(Err(BodyError::Broken(cause))),
                // What has come is enough to go on.
                false => break,
            }
        }
        let is_closed = matches!(framing, Framing::Close);
        Ok(Ok(Response {
            is_reusable: is_whole && head.is_persistent && !is_closed && self.text.is_empty(),
            head,
            body,
            is_whole,
        }))
    }
}

impl Framing {
    /// Moves bytes of the body from `text` to `body`, up to `most`. Returns whether the body is over.
    fn take(
        &mut self,
        text: &mut Vec<u8>,
        body: &mut Vec<u8>,
        most: usize,
    ) -> Result<bool, &'static str> {
        loop {
            let left = match self {
                Self::Length(0) => return Ok(true),
                Self::Length(left) => *left,
                Self::Close => u64::MAX,
                Self::Chunked(chunks) if chunks.is_over() => return Ok(true),
                Self::Chunked(chunks) if chunks.data_left() == 0 => {
                    if text.is_empty() {
                        return Ok(false);
                    }
                    let used = chunks.on_text(text)?;
                    text.drain(..used.min(text.len()));
                    continue;
                }
                Self::Chunked(chunks) => chunks.data_left(),
            };
            let room = most.saturating_sub(body.len());
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let len = left.min(room).min(text.len());
            if len == 0 {
                return Ok(false);
            }
            body.extend(text.drain(..len));
            match self {
                Self::Length(left) => *left -= len as u64,
                Self::Chunked(chunks) => chunks.on_data(len as u64),
                Self::Close => {}
            }
        }
    }
}

/// Removes informational responses (RFC 9110 15.2) and returns the head that follows them, if it is complete. What is left is its body.
fn final_head(text: &mut Vec<u8>) -> Result<Option<Head>, HeadError> {
    while let Some((head, len)) = head::parse(text)? {
        text.drain(..len);
        if !(100..200).contains(&head.status) {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_taken_up_to_what_is_wanted() {
        for (framing, bytes, expected, is_over) in [
            (Framing::Length(5), "hello, rest", "hello", true),
            (Framing::Length(5), "abc", "abc", false),
            (Framing::Length(0), "rest", "", true),
            (Framing::Length(100), "0123456789abc", "0123456789", false),
            (Framing::Close, "0123456789abc", "0123456789", false),
            (
                Framing::Chunked(Chunks::default()),
                "5\r\nhello\r\n0\r\n\r\n",
                "hello",
                true,
            ),
            (Framing::Chunked(Chunks::default()), "0\r\n\r\n", "", true),
            (
                Framing::Chunked(Chunks::default()),
                "5\r\nabc",
                "abc",
                false,
            ),
        ] {
            let (mut framing, mut text, mut body) =
                (framing, bytes.as_bytes().to_vec(), Vec::new());
            let over = framing.take(&mut text, &mut body, 10).expect("a body");
            assert_eq!(
                (body, over),
                (expected.as_bytes().to_vec(), is_over),
                "{bytes}"
            );
        }
        let mut chunked = Framing::Chunked(Chunks::default());
        assert!(
            chunked
                .take(&mut b"hello".to_vec(), &mut Vec::new(), 10)
                .is_err()
        );
    }
}
