//! The way of a request: from the URL that the user gave to the place that answers, and how connections are made to that.

use std::net::SocketAddr;

use super::request::HttpRequest;
use crate::hop::Hop;

/// Where a request has led to.
#[derive(Clone, Debug)]
pub struct Way {
    /// The request for the place, with the fields that its origin may see.
    pub request: HttpRequest,
    /// Addresses of its host, or of the proxy.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The URL that the user gave, if a redirect has led from there. Signed places expire: then it is asked again.
    pub(crate) from: Option<String>,
}

impl Way {
    /// Returns the ends of its connections.
    #[inline]
    pub fn hop(&self) -> Hop {
        let (next, url) = (self.request.next_hop(), self.request.url());
        Hop {
            host: next.host().to_owned(),
            port: next.port(),
            tls: url.is_https().then(|| (url.host().to_owned(), url.port())),
        }
    }

    /// Returns whether its connections have these ends.
    #[inline]
    pub fn leads_to(&self, hop: &Hop) -> bool {
        let (next, url) = (self.request.next_hop(), self.request.url());
        let tls = url.is_https().then(|| (url.host(), url.port()));
        let of_hop = hop.tls.as_ref().map(|(host, port)| (host.as_str(), *port));
        (next.host(), next.port(), tls) == (hop.host.as_str(), hop.port, of_hop)
    }

    /// Returns whether a redirect has led here.
    #[inline]
    pub fn is_redirected(&self) -> bool {
        self.from.is_some()
    }

    /// Returns the place for messages, and how it was reached.
    pub fn shown(&self) -> String {
        let place = self.request.url();
        let from = self.from.as_ref();
        let from = from.map_or_else(String::new, |from| format!(", where {from} redirects to,"));
        match self.request.proxy() {
            None => format!("{place}{from}"),
            Some(proxy) => format!("{place}{from} through the proxy {proxy}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(url: &str, proxy: Option<&str>) -> Way {
        let mut request = HttpRequest::new(url.parse().unwrap());
        if let Some(proxy) = proxy {
            request = request.through_proxy(proxy.parse().unwrap()).unwrap();
        }
        Way {
            request,
            addresses: Vec::new(),
            from: None,
        }
    }

    #[test]
    fn a_way_leads_to_the_ends_of_its_connections_and_no_others() {
        let ways = [
            way("http://host/a", None),
            way("http://host:81/a", None),
            way("http://other/a", None),
            way("https://host:80/a", None),
            way("http://host/a", Some("http://proxy:80")),
            way("https://host/a", Some("http://proxy:80")),
            way("https://other/a", Some("http://proxy:80")),
        ];
        for (at, way) in ways.iter().enumerate() {
            for (of, other) in ways.iter().enumerate() {
                assert_eq!(way.leads_to(&other.hop()), at == of, "{at} to {of}");
            }
        }
        assert!(way("http://host/b", None).leads_to(&ways[0].hop()));
    }
}
