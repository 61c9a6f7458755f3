//! The requests for a file: GET, with ranges. A request belongs to the origin of its URL, and knows which of its fields another origin may see.

use std::fmt;
use std::time::SystemTime;

use super::proxy::Proxy;
use super::sigv4::{S3Credentials, Signed};
use crate::base64;
use crate::piece::Piece;
use crate::tls::TlsClient;
use crate::url::{Url, UrlError, encoded_bytes};

/// Fields that the loader sets; a request with two of them would be invalid or ambiguous.
const OURS: [&str; 6] = [
    "host",
    "range",
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
];

const USER_AGENT: &str = concat!("devmem-tcp/", env!("CARGO_PKG_VERSION"));

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

/// What is asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A range of it.
    Range(Piece),
    /// All of it.
    All,
    /// Its checksum, without its bytes: HEAD. An S3-compatible store tells it only if it is asked to.
    Checksum,
}

impl Ask {
    /// Returns the method of the request.
    #[inline]
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Range(_) | Self::All => "GET",
            Self::Checksum => "HEAD",
        }
    }

    /// Returns the fields that ask for it.
    #[inline]
    fn fields(self, is_object: bool) -> Vec<(&'static str, String)> {
        match self {
            Self::Range(piece) => vec![("Range", piece.byte_range())],
            Self::All => Vec::new(),
            Self::Checksum if is_object => vec![("x-amz-checksum-mode", "ENABLED".to_owned())],
            Self::Checksum => Vec::new(),
        }
    }
}

/// A file to request: its URL, and what the server needs to see.
#[derive(Clone)]
pub struct HttpRequest {
    url: Url,
    fields: Vec<(String, String)>,
    proxy: Option<Box<Proxy>>,
    /// The file is an object of an S3-compatible store.
    is_object: bool,
    /// Signs each request.
    signer: Option<Box<S3Credentials>>,
    /// For places by https.
    tls: TlsClient,
}

