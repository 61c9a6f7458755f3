//! URLs of NBD exports (the file uri.md of the NBD project): `nbd://HOST[:PORT]/EXPORT`.

use std::fmt;
use std::str::FromStr;

use crate::shown::shown;
use crate::url::{self as url_parts, UrlError, encoded_bytes};

/// The registered port.
const NBD_PORT: u16 = 10_809;

/// An `nbd://` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUrl {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) export: String,
}

impl NbdUrl {
    /// Returns the host: a name or an address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, 10809 by default.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the export; empty for the default one.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Returns the name of the export as part of a URL: percent-encoded, so that a terminal shows it.
    pub fn encoded_export(&self) -> String {
        encoded_bytes(self.export.as_bytes(), "/@:+,=~")
    }
}

impl FromStr for NbdUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let scheme = || UrlError::Scheme { text: shown(text) };
        url_parts::check_text(text)?;
        let (name, rest) = text.split_once("://").ok_or_else(scheme)?;
        match name.to_ascii_lowercase().as_str() {
            "nbd" => {}
            "nbds" => return Err(UrlError::Encrypted),
            _ => return Err(scheme()),
        }
        let bad = |problem| UrlError::Malformed {
            text: shown(text),
            problem,
        };
        // Parameters are for TLS and UNIX sockets, and a fragment is for nobody. A user is one of TLS.
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        let parts = url_parts::host_and_port(place, NBD_PORT);
        let (host, port) = parts.ok_or_else(|| bad("host and port"))?;
        let export = url_parts::decoded(path).ok_or_else(|| bad("the export is not UTF-8"))?;
        Ok(Self { host, port, export })
    }
}

impl fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let export = self.encoded_export();
        match self.port {
            NBD_PORT => write!(f, "nbd://{host}/{export}"),
            port => write!(f, "nbd://{host}:{port}/{export}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_and_export_are_found() {
        for (text, host, port, export) in [
            ("nbd://host", "host", NBD_PORT, ""),
            ("nbd://host/", "host", NBD_PORT, ""),
            ("NBD://10.0.0.1:99/a/b", "10.0.0.1", 99, "a/b"),
            ("nbd://[fd77::1]/a%20b", "fd77::1", NBD_PORT, "a b"),
            ("nbd://host/disk?tls-hostname=x", "host", NBD_PORT, "disk"),
            ("nbd://host?x=/y", "host", NBD_PORT, ""),
            ("nbd://host/disk#b", "host", NBD_PORT, "disk"),
            ("nbd://host#b", "host", NBD_PORT, ""),
            ("nbd://me@host:99/x", "host", 99, "x"),
            (
                "nbd://host//abs/path%3Fx%23y",
                "host",
                NBD_PORT,
                "/abs/path?x#y",
            ),
        ] {
            let url: NbdUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port(), url.export()), (host, port, export));
        }
        let hostile: NbdUrl = "nbd://host/a%1b[2J%0a%c2%9b/b".parse().unwrap();
        assert_eq!(hostile.to_string(), "nbd://host/a%1B%5B2J%0A%C2%9B/b");
        let refused = "nbd://me:s3cret@host:x/x".parse::<NbdUrl>().unwrap_err();
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
        let named: NbdUrl = "nbd://me:s3cret@host/x".parse().unwrap();
        assert_eq!(named.to_string(), "nbd://host/x");
        assert_eq!("nbds://host/".parse::<NbdUrl>(), Err(UrlError::Encrypted));
        for text in [
            "http://host/",
            "nbd://",
            "nbd://host:0/",
            "host",
            "nbd://a b/",
        ] {
            assert!(text.parse::<NbdUrl>().is_err(), "{text}");
        }
    }
}
