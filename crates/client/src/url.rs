//! URLs of files on HTTP servers (RFC 3986), as far as a request needs them.

use std::fmt;
use std::str::FromStr;

use crate::remedy::Remedy;
use crate::shown::{shown, shown_target};

/// Longest URL: servers refuse longer request lines.
const MAX_URL_BYTES: usize = 8 << 10;
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// The end of the names of Amazon's hosts.
const AMAZON: &str = ".amazonaws.com";

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => HTTP_PORT,
            Self::Https => HTTPS_PORT,
        }
    }
}

/// An `http://` or `https://` URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    /// Name or address, without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// `user:password`, decoded.
    credentials: Option<String>,
    /// Path and query, as sent.
    target: String,
}

/// Why a text is not the URL of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// NBD over TLS.
    #[error("nbds: NBD over TLS is not supported")]
    Encrypted,
    /// Another scheme, or none.
    #[error("{text:?} is not an http URL")]
    Scheme {
        /// The text.
        text: String,
    },
    /// The text has a character that no URL has, or is too long.
    #[error("{text:?} is not a URL: {problem}")]
    Malformed {
        /// The beginning of the text.
        text: String,
        /// The mistake.
        problem: &'static str,
    },
    /// A field that a request cannot have.
    #[error("the field {name:?}: {problem}")]
    Field {
        /// Its name, as far as it is one.
        name: String,
        /// The mistake.
        problem: &'static str,
    },
    /// The proxy of the environment cannot be asked.
    #[error("{text:?} is not an http proxy")]
    Proxy {
        /// The URL of the proxy.
        text: String,
    },
}

impl UrlError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        let remedy = match self {
            Self::Encrypted => {
                "write nbd://HOST/EXPORT for a server inside your network, or the end of a tunnel on this machine (stunnel, ssh -L)"
            }
            Self::Scheme { .. } => {
                "write http://HOST/PATH or https://HOST/PATH, s3://BUCKET/KEY for an object of an S3-compatible store, or nbd://HOST/EXPORT"
            }
            Self::Proxy { .. } => {
                "set http_proxy, and https_proxy for https, to http://HOST:PORT, or name the host in no_proxy if it needs no proxy"
            }
            Self::Malformed { .. } | Self::Field { .. } => return None,
        };
        Some(remedy.into())
    }
}

impl Url {
    /// Returns the host: a name or an address.
    #[inline]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns whether the bytes of the server are encrypted: https.
    #[inline]
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// Returns the port: by default 80, and 443 for https.
    #[inline]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns path and query.
    #[inline]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the URL with one more parameter in its query.
    pub(super) fn with_query(&self, parameter: &str) -> Self {
        let separator = if self.target.contains('?') { '&' } else { '?' };
        Self {
            target: format!("{}{separator}{parameter}", self.target),
            ..self.clone()
        }
    }

    /// Returns path and query for messages: without the values that may be secret.
    pub fn shown_target(&self) -> String {
        shown_target(&self.target)
    }

    /// Returns the URL without user and password for the request line of a proxy, with all of its query.
    pub(crate) fn for_proxy(&self) -> String {
        let scheme = self.scheme.name();
        format!("{scheme}://{}{}", self.authority(), self.target)
    }

    /// Returns the last part of the path, which is the name of the file; empty if the path ends with a slash.
    pub fn file_name(&self) -> &str {
        let path = self.target.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Takes user and password of another URL, if this one has none.
    pub(crate) fn keep_credentials(&mut self, other: &Self) {
        if self.credentials.is_none() {
            self.credentials.clone_from(&other.credentials);
        }
    }

    /// Returns the user, decoded, if the URL names one.
    pub fn user(&self) -> Option<&str> {
        let credentials = self.credentials.as_deref()?;
        let user = credentials.split(':').next().unwrap_or_default();
        (!user.is_empty()).then_some(user)
    }

    /// Returns whether the URL has a password.
    pub(crate) fn has_password(&self) -> bool {
        let password = self
            .credentials
            .as_deref()
            .and_then(|it| it.split_once(':'));
        password.is_some_and(|(_, password)| !password.is_empty())
    }

    pub(crate) fn set_credentials(&mut self, user: &str, password: &str) {
        self.credentials = Some(format!("{user}:{password}"));
    }

    #[inline]
    pub(crate) fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }

    /// Returns host and port for the field Host and for messages: without the port if it is that of the scheme.
    #[inline]
    pub fn authority(&self) -> String {
        let place = self.place();
        let default = format!(":{}", self.scheme.default_port());
        place.strip_suffix(&default).unwrap_or(&place).to_owned()
    }

    /// Returns host and port, as a proxy's `CONNECT` has them.
    pub(crate) fn place(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Returns the URL that `reference`, the Location of a response, names relative to this one (RFC 3986 5.2), as browsers read it: with
    /// blanks and other characters that no URL has.
    ///
    /// # Errors
    /// It is not an http or https URL.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let reference = as_browsers_read(reference);
        let reference = reference.as_str();
        check_text(reference)?;
        if has_scheme(reference) {
            return reference.parse();
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return format!("{}://{rest}", self.scheme.name()).parse();
        }
        let path = self.target.split('?').next().unwrap_or_default();
        let target = match reference.chars().next() {
            None => self.target.clone(),
            Some('/') => reference.to_owned(),
            Some('?') => format!("{path}{reference}"),
            Some(_) => {
                let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
                format!("{folder}{reference}")
            }
        };
        Ok(Self {
            target: without_dots(&target),
            ..self.clone()
        })
    }

