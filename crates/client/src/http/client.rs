//! The client that asks for files: it finds the place of each, over redirects, regions and busy servers, on connections that are used again.

use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::Netdev;

use super::attempt::ConnectionAttempt;
use super::error_details::ErrorDetails;
use super::head::Head;
use super::location::Location;
use super::request::{Ask, HttpRequest};
use super::round_trip::{self, Broken, Response};
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::notice::Notice;
use crate::piece::Piece;
use crate::pool::Pool;
use crate::retry;
use crate::transport::Transport;

/// Most redirects in a row.
const MAX_REDIRECTS: usize = 10;
/// Most attempts if the server is busy or breaks the connection.
const ATTEMPTS: u32 = 4;
/// Most attempts if the server says when to come back.
const ASKED_ATTEMPTS: u32 = 16;

/// What requests are made with.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The NIC that connections are made with.
    pub nic: &'a Netdev,
    /// Connections that are used again.
    pub pool: &'a Arc<Pool>,
    /// How long to wait for an answer.
    pub limit: Duration,
    /// Hears of waits.
    pub notice: &'a Notice,
}

/// A file whose first bytes have come.
#[derive(Debug)]
pub(crate) struct FirstBytes {
    /// The user's request, in the region of its bucket.
    pub(crate) origin: HttpRequest,
    pub(crate) location: Location,
    pub(crate) head: Head,
    /// Size of the file, if it is known.
    pub(crate) size: Option<u64>,
    pub(crate) serves_ranges: bool,
    /// The beginning of the file: as many bytes as were wanted, if it has so many. Empty if the server sends something else.
    pub(crate) bytes: Vec<u8>,
}

/// What follows from a response to a request on the way.
enum Step {
    Here,
    /// A plain GET decides, because the answer to a range says nothing.
    WithoutRange,
    /// The same file, signed for another region.
    Region(HttpRequest),
    Elsewhere(HttpRequest),
}

