//! The way of a request: from the URL that the user gave to the place that answers, and how connections are made to that.

use std::net::SocketAddr;

use super::request::HttpRequest;
use crate::load::hop::Hop;

/// Where a request has led to.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// The request for the place, with the fields that its origin may see.
    pub(crate) request: HttpRequest,
    /// Addresses of its host, or of the proxy.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The URL that the user gave, if a redirect has led from there. Signed places expire: then it is asked again.
    pub(crate) from: Option<String>,
}

impl Way {
    /// Returns the ends of its connections.
    pub(crate) fn hop(&self) -> Hop {
        let (next, url) = (self.request.next_hop(), self.request.url());
        Hop {
            host: next.host().to_owned(),
            port: next.port(),
            tls: url.is_https().then(|| (url.host().to_owned(), url.port())),
        }
    }

    pub(crate) fn is_redirected(&self) -> bool {
        self.from.is_some()
    }

    /// Returns the place for messages, and how it was reached.
    pub(crate) fn shown(&self) -> String {
        let place = self.request.url();
        let from = self.from.as_ref();
        let from = from.map_or_else(String::new, |from| format!(", where {from} redirects to,"));
        match self.request.proxy() {
            None => format!("{place}{from}"),
            Some(proxy) => format!("{place}{from} through the proxy {proxy}"),
        }
    }
}