    /// Returns the URL of an object of Amazon's in another region; `None` for other hosts, whose names have no region.
    pub(crate) fn in_region(&self, region: &str) -> Option<Self> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        // `BUCKET.s3.REGION`, or `s3.REGION` with the bucket in the path.
        let (bucket, _) = self.host.strip_suffix(AMAZON)?.rsplit_once("s3.")?;
        let is_store = bucket.is_empty() || bucket.ends_with('.');
        (is_store && region.bytes().all(is_name)).then(|| Self {
            host: format!("{bucket}s3.{region}{AMAZON}"),
            ..self.clone()
        })
    }

    /// Returns whether both URLs have the same origin: scheme, host and port (RFC 6454 5).
    pub(crate) fn has_same_origin(&self, other: &Self) -> bool {
        let is_same_host = self.host.eq_ignore_ascii_case(&other.host);
        self.scheme == other.scheme && is_same_host && self.port == other.port
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let unknown = || UrlError::Scheme { text: shown(text) };
        let bad = |problem| UrlError::Malformed {
            text: shown(text),
            problem,
        };
        check_text(text)?;
        let (name, rest) = text.split_once("://").ok_or_else(unknown)?;
        let scheme = Scheme::named(name).ok_or_else(unknown)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (credentials, place) = match authority.rsplit_once('@') {
            Some((credentials, place)) => (Some(decoded(credentials)), place),
            None => (None, authority),
        };
        let credentials = match credentials {
            Some(text) => text.ok_or_else(|| bad("user and password are not UTF-8"))?,
            None => String::new(),
        };
        // A user without a password has an empty one (RFC 7617 2); `http://@HOST` names nobody.
        let credentials = match (credentials.as_str(), credentials.contains(':')) {
            ("", _) => None,
            (_, true) => Some(credentials),
            (user, false) => Some(format!("{user}:")),
        };
        let place = host_and_port(place, scheme.default_port());
        let (host, port) = place.ok_or_else(|| bad("host and port"))?;
        let target = match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        };
        Ok(Self {
            scheme,
            host,
            port,
            credentials,
            target,
        })
    }
}

impl fmt::Display for Url {
    /// Writes the URL for people: without user and password, and without the values of a query that may be secret, as those of
    /// signed URLs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.name();
        write!(f, "{scheme}://{}{}", self.authority(), self.shown_target())
    }
}

/// As `Display`: a password does not belong into a log.
impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Checks that a text has only printable ASCII characters without spaces, so that it cannot end a line of a request.
pub(crate) fn check_text(text: &str) -> Result<(), UrlError> {
    let problem = if text.len() > MAX_URL_BYTES {
        "longer than 8 KiB"
    } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "a space, or a character outside of ASCII: write it as %XX"
    } else {
        return Ok(());
    };
    let text = shown(text);
    Err(UrlError::Malformed { text, problem })
}

/// Returns a reference as the URL standard of browsers (url.spec.whatwg.org, "basic URL parser") reads it: without blanks at its ends, line ends,
/// tabs and its fragment, with `/` for `\` in the path, and other characters that no URL has as %XX.
fn as_browsers_read(text: &str) -> String {
    let text = text.trim_matches(|c: char| c <= ' ');
    let text = text.split('#').next().unwrap_or_default();
    let mut read = String::with_capacity(text.len());
    let mut is_query = false;
    for byte in text.bytes() {
        is_query |= byte == b'?';
        match byte {
            b'\t' | b'\r' | b'\n' => {}
            b'\\' if !is_query => read.push('/'),
            byte if byte.is_ascii_graphic() && !b"\"<>".contains(&byte) => read.push(byte.into()),
            byte => read.push_str(&format!("%{byte:02X}")),
        }
    }
    read
}

fn has_scheme(text: &str) -> bool {
    let before = text.split(['/', '?']).next().unwrap_or_default();
    before.contains(':') && text.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// Splits `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
pub(crate) fn host_and_port(place: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (
                address,
                port.strip_prefix(':').or(port.is_empty().then_some("")),
            )
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("")),
        },
    };
    let port = match port? {
        "" => default_port,
        digits => digits.parse().ok().filter(|port| *port != 0)?,
    };
    let is_name = !host.is_empty() && !host.contains(['[', ']', '@']);
    is_name.then(|| (host.to_owned(), port))
}

/// Replaces %XX (RFC 3986 2.1); `None` if the result is not text.
pub(crate) fn decoded(text: &str) -> Option<String> {
    String::from_utf8(decoded_bytes(text)).ok()
}

/// Replaces %XX (RFC 3986 2.1).
pub fn decoded_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = escaped
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    bytes
}