impl HttpRequest {
    /// Returns the request for `url`. User and password of the URL become a Basic `Authorization`.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            fields: Vec::new(),
            proxy: None,
            is_object: false,
            signer: None,
            tls: TlsClient::default(),
        }
    }

    /// Verifies the servers of https URLs by `tls`, without which the certificates of the system decide. A client certificate is shown to the
    /// origin of this URL alone, and to no place that it redirects to elsewhere.
    #[must_use]
    pub fn tls(mut self, tls: TlsClient) -> Self {
        self.tls = tls;
        self
    }

    /// Returns how the server of an https URL is verified.
    pub(crate) fn tls_client(&self) -> &TlsClient {
        &self.tls
    }

    /// Signs each request for an S3-compatible store. User and password of the URL are not used then.
    #[must_use]
    pub fn sign_s3(mut self, credentials: S3Credentials) -> Self {
        self.signer = Some(Box::new(credentials));
        self.of_object()
    }

    /// Returns whether requests are signed.
    #[inline]
    pub(crate) fn is_signed(&self) -> bool {
        self.signer.is_some()
    }

    /// Says that the file is an object of an S3-compatible store, which has a checksum of it.
    pub(super) fn of_object(mut self) -> Self {
        self.is_object = true;
        self
    }

    /// Returns whether it asks an S3-compatible store for an object.
    pub fn is_object(&self) -> bool {
        self.is_object
    }

    /// Returns the request for a part of the object, as it was uploaded; the first one is 1.
    pub fn of_part(&self, number: u32) -> Self {
        let mut request = self.clone();
        request.url = self.url.with_query(&format!("partNumber={number}"));
        request
    }

    /// Replaces user and password of the URL.
    pub(crate) fn with_credentials(mut self, user: &str, password: &str) -> Self {
        self.url.set_credentials(user, password);
        self
    }

    /// Returns the request for the same file, signed for a store's region; `None` if it is not signed, or signed for that region already.
    pub(crate) fn in_region(&self, region: &str) -> Option<Self> {
        let signer = self.signer.as_ref()?.in_region(region)?;
        let mut request = self.clone();
        request.signer = Some(Box::new(signer));
        if let Some(url) = self.url.in_region(region) {
            request.url = url;
        }
        Some(request)
    }

    /// Returns the request for the file `name` beside this one, which is of the same origin.
    ///
    /// # Errors
    /// The URL would be too long.
    pub fn sibling(&self, name: &str) -> Result<Self, UrlError> {
        let mut request = self.clone();
        request.url = self.url.join(&encoded_bytes(name.as_bytes(), ""))?;
        Ok(request)
    }

    /// Adds a field, such as `Authorization`.
    ///
    /// # Errors
    /// The name or the value has a character that would end the field, the loader sets the field itself, or the request has the field
    /// already: servers differ in which one they take.
    pub fn field(mut self, name: &str, value: &str) -> Result<Self, UrlError> {
        let is_name = !name.is_empty() && name.chars().all(is_name_char);
        let is_value = value
            .bytes()
            .all(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
        let problem = if !is_name || !is_value {
            "not the name and value of a field"
        } else if OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name)) {
            "the loader sets this field itself"
        } else if self.has(name) {
            "it is given twice"
        } else {
            self.fields.push((name.to_owned(), value.to_owned()));
            return Ok(self);
        };
        // Neither the value, which may be a secret, nor what was to be one.
        let name = name.split(|c: char| !is_name_char(c)).next();
        let name = name.unwrap_or_default().to_owned();
        Err(UrlError::Field { name, problem })
    }

    /// Returns whether a field of the user has this name.
    #[inline]
    fn has(&self, name: &str) -> bool {
        let mut names = self.fields.iter().map(|(own, _)| own);
        names.any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Uses the proxy that the environment names: `http_proxy`, for https `https_proxy`, or `all_proxy`, except for the hosts of `no_proxy`. Whether one is
    /// used is decided for each URL that the server redirects to. A proxy only passes the bytes of https on (CONNECT): it sees neither requests nor files.
    ///
    /// # Errors
    /// The URL needs the proxy, which is no http proxy.
    pub fn proxy_from_env(mut self) -> Result<Self, UrlError> {
        self.proxy = Proxy::from(|name| std::env::var(name).ok()).map(Box::new);
        self.with_checked_proxy()
    }

    /// Uses a proxy for all hosts, whatever the environment names.
    ///
    /// # Errors
    /// It is an https URL: the connection to a proxy is not encrypted.
    pub fn through_proxy(mut self, proxy: Url) -> Result<Self, UrlError> {
        self.proxy = Some(Box::new(Proxy::for_all(proxy)));
        self.with_checked_proxy()
    }

    /// Checks that the proxy of the URL can be asked, if it needs one.
    fn with_checked_proxy(self) -> Result<Self, UrlError> {
        match self.proxy.as_ref().map(|proxy| proxy.for_url(&self.url)) {
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => Ok(self),
        }
    }

    /// Returns the URL of the file.
    #[inline]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the proxy that is asked for the URL, if any.
    #[inline]
    pub fn proxy(&self) -> Option<&Url> {
        // Checked when the proxy or the URL was set.
        self.proxy.as_ref()?.for_url(&self.url).ok().flatten()
    }

    /// Returns the host to connect to: the proxy, or that of the URL.
    #[inline]
    pub fn next_hop(&self) -> &Url {
        self.proxy().unwrap_or(&self.url)
    }

    /// Returns the request for a place that a server redirects to, on the way from this request. Its fields and credentials are sent to its own origin,
    /// unless the place has others, also after a detour by other origins; those get harmless fields only.
    ///
    /// # Errors
    /// The place needs the proxy, which is no http proxy.
    pub(crate) fn redirected(&self, url: Url) -> Result<Self, UrlError> {
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
            request.tls = request.tls.without_identity();
        }
        request.url = url;
        request.with_checked_proxy()
    }

    /// Returns the request for a connection through the proxy to the server of an https URL (RFC 9110 9.3.6); `None` for http, and without a proxy.
    pub(crate) fn tunnel(&self) -> Option<Vec<u8>> {
        let proxy = self.proxy().filter(|_| self.url.is_https())?;
        let place = self.url.place();
        let mut text = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n");
        text += &format!("User-Agent: {USER_AGENT}\r\n");
        if let Some(credentials) = proxy.credentials() {
            let basic = base64::encode(credentials.as_bytes());
            text += &format!("Proxy-Authorization: Basic {basic}\r\n");
        }
        text += "\r\n";
        Some(text.into_bytes())
    }

    /// Appends the request for a piece of the file, for all of it, or for its checksum.
    #[inline]
    pub fn write(&self, ask: Ask, out: &mut Vec<u8>) {
        let (target, host) = (self.url.target().to_owned(), self.url.authority());
        // What is sent through a tunnel is for the server.
        let proxy = self.proxy().filter(|_| !self.url.is_https());
        let target = proxy.map_or(target, |_| self.url.for_proxy());
        let mut text = format!("{} {target} HTTP/1.1\r\n", ask.method());
        let mut line = |name: &str, value: &str| {
            text += name;
            text += ": ";
            text += value;
            text += "\r\n";
        };
        line("Host", &host);
        if !self.has("User-Agent") {
            line("User-Agent", USER_AGENT);
        }
        if !self.has("Accept") {
            line("Accept", "*/*");
        }
        // Compressed bytes would be compressed in device memory.
        line("Accept-Encoding", "identity");
        let asking = ask.fields(self.is_object);
        for (name, value) in &asking {
            line(name, value);
        }
        let signed = self.signer.as_ref().map(|signer| {
            let of_user = self.fields.iter().map(|(name, value)| (&**name, &**value));
            let asking = asking.iter().map(|(name, value)| (*name, &**value));
            let request = Signed {
                method: ask.method(),
                url: &self.url,
                fields: of_user.chain(asking).collect(),
            };
            signer.sign(&request, SystemTime::now())
        });
        for (name, value) in signed.iter().flatten() {
            line(name, value);
        }
        if let Some(credentials) = self.url.credentials()
            && signed.is_none()
            && !self.has("Authorization")
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
            .field("tls", &self.tls)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &HttpRequest, piece: Option<Piece>) -> String {
        let mut out = Vec::new();
        request.write(piece.map_or(Ask::All, Ask::Range), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn environment(variables: &[(&str, &str)]) -> Option<Box<Proxy>> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Proxy::from(variable).map(Box::new)
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
    fn a_proxy_passes_on_what_is_for_an_https_server() {
        let mut request = request("https://me:pw@host/x");
        let variables = [
            ("https_proxy", "http://you:word@proxy:3128"),
            ("http_proxy", "http://you:word@proxy:3128"),
        ];
        request.proxy = environment(&variables);
        let sent = text(&request, None);
        assert!(
            sent.starts_with("GET /x HTTP/1.1\r\nHost: host\r\n"),
            "{sent}"
        );
        assert!(sent.contains("Authorization: Basic bWU6cHc=\r\n"), "{sent}");
        assert!(!sent.contains("Proxy-Authorization"), "{sent}");
        let connect = String::from_utf8(request.tunnel().unwrap()).unwrap();
        assert!(
            connect.starts_with("CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n"),
            "{connect}"
        );
        assert!(
            connect.contains("Proxy-Authorization: Basic eW91OndvcmQ=\r\n"),
            "{connect}"
        );
        assert!(!connect.contains("bWU6cHc="), "{connect}");
        assert!(connect.ends_with("\r\n\r\n"), "{connect}");
        let plain = request.redirected("http://host/x".parse().unwrap());
        let plain = plain.unwrap();
        assert!(plain.tunnel().is_none());
        let sent = text(&plain, None);
        assert!(sent.starts_with("GET http://host/x HTTP"), "{sent}");
        assert!(!sent.contains("bWU6cHc="), "not from https to http: {sent}");
    }

    #[test]
    fn a_redirect_decides_again_about_the_proxy() {
        let mut request = request("http://far/x");
        request.proxy = environment(&[("http_proxy", "proxy:3128"), ("no_proxy", "near")]);
        let near = request
            .redirected("http://near/x".parse().unwrap())
            .unwrap();
        assert_eq!(near.next_hop().host(), "near");
        assert!(text(&near, None).starts_with("GET /x HTTP/1.1\r\n"));
        let far = near.redirected("http://far/y".parse().unwrap()).unwrap();
        assert_eq!(far.next_hop().host(), "proxy");
    }

    #[test]
    fn the_password_of_a_url_stays_with_its_host() {
        let first = request("http://me:pw@host/x");
        let same = first.redirected("http://host/y".parse().unwrap()).unwrap();
        let sent = text(&same, None);
        assert!(sent.contains("Authorization: Basic bWU6cHc=\r\n"), "{sent}");
        let other_port = first
            .redirected("http://host:81/y".parse().unwrap())
            .unwrap();
        let sent = text(&other_port, None);
        assert!(!sent.contains("Authorization"), "{sent}");
        let named = first
            .redirected("http://you:pw@host/y".parse().unwrap())
            .unwrap();
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
        let same = text(
            &first.redirected("http://host/y".parse().unwrap()).unwrap(),
            None,
        );
        assert!(same.contains("secret") && same.contains("kept"), "{same}");
        assert!(same.contains("X-Any: s3cret"), "{same}");
        for place in [
            "http://other/y",
            "http://host:81/y",
            "http://host.other/y",
            "https://host/y",
            "https://host:80/y",
        ] {
            let other = text(&first.redirected(place.parse().unwrap()).unwrap(), None);
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
        let other = text(
            &signed
                .redirected("http://other/y".parse().unwrap())
                .unwrap(),
            None,
        );
        assert!(!other.contains("Authorization"), "{other}");
    }

    #[test]
    fn what_was_to_be_a_value_is_not_shown_as_a_name() {
        let refused = request("http://host/").field("Authorization Bearer s3cret", "x");
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("the field \"Authorization\""),
            "{refused}"
        );
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

    #[test]
    fn a_field_is_given_once() {
        let once = request("http://host/").field("X-Token", "a").unwrap();
        let twice = once.field("x-token", "b").unwrap_err().to_string();
        assert_eq!(twice, "the field \"x-token\": it is given twice");
        let ours = request("http://host/")
            .field("Range", "bytes=0-")
            .unwrap_err();
        assert_eq!(
            ours.to_string(),
            "the field \"Range\": the loader sets this field itself"
        );
    }

    #[test]
    fn fields_of_the_store_are_signed() {
        let signed = request("http://host/x").sign_s3(S3Credentials::new("k", "s", "r"));
        let signed = signed
            .field("x-amz-request-payer", "requester")
            .and_then(|request| request.field("X-Other", "o"))
            .unwrap();
        let sent = text(&signed, Some(Piece { start: 0, end: 1 }));
        let names = "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date;x-amz-request-payer,";
        assert!(sent.contains(names), "{sent}");
        assert!(
            sent.contains("\r\nx-amz-request-payer: requester\r\n"),
            "{sent}"
        );
        let mut out = Vec::new();
        signed.write(Ask::Checksum, &mut out);
        let sent = String::from_utf8(out).unwrap();
        assert!(sent.starts_with("HEAD /x HTTP/1.1\r\n"), "{sent}");
        assert!(
            sent.contains("\r\nx-amz-checksum-mode: ENABLED\r\n"),
            "{sent}"
        );
        assert!(
            sent.contains("SignedHeaders=host;x-amz-checksum-mode;x-amz-content-sha256;"),
            "{sent}"
        );
    }

    #[test]
    fn a_bucket_of_another_region_is_asked_with_another_signature() {
        let amazon = request("http://b.s3.us-east-1.amazonaws.com/k");
        assert!(amazon.in_region("eu-1").is_none(), "not signed");
        let signed = amazon.sign_s3(S3Credentials::new("k", "s", "us-east-1"));
        assert!(signed.in_region("us-east-1").is_none());
        let other = signed.in_region("eu-1").unwrap();
        let sent = text(&other, None);
        assert!(
            sent.contains("\r\nHost: b.s3.eu-1.amazonaws.com\r\n"),
            "{sent}"
        );
        assert!(sent.contains("/eu-1/s3/aws4_request"), "{sent}");
    }

    #[test]
    fn the_origin_gets_its_credentials_back_after_a_detour() {
        let origin = request("http://me:pw@hub/x");
        let cdn = origin.redirected("http://cdn/y".parse().unwrap()).unwrap();
        assert!(!text(&cdn, None).contains("Authorization"));
        let back = origin.redirected("http://hub/z".parse().unwrap()).unwrap();
        assert!(text(&back, None).contains("Authorization: Basic bWU6cHc="));
        let shard = origin.sibling("model 1+%#?.bin").unwrap();
        let sent = text(&shard, None);
        assert!(
            sent.starts_with("GET /model%201%2B%25%23%3F.bin HTTP"),
            "{sent}"
        );
        assert!(sent.contains("Authorization: Basic bWU6cHc="), "{sent}");
    }
}
