//! Where a request has led to, from the URL that the user gave by redirects, and how connections are made to that.

use std::net::SocketAddr;

use super::request::HttpRequest;
use crate::connection_key::ConnectionKey;

/// The place that answers a request.
#[derive(Clone, Debug)]
pub struct Location {
    /// The request for the place, with the fields that its origin may see.
    pub request: HttpRequest,
    /// Addresses of its host, or of the proxy.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The URL that the user gave, if a redirect has led from there. Signed places expire: then it is asked again.
    pub(crate) from: Option<String>,
}

impl Location {
    /// Returns the ends of its connections.
    #[inline]
    pub fn connection_key(&self) -> ConnectionKey {
        let (next, url) = (self.request.next_hop(), self.request.url());
        ConnectionKey {
            host: next.host().to_owned(),
            port: next.port(),
            tls: url.is_https().then(|| (url.host().to_owned(), url.port())),
        }
    }

    /// Returns whether its connections have these ends.
    #[inline]
    pub fn leads_to(&self, key: &ConnectionKey) -> bool {
        let (next, url) = (self.request.next_hop(), self.request.url());
        let tls = url.is_https().then(|| (url.host(), url.port()));
        let of_key = key.tls.as_ref().map(|(host, port)| (host.as_str(), *port));
        (next.host(), next.port(), tls) == (key.host.as_str(), key.port, of_key)
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

    fn location(url: &str, proxy: Option<&str>) -> Location {
        let mut request = HttpRequest::new(url.parse().unwrap());
        if let Some(proxy) = proxy {
            request = request.through_proxy(proxy.parse().unwrap()).unwrap();
        }
        Location {
            request,
            addresses: Vec::new(),
            from: None,
        }
    }

    #[test]
    fn a_location_leads_to_the_ends_of_its_connections_and_no_others() {
        let locations = [
            location("http://host/a", None),
            location("http://host:81/a", None),
            location("http://other/a", None),
            location("https://host:80/a", None),
            location("http://host/a", Some("http://proxy:80")),
            location("https://host/a", Some("http://proxy:80")),
            location("https://other/a", Some("http://proxy:80")),
        ];
        for (at, location) in locations.iter().enumerate() {
            for (of, other) in locations.iter().enumerate() {
                assert_eq!(
                    location.leads_to(&other.connection_key()),
                    at == of,
                    "{at} to {of}"
                );
            }
        }
        assert!(location("http://host/b", None).leads_to(&locations[0].connection_key()));
    }
}
