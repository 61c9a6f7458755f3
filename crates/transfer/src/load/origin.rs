//! What a URL names: a file of an HTTP server, an object of an S3-compatible store, an export of an NBD server, or a
//! namespace of an NVMe subsystem.

use std::str::FromStr;

use client::dial::CancelCheck;
use client::http::{HttpFile, HttpRequest};
use client::nbd::{NbdExport, NbdUrl};
use client::nvme::{NvmeNamespace, NvmeUrl};
use client::url::UrlError;
use client::{LoadError, dial};
use devmem_tcp::Netdev;

use super::source::Source;

/// What a URL names, not opened yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// `http://HOST/PATH` or `https://HOST/PATH`, or `s3://BUCKET/KEY` ([`HttpRequest::s3_object`]).
    Http(HttpRequest),
    /// `nbd://HOST/EXPORT`.
    Nbd(NbdUrl),
    /// `nvme://HOST/SUBNQN`.
    Nvme(NvmeUrl),
}

impl FromStr for Origin {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let scheme = text.split("://").next().unwrap_or_default();
        match scheme.to_ascii_lowercase().as_str() {
            "nbd" | "nbds" => text.parse().map(Self::Nbd),
            "nvme" => text.parse().map(Self::Nvme),
            "s3" => HttpRequest::s3_object(text).map(Self::Http),
            _ => Ok(Self::Http(HttpRequest::new(text.parse()?))),
        }
    }
}

impl Origin {
    /// Returns the host: a name or an address.
    pub fn host(&self) -> &str {
        match self {
            Self::Http(request) => request.url().host(),
            Self::Nbd(url) => url.host(),
            Self::Nvme(url) => url.host(),
        }
    }

    /// Returns whether the server's bytes are encrypted: https. The CPU decrypts them in host memory then. A redirect may lead to such a server, too.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Http(request) if request.url().is_https())
    }

    /// Opens the kernel's interface of the route to the server, or to its proxy: a NIC for callers that have none and need none.
    /// Payload passes through host memory on it, until memory is bound to it. `cancel_check` is called at least every 100 ms.
    ///
    /// # Errors
    /// The host is not found, [`LoadError::Route`] if there is no route to it, [`LoadError::Cancelled`].
    pub fn kernel_nic(&self, cancel_check: &mut CancelCheck<'_>) -> Result<Netdev, LoadError> {
        let (host, port) = match self {
            Self::Http(request) => (request.next_hop().host(), request.next_hop().port()),
            Self::Nbd(url) => (url.host(), url.port()),
            Self::Nvme(url) => (url.host(), url.port()),
        };
        let addresses = dial::addresses(host, port, cancel_check)?;
        let mut failure = None;
        for address in addresses {
            match Netdev::kernel_to(address.ip()) {
                Ok(nic) => return Ok(nic),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.map_or_else(|| LoadError::no_address(host), LoadError::Route))
    }

    /// Opens it.
    ///
    /// # Errors
    /// The host is not found or does not answer, or does not have it.
    pub fn open(&self, nic: &Netdev) -> Result<Source, LoadError> {
        self.open_cancellable(nic, &mut dial::never_cancelled)
    }

    /// As [`open`](Self::open), unless `cancel_check` cancels it: called at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_cancellable(
        &self,
        nic: &Netdev,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Source, LoadError> {
        match self {
            Self::Http(request) => {
                HttpFile::open_cancellable(nic, request.clone(), cancel_check).map(Source::Http)
            }
            Self::Nbd(url) => {
                NbdExport::open_cancellable(nic, url.clone(), cancel_check).map(Source::Nbd)
            }
            Self::Nvme(url) => {
                NvmeNamespace::open_cancellable(nic, url.clone(), cancel_check).map(Source::Nvme)
            }
        }
    }

    /// Returns the request for a safetensors checkpoint, if the URL's name ends like that of one.
    pub fn checkpoint(&self) -> Option<&HttpRequest> {
        let Self::Http(request) = self else {
            return None;
        };
        let name = request.url().file_name();
        // Variants have a word more: `.safetensors.index.fp16.json`.
        let is_index = name.ends_with(".json") && name.contains(".safetensors.index.");
        let is_one = name.ends_with(".safetensors") || is_index;
        is_one.then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_what_a_url_names() {
        let origin = |text: &str| text.parse::<Origin>();
        assert!(matches!(origin("nbd://host/x"), Ok(Origin::Nbd(url)) if url.export() == "x"));
        assert!(matches!(origin("NVME://host/nqn.x"), Ok(Origin::Nvme(url)) if url.port() == 4420));
        let file = origin("HTTP://host/m.safetensors?a=b").unwrap();
        assert!(file.checkpoint().is_some() && file.host() == "host");
        for (name, is_one) in [
            ("m.bin", false),
            ("m.safetensors.index.json", true),
            ("m.safetensors.index.fp16.json", true),
            ("config.json", false),
            ("index.json", false),
        ] {
            let found = origin(&format!("http://host/{name}")).unwrap();
            assert_eq!(found.checkpoint().is_some(), is_one, "{name}");
        }
        assert!(origin("https://host/x").unwrap().is_encrypted());
        assert!(!origin("nbd://host/x").unwrap().is_encrypted());
        assert!(matches!(origin("nbds://host/x"), Err(UrlError::Encrypted)));
        assert!(matches!(
            origin("ftp://host/x"),
            Err(UrlError::Scheme { .. })
        ));
    }
}