impl Client<'_> {
    /// Finds a file and reads its first `wanted` bytes, at least one, with as few requests as there are redirects.
    ///
    /// # Errors
    /// The host is not found or does not answer, or the server refuses.
    pub(crate) fn find(
        &self,
        origin: &HttpRequest,
        wanted: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<FirstBytes, LoadError> {
        let (mut origin, mut request) = (origin.clone(), origin.clone());
        let (mut from, mut with_range) = (None, true);
        for _ in 0..=MAX_REDIRECTS {
            let location = self.location(request, from.clone(), cancel_check)?;
            let piece = Piece {
                start: 0,
                end: wanted as u64,
            };
            let ask = match with_range {
                true => Ask::Range(piece),
                false => Ask::All,
            };
            let response = self.ask(&location, ask, wanted, cancel_check)?;
            match step(&origin, &location, &response, with_range)? {
                Step::Here => return Ok(FirstBytes::of(origin, location, response)),
                Step::WithoutRange => {
                    request = location.request;
                    with_range = false;
                }
                Step::Region(other) => {
                    (origin, request, from) = (other.clone(), other, None);
                }
                Step::Elsewhere(place) => {
                    let (here, there) = (location.request.url(), place.url());
                    if here.is_https() && !there.is_https() {
                        self.notice.is_plain(&here.to_string(), &there.to_string());
                    }
                    from = Some(origin.url().to_string());
                    request = place;
                }
            }
        }
        Err(LoadError::Invalid {
            host: origin.url().to_string(),
            problem: format!("more than {MAX_REDIRECTS} redirects in a row").into(),
        })
    }

    fn location(
        &self,
        request: HttpRequest,
        from: Option<String>,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Location, LoadError> {
        let mut location = Location {
            request,
            addresses: Vec::new(),
            from,
        };
        location.addresses =
            self.pool
                .addresses(self.nic, &location.connection_key(), cancel_check)?;
        Ok(location)
    }

    /// Asks a place and returns the head of its answer. Asks again if it is busy.
    ///
    /// # Errors
    /// The host does not answer, or the answer makes no sense.
    pub fn head(
        &self,
        location: &Location,
        ask: Ask,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Head, LoadError> {
        Ok(self.ask(location, ask, 0, cancel_check)?.head)
    }

    /// Asks a place, again if it is busy. See [`round_trip::exchange`].
    ///
    /// # Errors
    /// The host does not answer, or the answer makes no sense.
    pub(crate) fn ask(
        &self,
        location: &Location,
        ask: Ask,
        wanted: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Response, LoadError> {
        let key = location.connection_key();
        let mut failures = 0;
        loop {
            let kept = self.pool.take(self.nic, &key);
            let is_kept = kept.is_some();
            let connected = match kept {
                Some(transport) => Ok(transport),
                None => self.connect(location, cancel_check),
            };
            let answered = match connected {
                Ok(transport) => {
                    match self.exchange(location, transport, ask, wanted, cancel_check) {
                        // Bytes of the answer before: some servers send a body after the head that HEAD asks for.
                        Err(LoadError::Invalid { .. }) if is_kept => continue,
                        answered => answered?,
                    }
                }
                // A server that breaks off the handshake of TLS, or a proxy that does not reach it.
                Err(LoadError::Broken { host, problem }) => Err(Broken {
                    cause: problem.during(host),
                    is_silent: false,
                }),
                Err(error) => return Err(error),
            };
            let (cause, retry_after) = match answered {
                Ok(response) if !response.head.is_busy() => return Ok(response),
                Ok(response) => {
                    let retry_after = response.head.retry_after;
                    if failures + 1 >= most_attempts(retry_after) {
                        return Ok(response);
                    }
                    let Head { status, reason, .. } = response.head;
                    (
                        format!("the server answers {status} {reason}").into(),
                        retry_after,
                    )
                }
                // The server has ended a connection that waited for long.
                Err(Broken {
                    is_silent: true, ..
                }) if is_kept => continue,
                Err(Broken { cause, .. }) => (cause, None),
            };
            failures += 1;
            if failures >= most_attempts(retry_after) {
                let attempts = failures;
                return Err(LoadError::GaveUp { attempts, cause });
            }
            let wait = retry::delay(failures, retry_after);
            self.notice.waits(&cause, wait);
            dial::pause(wait, cancel_check)?;
        }
    }
}

impl Client<'_> {
    /// Makes a connection to the end of a way.
    fn connect(
        &self,
        location: &Location,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Transport, LoadError> {
        let mut attempt = ConnectionAttempt::new(self.nic, location, self.limit);
        loop {
            if let Some(outcome) = attempt.poll() {
                return outcome;
            }
            dial::check_cancelled(cancel_check)?;
            attempt.wait(dial::SLICE)?;
        }
    }

    /// Sends a request and reads the response. A connection that takes another request goes to the pool.
    fn exchange(
        &self,
        location: &Location,
        mut transport: Transport,
        ask: Ask,
        wanted: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Result<Response, Broken>, LoadError> {
        let request = &location.request;
        let answered = round_trip::exchange(
            &mut transport,
            request,
            ask,
            wanted,
            self.limit,
            cancel_check,
        )?;
        if let Ok(response) = &answered
            && response.is_reusable
        {
            self.pool
                .keep(self.nic, &location.connection_key(), transport);
        }
        Ok(answered)
    }
}

fn most_attempts(retry_after: Option<Duration>) -> u32 {
    match retry_after {
        Some(_) => ASKED_ATTEMPTS,
        None => ATTEMPTS,
    }
}

/// Judges a response on the way of `origin`.
fn step(
    origin: &HttpRequest,
    location: &Location,
    response: &Response,
    with_range: bool,
) -> Result<Step, LoadError> {
    let head = &response.head;
    let details = ErrorDetails::of(head, &response.body);
    let has_range = head
        .range
        .as_ref()
        .is_some_and(|range| range.bytes.is_some());
    match head.status {
        200 | 204 => return Ok(Step::Here),
        206 if has_range && head.length != Some(0) => return Ok(Step::Here),
        416 if head.range.as_ref().and_then(|range| range.size) == Some(0) => {
            return Ok(Step::Here);
        }
        206 | 416 if with_range => return Ok(Step::WithoutRange),
        206 => {
            return Err(LoadError::Invalid {
                host: location.shown(),
                problem: "a part without the field Content-Range".into(),
            });
        }
        _ => {}
    }
    if matches!(head.status, 301 | 307 | 400 | 403)
        && let Some(region) = &details.region
        && let Some(other) = location.request.in_region(region)
    {
        return Ok(Step::Region(other));
    }
    match &head.location {
        Some(place) if head.is_redirect() => {
            let joined = location.request.url().join(place);
            let request = joined.and_then(|url| origin.redirected(url));
            let request = request.map_err(|error| LoadError::Redirect {
                from: location.request.url().to_string(),
                to: crate::shown::shown(place),
                error,
            });
            request.map(Step::Elsewhere)
        }
        _ => Err(details.refused(&location.shown(), head)),
    }
}

impl FirstBytes {
    fn of(origin: HttpRequest, location: Location, response: Response) -> Self {
        let Response {
            head,
            body,
            is_whole,
            ..
        } = response;
        let range = head.range.clone();
        let size = match head.status {
            200 if is_whole => Some(body.len() as u64),
            200 if !head.is_chunked => head.length,
            204 => Some(0),
            _ => range.as_ref().and_then(|range| range.size),
        };
        let starts = match head.status {
            200 => true,
            206 => range
                .and_then(|range| range.bytes)
                .is_some_and(|it| it.start == 0),
            _ => false,
        };
        Self {
            serves_ranges: head.status == 206,
            bytes: if starts { body } else { Vec::new() },
            origin,
            location,
            head,
            size,
        }
    }
}
