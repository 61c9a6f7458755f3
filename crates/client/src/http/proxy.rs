//! The proxies that the environment names: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`.

use std::net::IpAddr;

use crate::shown::shown;
use crate::url::{Url, UrlError};

/// The URL of a proxy, or why it cannot be asked, which does no harm to hosts that need no proxy.
type Named = Result<Url, UrlError>;

/// The proxies of the environment, and the hosts that are asked without one.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    for_http: Option<Named>,
    for_https: Option<Named>,
    excepted: String,
}

impl Proxy {
    /// Returns the proxies; `None` without any. `variable` returns a variable of the environment; an empty one counts as unset. As in curl,
    /// there is no `HTTP_PROXY`: in a CGI program a client could set it.
    pub(crate) fn from(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |names: &[&str]| {
            let values = names.iter().filter_map(|name| variable(name));
            let mut values = values.map(|text| text.trim().to_owned());
            values.find(|text| !text.is_empty())
        };
        let named = |name: &[&str]| {
            let text = set(name).or_else(|| set(&["all_proxy", "ALL_PROXY"]))?;
            Some(proxy_at(&text))
        };
        let (for_http, for_https) = (
            named(&["http_proxy"]),
            named(&["https_proxy", "HTTPS_PROXY"]),
        );
        (for_http.is_some() || for_https.is_some()).then(|| Self {
            for_http,
            for_https,
            excepted: set(&["no_proxy", "NO_PROXY"]).unwrap_or_default(),
        })
    }

    /// Returns one proxy for all hosts.
    pub(crate) fn for_all(url: Url) -> Self {
        let named = of_url(url);
        Self {
            for_http: Some(named.clone()),
            for_https: Some(named),
            excepted: String::new(),
        }
    }

    /// Returns the URL of the proxy, unless `url` is asked without it.
    ///
    /// # Errors
    /// The proxy is needed, and is no http proxy.
    #[inline]
    pub(crate) fn for_url(&self, url: &Url) -> Result<Option<&Url>, UrlError> {
        let separators = |c: char| c == ',' || c.is_ascii_whitespace();
        let mut excepted = self.excepted.split(separators);
        let named = match url.is_https() {
            true => &self.for_https,
            false => &self.for_http,
        };
        match named {
            Some(named) if !excepted.any(|entry| matches(entry, url)) => {
                named.as_ref().map(Some).map_err(Clone::clone)
            }
            _ => Ok(None),
        }
    }
}

/// Returns the proxy that a text names. A connection to the proxy itself is not encrypted.
fn proxy_at(text: &str) -> Named {
    let parsed: Result<Url, _> = match text.contains("://") {
        true => text.parse(),
        false => format!("http://{text}").parse(),
    };
    match parsed {
        Ok(url) => of_url(url),
        Err(_) => Err(UrlError::Proxy { text: shown(text) }),
    }
}

fn of_url(url: Url) -> Named {
    match url.is_https() {
        true => Err(UrlError::Proxy {
            text: url.to_string(),
        }),
        false => Ok(url),
    }
}

/// Returns whether an entry of `no_proxy` names the host: itself, a domain or a network that it is in, or `*`.
fn matches(entry: &str, url: &Url) -> bool {
    let host = url.host().trim_end_matches('.').to_ascii_lowercase();
    if let Some((network, len)) = entry.split_once('/') {
        return is_in_network(&host, network, len);
    }
    let entry = entry.to_ascii_lowercase();
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') => (name, Some(digits)),
        _ => (entry.as_str(), None),
    };
    let is_port = port.is_none_or(|digits| digits.parse() == Ok(url.port()));
    let name = name.trim_matches('.').trim_matches(['[', ']']);
    let is_in = host
        .strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'));
    is_port && !name.is_empty() && (name == "*" || is_in)
}

