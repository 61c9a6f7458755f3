//! The tunnel through a proxy to an https server: `CONNECT` (RFC 9110 9.3.6).

use std::io::{Read, Write};

use devmem_tcp::Stream;

use super::error_details::ErrorDetails;
use super::head::{self, Head};
use super::request::HttpRequest;
use crate::cause::Cause;
use crate::error::LoadError;
use crate::retry::is_not_ready;

/// Bytes of one receive.
const RECEIVE_BYTES: usize = 4 << 10;

/// The request for a tunnel, and what has come of its answer.
#[derive(Debug)]
pub(super) struct Tunnel {
    proxy: String,
    /// Host and port of the server.
    host: String,
    outgoing: Vec<u8>,
    text: Vec<u8>,
}

impl Tunnel {
    /// Returns the tunnel that a request needs; `None` if it needs none.
    pub(super) fn of(request: &HttpRequest) -> Option<Self> {
        let (outgoing, proxy) = (request.tunnel()?, request.proxy()?);
        Some(Self {
            proxy: proxy.to_string(),
            host: request.url().place(),
            outgoing,
            text: Vec::new(),
        })
    }

    /// Returns the URL of the proxy.
    pub(super) fn proxy(&self) -> &str {
        &self.proxy
    }

    /// Goes on. Returns whether the stream now leads to the server.
    ///
    /// # Errors
    /// The proxy refuses, or answers something else; the connection broke.
    pub(super) fn poll(&mut self, stream: &mut Stream) -> Result<bool, LoadError> {
        while !self.outgoing.is_empty() {
            match stream.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if is_not_ready(&error) => return Ok(false),
                Err(error) => {
                    return Err(self.broken(Cause::of_io(error).during("send to the proxy")));
                }
            }
        }
        let mut bytes = [0; RECEIVE_BYTES];
        loop {
            let count = match stream.read(&mut bytes) {
                Ok(0) => return Err(self.broken("the proxy closed the connection".into())),
                Ok(count) => count,
                Err(error) if is_not_ready(&error) => return Ok(false),
                Err(error) => return Err(self.broken(Cause::of_io(error))),
            };
            self.text.extend_from_slice(&bytes[..count]);
            if self.is_open()? {
                return Ok(true);
            }
        }
    }

    /// Judges what has come of the answer. Returns whether the tunnel is open.
    fn is_open(&mut self) -> Result<bool, LoadError> {
        let invalid = |problem: Cause| LoadError::Invalid {
            host: format!("the proxy {}", self.proxy),
            problem,
        };
        while let Some((head, len)) =
            head::parse(&self.text).map_err(|error| invalid(error.into()))?
        {
            self.text.drain(..len);
            match head.status {
                100..=199 => {}
                // The server speaks after the client.
                200..=299 if self.text.is_empty() => return Ok(true),
                200..=299 => {
                    return Err(invalid("bytes behind the head of its answer".into()));
                }
                _ => return Err(self.refused(head)),
            }
        }
        Ok(false)
    }

    fn refused(&self, head: Head) -> LoadError {
        let details = ErrorDetails::of(&head, &self.text).shown();
        let Head { status, reason, .. } = head;
        let remedy = match status {
            407 => "put user:password@ into the URL of the proxy: https_proxy",
            401 | 403 | 405 => {
                "the proxy does not permit this host or port; name the host in no_proxy if it needs no proxy"
            }
            // The proxy may reach the server later.
            408 | 429 | 500..=599 => {
                let cause = Cause::from(format!("the proxy answers {status} {reason}{details}"));
                let remedy = format!("it may not reach {}; its log may say why", self.host);
                return self.broken(cause.with_remedy(remedy));
            }
            _ => "check https_proxy: it needs the URL of a proxy that knows CONNECT",
        };
        LoadError::Tunnel {
            proxy: self.proxy.clone(),
            host: self.host.clone(),
            status,
            reason,
            details,
            remedy,
        }
    }

    fn broken(&self, problem: Cause) -> LoadError {
        LoadError::Broken {
            host: self.proxy.clone(),
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: &str) -> Result<bool, String> {
        let mut tunnel = Tunnel {
            proxy: "http://proxy:3128/".to_owned(),
            host: "host:443".to_owned(),
            outgoing: Vec::new(),
            text: answer.as_bytes().to_vec(),
        };
        tunnel.is_open().map_err(|error| {
            let remedy = error.remedy().map(|remedy| remedy.to_string());
            format!("{error}; {}", remedy.unwrap_or_default())
        })
    }

    #[test]
    fn a_tunnel_is_open_after_a_success_and_nothing_behind_it() {
        for (answer, is_open) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", true),
            ("HTTP/1.0 200 OK\r\nProxy-agent: x\r\n\r\n", true),
            ("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 No\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nProxy", false),
            ("", false),
        ] {
            assert_eq!(judged(answer), Ok(is_open), "{answer}");
        }
    }

    #[test]
    fn a_refusal_of_the_proxy_is_told_as_that_of_the_proxy() {
        for (answer, expected) in [
            (
                "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                "user:password@",
            ),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "no_proxy"),
            ("HTTP/1.1 503 Busy\r\n\r\n", "may not reach host:443"),
            ("HTTP/1.1 404 Not Found\r\n\r\n", "https_proxy"),
            ("SSH-2.0-x\r\n\r\n", "is not HTTP"),
            ("HTTP/1.1 200 OK\r\n\r\n\u{16}", "bytes behind"),
        ] {
            let text = judged(answer).unwrap_err();
            assert!(text.contains("proxy"), "{text}");
            assert!(text.contains(expected), "{answer}: {text}");
        }
    }
}