/// Returns text with all bytes percent-encoded but letters, digits, `-._~` and those in `kept`.
pub(crate) fn encoded_bytes(bytes: &[u8], kept: &str) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        match is_plain || kept.as_bytes().contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Removes the parts `.` and `..` of a path (RFC 3986 5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().expect("a URL")
    }

    #[test]
    fn the_parts_of_a_url_are_found() {
        let plain = url("http://weights.example/models/a.safetensors?sig=%2F#part");
        assert_eq!(plain.host(), "weights.example");
        assert_eq!((plain.port(), plain.credentials()), (80, None));
        assert_eq!(plain.target(), "/models/a.safetensors?sig=%2F");
        assert_eq!(plain.file_name(), "a.safetensors");
        let full = url("HTTP://me:p%40ss@[fd77::1]:8080");
        assert_eq!((full.host(), full.port()), ("fd77::1", 8080));
        assert_eq!(full.credentials(), Some("me:p@ss"));
        assert_eq!((full.target(), full.file_name()), ("/", ""));
        assert_eq!(full.authority(), "[fd77::1]:8080");
        assert_eq!(full.to_string(), "http://[fd77::1]:8080/", "no password");
        assert_eq!(url("http://host?a=b").target(), "/?a=b");
    }

    #[test]
    fn what_is_no_http_url_is_refused_with_a_reason() {
        for text in ["ftp://host/x", "host/x", ""] {
            let remedy = text.parse::<Url>().unwrap_err().remedy().unwrap();
            assert!(
                remedy
                    .to_string()
                    .starts_with("write http://HOST/PATH or https"),
                "{text}"
            );
        }
        let refused = |text: &str| text.parse::<Url>().unwrap_err().to_string();
        for text in [
            "http://",
            "http:///x",
            "http://host:0/",
            "http://host:65536/",
            "http://[::g]/",
            "http://[::1]x/",
            "http://a b/",
            "http://host/\r\nX: y",
            "http://host/\u{e9}",
        ] {
            assert!(refused(text).contains("is not a URL"), "{text}");
        }
        assert!(refused(&format!("http://host/{}", "x".repeat(9000))).contains("8 KiB"));
    }

    #[test]
    fn references_are_relative_to_the_url() {
        let base = url("http://host:81/a/b/c?q");
        for (reference, expected) in [
            ("http://other/x", "http://other/x"),
            ("//other:82/x", "http://other:82/x"),
            ("/x?y", "http://host:81/x?y"),
            ("x", "http://host:81/a/b/x"),
            ("../x", "http://host:81/a/x"),
            ("../../../x/./y/..", "http://host:81/x/"),
            ("?z", "http://host:81/a/b/c?z"),
            ("", "http://host:81/a/b/c?q"),
            ("x:y/z", ""),
        ] {
            let joined = base.join(reference).map(|url| url.for_proxy());
            assert_eq!(joined.unwrap_or_default(), expected, "{reference}");
        }
    }

    #[test]
    fn the_scheme_decides_the_port_and_is_part_of_the_origin() {
        let secret = url("HTTPS://host/a/b");
        assert!(secret.is_https() && secret.port() == 443);
        assert_eq!(secret.to_string(), "https://host/a/b");
        assert_eq!(url("https://host:80/").authority(), "host:80");
        assert_eq!(url("http://host:443/").authority(), "host:443");
        assert_eq!(url("https://[fd77::1]/").place(), "[fd77::1]:443");
        for (reference, expected) in [
            ("/x", "https://host/x"),
            ("//other/x", "https://other/x"),
            ("http://host/x", "http://host/x"),
        ] {
            assert_eq!(secret.join(reference).unwrap().to_string(), expected);
        }
        assert!(!secret.has_same_origin(&url("http://host:443/a/b")));
        assert!(secret.has_same_origin(&url("https://HOST:443/c")));
        let plain = url("http://host/").join("https://host/x").unwrap();
        assert!(plain.is_https());
    }

    #[test]
    fn a_location_is_read_as_browsers_read_it() {
        let base = url("http://host/a/b");
        for (location, expected) in [
            (
                "/models/my model v1.bin",
                "http://host/models/my%20model%20v1.bin",
            ),
            ("  x y ", "http://host/a/x%20y"),
            ("/mod\u{e8}le", "http://host/mod%C3%A8le"),
            ("\\c\\d?e\\f", "http://host/c/d?e\\f"),
            ("/x\r\nHost: y", "http://host/xHost:%20y"),
            ("http://other/a b#c d", "http://other/a%20b"),
            ("/a%20b", "http://host/a%20b"),
        ] {
            let joined = base.join(location).map(|url| url.for_proxy());
            assert_eq!(joined.unwrap_or_default(), expected, "{location}");
        }
    }

    #[test]
    fn a_user_may_have_no_password_and_a_url_no_user() {
        for (text, expected) in [
            ("http://token@host/", Some("token:")),
            ("http://token:@host/", Some("token:")),
            ("http://:pw@host/", Some(":pw")),
            ("http://@host/", None),
            ("http://host/", None),
        ] {
            assert_eq!(url(text).credentials(), expected, "{text}");
        }
    }
}
