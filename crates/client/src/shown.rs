//! What a URL may show in messages, logs and reports: neither user and password, nor what a query may keep secret.

/// Longest text that is shown of what is no URL.
const MOST_CHARS: usize = 100;
/// What is shown in place of a secret.
const HIDDEN: &str = "...";

/// Parameters of queries whose values are known to be harmless. Signatures, tokens and keys have countless names, so that those of
/// all others are hidden.
const HARMLESS: [&str; 33] = [
    "alt",
    "delimiter",
    "download",
    "export",
    "expires",
    "file",
    "filename",
    "format",
    "generation",
    "lfs",
    "list-type",
    "max-keys",
    "part",
    "partnumber",
    "path",
    "prefix",
    "raw",
    "ref",
    "response-content-disposition",
    "response-content-type",
    "rev",
    "revision",
    "version",
    "versionid",
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-goog-algorithm",
    "x-goog-date",
    "x-goog-expires",
    "x-id",
];

/// Returns path and query without the values of parameters that may be secret.
pub(crate) fn shown_target(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else {
        return target.to_owned();
    };
    let parameters: Vec<_> = query.split(['&', ';']).map(shown_parameter).collect();
    format!("{path}?{}", parameters.join("&"))
}

/// A parameter without a name may be a token itself.
fn shown_parameter(parameter: &str) -> String {
    let (name, value) = parameter.split_once('=').unwrap_or(("", parameter));
    let is_harmless = |text: &str| {
        let text = text.to_ascii_lowercase();
        HARMLESS.contains(&text.as_str())
    };
    match (name, value) {
        (_, "") => parameter.to_owned(),
        ("", value) if is_harmless(value) => value.to_owned(),
        ("", _) => HIDDEN.to_owned(),
        (name, value) if is_harmless(name) => format!("{name}={value}"),
        (name, _) => format!("{name}={HIDDEN}"),
    }
}

/// Returns the beginning of a text that is no URL, as far as a message may show it. Where its parts end is not known, so everything before its last `@`
/// may be user and password, and everything after a `?` a query.
pub fn shown(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    let (user, place) = match rest.rsplit_once('@') {
        Some((_, place)) => (format!("{HIDDEN}@"), place),
        None => (String::new(), rest),
    };
    // A query before the `@` is gone with it.
    let shown = format!("{scheme}{user}{}", shown_target(&without_password(place)));
    shown.chars().take(MOST_CHARS).collect()
}

/// Hides what follows the colon of a host, unless it is a port or the place an IPv6 address: `user:password` without a host.
fn without_password(place: &str) -> String {
    let end = place.find(['/', '?']).unwrap_or(place.len());
    let (authority, rest) = place.split_at(end);
    let is_address = |c: char| c.is_ascii_hexdigit() || ":.[]".contains(c);
    match authority.split_once(':') {
        Some((host, port))
            if !port.chars().all(|c| c.is_ascii_digit()) && !authority.chars().all(is_address) =>
        {
            format!("{host}:{HIDDEN}{rest}")
        }
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_shows_what_is_known_to_be_harmless() {
        for (target, expected) in [
            ("/a/b", "/a/b"),
            ("/a?", "/a?"),
            (
                "/a?download=true&Revision=main",
                "/a?download=true&Revision=main",
            ),
            (
                "/a?X-Amz-Date=1&X-Amz-Signature=s3cret&X-Amz-Credential=k%2Fs3cret",
                "/a?X-Amz-Date=1&X-Amz-Signature=...&X-Amz-Credential=...",
            ),
            ("/a?sv=1&sig=s3cret%3D", "/a?sv=...&sig=..."),
            ("/a?token=s3cret;key=s3cret", "/a?token=...&key=..."),
            ("/a?whatever=s3cret", "/a?whatever=..."),
            ("/a?s3cret", "/a?..."),
            ("/a?=s3cret", "/a?..."),
            ("/a?download", "/a?download"),
            ("/a?token=a=s3cret?s3cret", "/a?token=..."),
        ] {
            assert_eq!(shown_target(target), expected, "{target}");
        }
    }

    #[test]
    fn a_text_that_is_no_url_shows_no_secret() {
        for (text, expected) in [
            ("ftp://me:s3cret@host/x", "ftp://...@host/x"),
            ("http://me:s3cret@host:port/", "http://...@host:.../"),
            ("http://me:s3cret/x", "http://me:.../x"),
            ("me:s3cret", "me:..."),
            ("http://fd77::1/x", "http://fd77::1/x"),
            ("http://host:99999/x", "http://host:99999/x"),
            ("http://me:s3/cret@host/x y", "http://...@host/x y"),
            ("http://me:s3@cret@host/\x1b", "http://...@host/\x1b"),
            ("http://me:s3?cret@host/", "http://...@host/"),
            ("me:s3cret@proxy:3128", "...@proxy:3128"),
            ("htp:/me:s3cret@host", "...@host"),
            ("ftp://host/x?sig=s3cret#s3cret", "ftp://host/x?sig=..."),
            ("model.bin", "model.bin"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
