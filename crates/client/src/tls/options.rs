//! How servers are verified, and how this client shows who it is.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CipherSuite, ClientConfig, RootCertStore};

use super::unverified::Unverified;
use crate::remedy::{Remedy, Setting};

/// Longest file of certificates: all authorities of a system have a quarter of it.
const MAX_BYTES: u64 = 1 << 20;
/// The protocol inside of TLS (RFC 7301 6).
const ALPN: &[u8] = b"http/1.1";

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A file has no certificate, or one that cannot be used.
    #[error("{} has no usable certificate{problem}", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with a colon before; may be empty.
        problem: String,
    },
    /// A file has no private key, or one that cannot be used.
    #[error("{} has no usable private key: {problem}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The system has no certificates of authorities.
    #[error("this system has no certificates of authorities{problem}")]
    NoAuthorities {
        /// Why they cannot be read, with a colon before; may be empty.
        problem: String,
    },
    /// The cryptography cannot be set up.
    #[error("set up TLS: {0}")]
    SetUp(rustls::Error),
}

impl TlsError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        let remedy = match self {
            Self::Certificate { .. } => "it needs PEM: -----BEGIN CERTIFICATE-----",
            Self::Key { .. } => {
                "it needs the key of the certificate as PEM without a passphrase: openssl pkey -in KEY -out FILE"
            }
            Self::NoAuthorities { .. } => {
                return Some(Remedy::Set(
                    "install them (ca-certificates), or name a file that has them: SSL_CERT_FILE, or {}",
                    Setting::Authorities,
                ));
            }
            Self::Read { .. } | Self::SetUp(_) => return None,
        };
        Some(remedy.into())
    }
}

/// Settings of TLS for https URLs. Without any, servers are verified by the certificates of the system, or of the file and the folder that
/// `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    authorities: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    is_unverified: bool,
}

impl TlsOptions {
    /// Returns the settings that verify by the certificates of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Verifies by the authorities in a file of PEM certificates, and by no others.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(file.into());
        self
    }

    /// Shows the certificate of a PEM file to servers that ask for one, with those of its issuers in the same file, and the private key of
    /// another, which may be the same.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Accepts any certificate. Whoever is on the way can then read the requests with their credentials, and send other bytes.
    #[must_use]
    pub fn without_verification(mut self) -> Self {
        self.is_unverified = true;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, or has not what it should have.
    pub fn client(&self) -> Result<TlsClient, TlsError> {
        let anonymous = Arc::new(self.config(None)?);
        let shown = match &self.identity {
            None => Arc::clone(&anonymous),
            Some((certificate, key)) => {
                let identity = Identity::read(certificate, key)?;
                Arc::new(self.config(Some(identity))?)
            }
        };
        let client = TlsClient::default();
        // Fits: it is new.
        let _ = client.shown.set(shown);
        let _ = client.anonymous.set(anonymous);
        Ok(client)
    }

    fn config(&self, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(TlsError::SetUp)?;
        let builder = match self.is_unverified {
            true => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified::new(&provider))),
            false => builder.with_root_certificates(self.roots()?),
        };
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity {
                chain,
                key,
                key_file,
            }) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| TlsError::Key {
                    path: key_file,
                    problem: error.to_string(),
                })?,
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(path) => {
                for certificate in certificates(path)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| TlsError::Certificate {
                        path: path.clone(),
                        problem: format!(": {error}"),
                    })?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0 {
                    let first = found.errors.first();
                    let problem = first.map_or_else(String::new, |error| format!(": {error}"));
                    return Err(TlsError::NoAuthorities { problem });
                }
            }
        }
        Ok(roots)
    }
}

/// Returns the cryptography. AES with 128 bits comes first, as in browsers: decrypting is most of the CPU time of an https load.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let is_first = |suite: CipherSuite| suite == CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider
        .cipher_suites
        .sort_by_key(|suite| !is_first(suite.suite()));
    provider
}

/// A certificate of this client, those of its issuers, and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_file: PathBuf,
}

impl Identity {
    fn read(certificate: &Path, key_file: &Path) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(key_file)?);
        Ok(Self {
            chain,
            key: key.map_err(|error| TlsError::Key {
                path: key_file.to_owned(),
                problem: error.to_string(),
            })?,
            key_file: key_file.to_owned(),
        })
    }
}

/// Returns the certificates of a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |problem: String| TlsError::Certificate {
        path: path.to_owned(),
        problem,
    };
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| wrong(format!(": {error}")))?;
    match found.is_empty() {
        true => Err(wrong(String::new())),
        false => Ok(found),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(TlsError::Read {
            path: path.to_owned(),
            error,
        }),
    }
}

/// How the connections of a request verify their server: by [`TlsOptions`], or by the certificates of the system, which are read when the first
/// https server is connected to. Cloning it is cheap, and sessions are resumed among the clones.
#[derive(Clone, Default)]
pub struct TlsClient {
    /// With the client certificate, if there is one.
    shown: Arc<OnceLock<Arc<ClientConfig>>>,
    anonymous: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl TlsClient {
    /// Returns the one for other origins, which are not shown who this client is.
    pub(crate) fn without_identity(&self) -> Self {
        Self {
            shown: Arc::clone(&self.anonymous),
            anonymous: Arc::clone(&self.anonymous),
        }
    }

    /// Returns the settings of a connection.
    ///
    /// # Errors
    /// [`TlsError::NoAuthorities`].
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(known) = self.shown.get() {
            return Ok(Arc::clone(known));
        }
        let config = Arc::new(TlsOptions::new().config(None)?);
        // Another thread may have been first.
        Ok(Arc::clone(self.shown.get_or_init(|| config)))
    }
}

/// Without keys.
impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}
