//! The requests for a file: GET, with ranges.

use std::fmt;
use std::time::SystemTime;

use super::proxy::Proxy;
use super::sigv4::S3Credentials;
use super::url::{Url, UrlError};
use crate::load::base64;
use crate::parallel::Piece;

/// Fields that the loader sets; a request with two of them would be invalid or ambiguous.
const OURS: [&str; 6] = [
    "host",
    "range",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
];

/// Fields that another origin may see after a redirect: what the client can take, and which version. All others stay with the origin that they
/// were meant for, whatever their names: keys and tokens have countless ones.
const HARMLESS: [&str; 9] = [
    "accept",
    "accept-charset",
    "accept-language",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "user-agent",
];

/// A file to request: its URL, and what the server needs to see.
#[derive(Clone)]
pub struct HttpRequest {
    url: Url,
    fields: Vec<(String, String)>,
    proxy: Option<Proxy>,
    /// Signs each request.
    signer: Option<Box<S3Credentials>>,
}

impl HttpRequest {
    /// Returns the request for `url`. User and password of the URL become a Basic `Authorization`.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            fields: Vec::new(),
            proxy: None,
            signer: None,
        }
    }

    /// Signs each request for an S3-compatible store. User and password of the URL are not used then.
    #[must_use]
    pub fn sign_s3(mut self, credentials: S3Credentials) -> Self {
        self.signer = Some(Box::new(credentials));
        self
    }

    /// Returns whether requests are signed.
    pub(crate) fn is_signed(&self) -> bool {
        self.signer.is_some()
    }

    /// Replaces user and password of the URL.
    pub(crate) fn with_credentials(mut self, user: &str, password: &str) -> Self {
        self.url.set_credentials(user, password);
        self
    }

    /// Adds a field, such as `Authorization`.
    ///
    /// # Errors
    /// The name or the value has a character that would end the field, or the loader sets the field itself.
    pub fn field(mut self, name: &str, value: &str) -> Result<Self, UrlError> {
        let is_name = !name.is_empty() && name.chars().all(is_name_char);
        let is_value = value
            .bytes()
            .all(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
        let is_ours = OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name));
        if !is_name || !is_value || is_ours {
            return Err(UrlError::Malformed {
                // Neither the value, which may be a secret, nor what was to be one.
                text: name
                    .split(|c: char| !is_name_char(c))
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                problem: match is_ours {
                    true => "the loader sets this field itself",
                    false => "not the name and value of a field",
                },
            });
        }
        self.fields.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Uses the proxy that the environment names: `http_proxy` or `all_proxy`, except for the hosts of `no_proxy`. Whether it is
    /// used is decided for each URL that the server redirects to.
    ///
    /// # Errors
    /// The proxy is not an http URL.
    pub fn proxy_from_env(mut self) -> Result<Self, UrlError> {
        self.proxy = Proxy::from(|name| std::env::var(name).ok())?;
        Ok(self)
    }

    /// Returns the URL of the file.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the proxy that is asked for the URL, if any.
    pub fn proxy(&self) -> Option<&Url> {
        self.proxy.as_ref()?.for_url(&self.url)
    }

    /// Returns the host to connect to: the proxy, or that of the URL.
    pub(crate) fn next_hop(&self) -> &Url {
        self.proxy().unwrap_or(&self.url)
    }

    /// Returns the request for the place that the server redirects to. Fields and credentials are sent to the same origin, unless
    /// the place has others; another one gets harmless fields only.
    pub(crate) fn redirected(&self, url: Url) -> Self {
        let mut request = self.clone();
        let mut url = url;
        if url.has_same_origin(&self.url) {
            url.keep_credentials(&self.url);
        } else {
            request.signer = None;
            let is_harmless = |name: &str| {
                HARMLESS
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(name))
            };
            request.fields.retain(|(name, _)| is_harmless(name));
        }
        request.url = url;
        request
    }

    /// Appends the request for a piece of the file, or for all of it.
    pub(crate) fn write(&self, piece: Option<Piece>, out: &mut Vec<u8>) {
        let (target, host) = (self.url.target(), self.url.authority());
        let proxy = self.proxy();
        let mut text = match proxy {
            None => format!("GET {target} HTTP/1.1\r\n"),
            Some(_) => format!("GET {} HTTP/1.1\r\n", self.url.for_proxy()),
        };
        let mut line = |name: &str, value: &str| {
            text += name;
            text += ": ";
            text += value;
            text += "\r\n";
        };
        line("Host", &host);
        let has = |name: &str| {
            self.fields
                .iter()
                .any(|(own, _)| own.eq_ignore_ascii_case(name))
        };
        if !has("User-Agent") {
            line(
                "User-Agent",
                concat!("devmem-tcp/", env!("CARGO_PKG_VERSION")),
            );
        }
        if !has("Accept") {
            line("Accept", "*/*");
        }
        // Compressed bytes would be compressed in device memory.
        line("Accept-Encoding", "identity");
        if let Some(piece) = piece {
            line("Range", &piece.byte_range());
        }
        let signed = self.signer.as_ref();
        let signed = signed.map(|signer| signer.sign(&self.url, piece, SystemTime::now()));
        for (name, value) in signed.iter().flatten() {
            line(name, value);
        }
        if let Some(credentials) = self.url.credentials()
            && signed.is_none()
            && !has("Authorization")
        {
            let basic = base64::encode(credentials.as_bytes());
            line("Authorization", &format!("Basic {basic}"));
        }
        if let Some(credentials) = proxy.and_then(Url::credentials) {
            let basic = base64::encode(credentials.as_bytes());
            line("Proxy-Authorization", &format!("Basic {basic}"));
        }
        for (name, value) in &self.fields {
            line(name, value);
        }
        text += "\r\n";
        out.extend_from_slice(text.as_bytes());
    }
}

