//! What a server says about its refusal: the XML of S3-compatible stores, the JSON of Google's, or a field of the response.

use std::borrow::Cow;

use devmem_tcp::text::printable;

use super::head::Head;
use crate::error::LoadError;
use crate::remedy::{Remedy, Setting};

/// Most bytes of the body of an error that are read.
pub(crate) const MOST_BYTES: usize = 4 << 10;
/// Most characters of one part of a message.
const MOST_CHARS: usize = 300;

/// A server's words about its refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    /// The name of the error, such as `NoSuchKey`.
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
    /// The region that an S3-compatible store expects.
    pub(crate) region: Option<String>,
    /// What helps against a refusal that nginx, Apache or Go's server explain in the page that they send.
    of_page: Option<Remedy>,
}

/// Words of pages, in small letters, and what helps. The answers to plain HTTP on a port of TLS have no status for it, nor have those to a client
/// without a certificate.
const PAGES: [(&str, Remedy); 5] = [
    ("plain http request was sent to https port", WRITE_HTTPS),
    ("speaking plain http to an ssl-enabled", WRITE_HTTPS),
    (
        "client sent an http request to an https server",
        WRITE_HTTPS,
    ),
    (
        "no required ssl certificate was sent",
        Remedy::Set(
            "name a certificate of this client and its key: {}",
            Setting::Certificate,
        ),
    ),
    (
        "the ssl certificate error",
        Remedy::Set(
            "the server refuses the certificate of this client: name another one ({}); its log may say why",
            Setting::Certificate,
        ),
    ),
];
const WRITE_HTTPS: Remedy = Remedy::Text(Cow::Borrowed("write https:// for this port"));

impl ErrorDetails {
    /// Reads them from a response, of whose body the beginning is known.
    pub fn of(head: &Head, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let region = head.region.clone().or_else(|| element(&text, "Region"));
        let message = element(&text, "Message").or_else(|| json_text(&text, "message"));
        let page = text.to_ascii_lowercase();
        let mut pages = PAGES.iter().filter(|(words, _)| page.contains(words));
        Self {
            of_page: pages.next().map(|(_, remedy)| remedy.clone()),
            code: element(&text, "Code"),
            message: head.error_message.as_deref().map(shortened).or(message),
            region: region.filter(|name| is_region(name)),
        }
    }

    /// Returns the words for a message; empty without any.
    pub(crate) fn shown(&self) -> String {
        let words = [&self.code, &self.message].into_iter().flatten();
        let words: Vec<_> = words.map(String::as_str).collect();
        match words.is_empty() {
            true => String::new(),
            false => format!(": {}", words.join(": ")),
        }
    }
}

impl ErrorDetails {
    /// Returns the error of a refusal by `place`, with what helps.
    pub fn refused(&self, place: &str, head: &Head) -> LoadError {
        LoadError::Status {
            url: place.to_owned(),
            status: head.status,
            reason: head.reason.clone(),
            details: self.shown(),
            remedy: self.remedy(head.status),
        }
    }

    /// Returns the remedy for a refusal, if there is one.
    fn remedy(&self, status: u16) -> Option<Remedy> {
        let remedy = match (status, self.code.as_deref().unwrap_or_default()) {
            (301 | 307 | 400 | 403, _) if self.region.is_some() => {
                let region = self.region.as_deref().unwrap_or_default();
                let remedy =
                    format!("the bucket is in the region {region}: set AWS_REGION={region}");
                return Some(remedy.into());
            }
            (400, _) if self.of_page.is_some() => return self.of_page.clone(),
            (_, "RequestTimeTooSkewed") => "set the clock of this machine: signatures have a time",
            (_, "SignatureDoesNotMatch") => {
                "the key is known, and its secret is another one: check AWS_SECRET_ACCESS_KEY"
            }
            (_, "InvalidAccessKeyId") => {
                "check AWS_ACCESS_KEY_ID, and that it is one of this store"
            }
            (_, "ExpiredToken") => "get new temporary credentials: AWS_SESSION_TOKEN has expired",
            (_, "NoSuchBucket") => "check the name of the bucket, and the store: AWS_ENDPOINT_URL",
            (401, _) => "add credentials: an Authorization header, or user:password@ in the URL",
            (403, _) => "add credentials, or a new URL if this one was signed: signatures expire",
            (407, _) => "put user:password@ into the URL of the proxy",
            (404 | 410, _) => "check the path of the URL",
            (416, _) => "the file is shorter than the requested range",
            (429, _) => {
                return Some(Remedy::Set(
                    "ask it less often: {}, or later",
                    Setting::Connections,
                ));
            }
            (408 | 500..=599, _) => {
                "the server is busy or broken: load again later; its log may say why"
            }
            (300..=399, _) => "the server names no other place; check the path of the URL",
            _ => return None,
        };
        Some(remedy.into())
    }
}