/// Returns whether a host is an address in a network (RFC 4632 3.1).
fn is_in_network(host: &str, network: &str, len: &str) -> bool {
    let network = network.trim_matches(['[', ']']).parse();
    let (Ok(host), Ok(network), Ok(len)) = (host.parse(), network, len.parse::<u32>()) else {
        return false;
    };
    let (host, network, bits) = match (host, network) {
        (IpAddr::V4(host), IpAddr::V4(network)) => {
            (host.to_bits().into(), network.to_bits().into(), 32)
        }
        (IpAddr::V6(host), IpAddr::V6(network)) => (host.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    // A shift by all bits of the type is none.
    let differ: u128 = host ^ network;
    len <= bits && differ.checked_shr(bits - len).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = Proxy::from(variable)?;
        let proxy = found.for_url(&url.parse().unwrap()).unwrap()?;
        Some(proxy.to_string())
    }

    #[test]
    fn the_environment_names_a_proxy_for_most_hosts() {
        let variables = [
            ("http_proxy", "proxy:3128"),
            (
                "no_proxy",
                "localhost, .example.com,10.0.0.1,[fd77::1],host:8080",
            ),
        ];
        for (url, through) in [
            ("http://weights/x", true),
            ("http://localhost/x", false),
            ("http://example.com/x", false),
            ("http://a.example.com/x", false),
            ("http://badexample.com/x", true),
            ("http://10.0.0.1:99/x", false),
            ("http://[fd77::1]/x", false),
            ("http://host:8080/x", false),
            ("http://host/x", true),
        ] {
            let expected = through.then(|| "http://proxy:3128/".to_owned());
            assert_eq!(proxy(url, &variables), expected, "{url}");
        }
        assert_eq!(proxy("http://a/", &[]), None);
        assert_eq!(proxy("http://a/", &[("http_proxy", "")]), None);
        let all = [("all_proxy", "http://p/"), ("NO_PROXY", "*")];
        assert_eq!(proxy("http://a/", &all), None);
        assert_eq!(proxy("http://a/", &all[..1]), Some("http://p/".to_owned()));
    }

    #[test]
    fn https_has_a_proxy_of_its_own_variable() {
        let both = [("http_proxy", "plain:1"), ("https_proxy", "secret:2")];
        let plain = Some("http://plain:1/".to_owned());
        let secret = Some("http://secret:2/".to_owned());
        assert_eq!(proxy("http://a/", &both), plain);
        assert_eq!(proxy("https://a/", &both), secret);
        assert_eq!(proxy("https://a/", &both[..1]), None);
        assert_eq!(proxy("http://a/", &both[1..]), None);
        let all = [("all_proxy", "p:3"), ("HTTPS_PROXY", "secret:2")];
        assert_eq!(proxy("http://a/", &all), Some("http://p:3/".to_owned()));
        assert_eq!(proxy("https://a/", &all), secret);
        let excepted = [both[1], ("no_proxy", "a:443")];
        assert_eq!(proxy("https://a/", &excepted), None);
    }

    #[test]
    fn no_proxy_names_networks_and_is_separated_by_commas_or_blanks() {
        let http = ("http_proxy", "proxy");
        for (excepted, host, through) in [
            ("10.0.0.0/8", "10.77.0.1", false),
            ("10.77.0.1/32", "10.77.0.1", false),
            ("10.77.0.2/31", "10.77.0.1", true),
            ("0.0.0.0/0", "192.0.2.1", false),
            ("fd77::/64", "[fd77::1]", false),
            ("fd77::/64", "[fd78::1]", true),
            ("::/0", "[fd78::1]", false),
            ("10.0.0.0/33", "10.0.0.1", true),
            ("10.0.0.0/8", "ten.example", true),
            ("a b\tc", "c", false),
            ("a, b", "b", false),
            ("example.com.", "x.example.com", false),
            (".example.com.", "example.com.", false),
            (" ", "a", true),
        ] {
            let found = proxy(&format!("http://{host}/"), &[http, ("no_proxy", excepted)]);
            assert_eq!(found.is_some(), through, "{excepted}: {host}");
        }
    }

    #[test]
    fn an_empty_variable_hides_no_other() {
        let variables = [
            ("http_proxy", ""),
            ("all_proxy", "p"),
            ("no_proxy", ""),
            ("NO_PROXY", "near"),
        ];
        assert_eq!(proxy("http://near/", &variables), None);
        assert_eq!(
            proxy("http://far/", &variables),
            Some("http://p/".to_owned())
        );
    }

    #[test]
    fn a_proxy_of_another_kind_is_refused_where_it_is_needed() {
        for text in [
            "https://proxy",
            "socks5h://me:s3cret@proxy:1080",
            "http://a b",
        ] {
            let variable = |name: &str| match name {
                "all_proxy" => Some(text.to_owned()),
                "no_proxy" => Some("near".to_owned()),
                _ => None,
            };
            let found = Proxy::from(variable).unwrap();
            assert_eq!(found.for_url(&"http://near/".parse().unwrap()), Ok(None));
            let refused = found.for_url(&"http://far/".parse().unwrap()).unwrap_err();
            let refused = format!("{refused}; {}", refused.remedy().unwrap());
            assert!(refused.contains("is not an http proxy"), "{refused}");
            assert!(
                refused.contains("no_proxy") && !refused.contains("s3cret"),
                "{refused}"
            );
        }
    }
}
