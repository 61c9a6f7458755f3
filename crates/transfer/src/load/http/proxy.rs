//! The proxy that the environment names for plain HTTP: `http_proxy`, `all_proxy`, `no_proxy`.

use super::url::{Url, UrlError};

/// The proxy of the environment, and the hosts that are asked without it.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    url: Url,
    excepted: String,
}

impl Proxy {
    /// Returns the proxy; `None` without one. `variable` returns a variable of the environment. As in curl, there is no
    /// `HTTP_PROXY`: in a CGI program a client could set it.
    ///
    /// # Errors
    /// The proxy is not an http URL.
    pub(crate) fn from(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, UrlError> {
        let set = |names: &[&str]| {
            let values = names.iter().find_map(|name| variable(name));
            values.map(|text| text.trim().to_owned())
        };
        let text = set(&["http_proxy", "all_proxy", "ALL_PROXY"]);
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let url = match text.contains("://") {
            true => text.parse()?,
            false => format!("http://{text}").parse()?,
        };
        let excepted = set(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Ok(Some(Self { url, excepted }))
    }

    /// Returns the URL of the proxy, unless `url` is asked without it.
    pub(crate) fn for_url(&self, url: &Url) -> Option<&Url> {
        let mut excepted = self.excepted.split(',');
        let is_direct = excepted.any(|entry| matches(entry.trim(), url));
        (!is_direct).then_some(&self.url)
    }
}

/// Returns whether an entry of `no_proxy` names the host: itself, a domain that it is in, or `*`.
fn matches(entry: &str, url: &Url) -> bool {
    let host = url.host().to_ascii_lowercase();
    let entry = entry.to_ascii_lowercase();
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') => (name, Some(digits)),
        _ => (entry.as_str(), None),
    };
    let is_port = port.is_none_or(|digits| digits.parse() == Ok(url.port()));
    let name = name.trim_start_matches('.').trim_matches(['[', ']']);
    let is_in = host
        .strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'));
    is_port && !name.is_empty() && (name == "*" || is_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = Proxy::from(variable).unwrap()?;
        let proxy = found.for_url(&url.parse().unwrap())?;
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
    fn a_proxy_that_takes_tls_is_refused() {
        let variable = |_: &str| Some("https://proxy".to_owned());
        assert_eq!(Proxy::from(variable).unwrap_err(), UrlError::Encrypted);
    }
}