/// Returns whether a text can be the name of a region. It becomes a part of requests.
fn is_region(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(is_part)
}

/// Returns the text of the first XML element with this name. Its entities stay as they are.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, after) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = after.split_once(&format!("</{name}>"))?;
    (!inner.is_empty()).then(|| shortened(inner))
}

/// Returns the first JSON string with this name, up to its first quotation mark or backslash.
fn json_text(text: &str, name: &str) -> Option<String> {
    let (_, after) = text.split_once(&format!("\"{name}\""))?;
    let value = after.trim_start().strip_prefix(':')?.trim_start();
    let inner = value.strip_prefix('"')?.split(['"', '\\']).next()?;
    (!inner.is_empty()).then(|| shortened(inner))
}

fn shortened(text: &str) -> String {
    let text: String = text.trim().chars().take(MOST_CHARS).collect();
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_stores_and_hubs_are_found() {
        let words = |head: Head, body: &str| ErrorDetails::of(&head, body.as_bytes()).shown();
        let xml = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>";
        assert_eq!(
            words(Head::default(), xml),
            ": NoSuchKey: The key does not exist."
        );
        let json = r#"{"error": {"code": 404, "message" : "No such object: b/k"}}"#;
        assert_eq!(words(Head::default(), json), ": No such object: b/k");
        let mut hub = Head::default();
        hub.error_message = Some("Access to model x is restricted".to_owned());
        assert_eq!(words(hub, "<html>"), ": Access to model x is restricted");
        for nothing in [
            "",
            "<Code>",
            "<Code></Code>",
            "\"message\"",
            "\"message\":1",
            "\u{fffd}",
        ] {
            assert_eq!(words(Head::default(), nothing), "", "{nothing}");
        }
        let region =
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>";
        let details = ErrorDetails::of(&Head::default(), region.as_bytes());
        assert_eq!(details.region.as_deref(), Some("eu-west-3"));
        for hostile in ["a b", "a\r\nX: y", "a/b", "a.evil.example", ""] {
            let mut head = Head::default();
            head.region = Some(hostile.to_owned());
            assert_eq!(ErrorDetails::of(&head, b"").region, None, "{hostile:?}");
        }
    }

    #[test]
    fn words_are_short_and_printable() {
        let long = format!("<Code>\u{1b}[2J{}</Code>", "x".repeat(10_000));
        let shown = ErrorDetails::of(&Head::default(), long.as_bytes()).shown();
        assert!(shown.len() < 400 && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn a_refusal_names_its_remedy() {
        let refused = |status: u16, body: &str| {
            let (mut head, reason) = (Head::default(), "No".to_owned());
            (head.status, head.reason) = (status, reason);
            let details = ErrorDetails::of(&head, body.as_bytes());
            let error = details.refused("http://s3/b/k", &head);
            let remedy = error.remedy().map(|remedy| remedy.to_string());
            format!("{error}; {}", remedy.unwrap_or_default())
        };
        for (status, body, expected) in [
            (403, "<Code>RequestTimeTooSkewed</Code>", "clock"),
            (
                403,
                "<Code>SignatureDoesNotMatch</Code>",
                "AWS_SECRET_ACCESS_KEY",
            ),
            (403, "<Code>InvalidAccessKeyId</Code>", "AWS_ACCESS_KEY_ID"),
            (404, "<Code>NoSuchBucket</Code>", "name of the bucket"),
            (404, "<Code>NoSuchKey</Code>", "check the path"),
            (
                301,
                "<Region>eu-central-1</Region>",
                "set AWS_REGION=eu-central-1",
            ),
            (
                400,
                "<Code>X</Code><Region>eu-west-3</Region>",
                "set AWS_REGION=eu-west-3",
            ),
            (403, "", "signatures expire"),
            (
                400,
                "<h1>400 Bad Request</h1>The plain HTTP request was sent to HTTPS port",
                "write https://",
            ),
            (
                400,
                "<center>No required SSL certificate was sent</center>",
                "`TlsOptions::identity`",
            ),
            (429, "", "`connections` of the loader"),
        ] {
            let text = refused(status, body);
            assert!(
                text.starts_with(&format!("http://s3/b/k answers {status} No")),
                "{text}"
            );
            assert!(text.contains(expected), "{text}");
        }
        assert!(refused(403, "<Code>NoSuchKey</Code>").contains("No: NoSuchKey; "));
    }
}