/// Returns whether a character may be part of the name of a field (RFC 9110 5.6.2).
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

/// Without the values of the fields, which may be secrets.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.fields.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpRequest")
            .field("url", &self.url)
            .field("fields", &names)
            .field("proxy", &self.proxy)
            .field("signer", &self.signer)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &HttpRequest, piece: Option<Piece>) -> String {
        let mut out = Vec::new();
        request.write(piece, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn environment(variables: &[(&str, &str)]) -> Option<Proxy> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Proxy::from(variable).unwrap()
    }

    fn request(url: &str) -> HttpRequest {
        HttpRequest::new(url.parse().unwrap())
    }

    #[test]
    fn a_range_is_requested_with_its_last_byte() {
        let piece = Piece {
            start: 100,
            end: 200,
        };
        let text = text(&request("http://host:81/x?y"), Some(piece));
        assert!(text.starts_with("GET /x?y HTTP/1.1\r\nHost: host:81\r\n"));
        assert!(text.contains("\r\nRange: bytes=100-199\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
        assert!(!text.contains("Authorization"), "{text}");
    }

    #[test]
    fn credentials_come_from_the_url_or_a_field() {
        let basic = text(&request("http://Aladdin:open%20sesame@host/"), None);
        let expected = "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n";
        assert!(basic.contains(expected), "{basic}");
        let token = request("http://me:pw@host/").field("authorization", "Bearer t");
        let token = text(&token.unwrap(), None);
        assert!(token.contains("authorization: Bearer t\r\n"), "{token}");
        assert!(!token.contains("Basic"), "{token}");
    }

    #[test]
    fn a_proxy_is_asked_for_the_whole_url() {
        let mut request = request("http://host/x");
        request.proxy = environment(&[("http_proxy", "http://me:pw@proxy:3128/")]);
        let text = text(&request, None);
        assert!(text.starts_with("GET http://host/x HTTP/1.1\r\nHost: host\r\n"));
        assert!(text.contains("Proxy-Authorization: Basic bWU6cHc=\r\n"));
        assert_eq!(request.next_hop().port(), 3128);
    }

    #[test]
    fn a_redirect_decides_again_about_the_proxy() {
        let mut request = request("http://far/x");
        request.proxy = environment(&[("http_proxy", "proxy:3128"), ("no_proxy", "near")]);
        let near = request.redirected("http://near/x".parse().unwrap());
        assert_eq!(near.next_hop().host(), "near");
        assert!(text(&near, None).starts_with("GET /x HTTP/1.1\r\n"));
        let far = near.redirected("http://far/y".parse().unwrap());
        assert_eq!(far.next_hop().host(), "proxy");
    }

    #[test]
    fn the_password_of_a_url_stays_with_its_host() {
        let first = request("http://me:pw@host/x");
        let same = first.redirected("http://host/y".parse().unwrap());
        let sent = text(&same, None);
        assert!(sent.contains("Authorization: Basic bWU6cHc=\r\n"), "{sent}");
        let other_port = first.redirected("http://host:81/y".parse().unwrap());
        let sent = text(&other_port, None);
        assert!(!sent.contains("Authorization"), "{sent}");
        let named = first.redirected("http://you:pw@host/y".parse().unwrap());
        let sent = text(&named, None);
        assert!(sent.contains("Basic eW91OnB3\r\n"), "{sent}");
    }

    #[test]
    fn credentials_are_not_sent_to_another_host() {
        let first = request("http://me:pw@host/x").field("Authorization", "secret");
        let first = first
            .and_then(|request| request.field("X-Any", "s3cret"))
            .and_then(|request| request.field("X-Api-Key", "s3cret"))
            .and_then(|request| request.field("PRIVATE-TOKEN", "s3cret"))
            .and_then(|request| request.field("X-Amz-Security-Token", "s3cret"))
            .and_then(|request| request.field("Accept-Token", "s3cret"))
            .and_then(|request| request.field("If-Match", "kept"))
            .unwrap();
        let same = text(&first.redirected("http://host/y".parse().unwrap()), None);
        assert!(same.contains("secret") && same.contains("kept"), "{same}");
        assert!(same.contains("X-Any: s3cret"), "{same}");
        for place in ["http://other/y", "http://host:81/y", "http://host.other/y"] {
            let other = text(&first.redirected(place.parse().unwrap()), None);
            let is_secret = ["secret", "s3cret", "Basic"]
                .iter()
                .any(|it| other.contains(it));
            assert!(!is_secret, "{other}");
            assert!(other.contains("If-Match: kept"), "{other}");
        }
        assert!(!format!("{first:?}").contains("secret"));
    }

    #[test]
    fn a_signed_request_has_one_authorization_and_none_for_another_host() {
        let signed = request("http://me:pw@host/x").sign_s3(S3Credentials::new("k", "s", "r"));
        let first = text(&signed, Some(Piece { start: 0, end: 1 }));
        assert_eq!(first.matches("Authorization: ").count(), 1, "{first}");
        assert!(first.contains("SignedHeaders=host;range;x-amz-content-sha256;x-amz-date"));
        let other = text(&signed.redirected("http://other/y".parse().unwrap()), None);
        assert!(!other.contains("Authorization"), "{other}");
    }

    #[test]
    fn what_was_to_be_a_value_is_not_shown_as_a_name() {
        let refused = request("http://host/").field("Authorization Bearer s3cret", "x");
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("\"Authorization\""), "{refused}");
    }

    #[test]
    fn a_proxy_is_asked_for_the_whole_query() {
        let mut request = request("http://host/x?token=s3cret");
        request.proxy = environment(&[("http_proxy", "proxy:3128")]);
        assert!(text(&request, None).starts_with("GET http://host/x?token=s3cret HTTP/1.1"));
        assert!(!format!("{request:?}").contains("s3cret"));
    }

    #[test]
    fn a_field_cannot_end_its_line() {
        for (name, value) in [
            ("X", "a\r\nY: b"),
            ("X Y", "a"),
            ("X:", "a"),
            ("", "a"),
            ("Range", "bytes=0-"),
        ] {
            assert!(
                request("http://host/").field(name, value).is_err(),
                "{name}"
            );
        }
    }
}
