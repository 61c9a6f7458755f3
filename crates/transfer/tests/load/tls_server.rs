//! A small https server over kernel sockets, and the certificates for it.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use crate::server::{After, Asked, asked};

/// An authority, and a folder with the files of what it has signed.
pub struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Signed {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        Self::named("An authority of a test")
    }

    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("written");
        Self {
            folder,
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns the file of its certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate for names and addresses.
    pub fn sign(&self, file: &str, names: &[&str]) -> Signed {
        self.sign_until(file, names, 4096)
    }

    /// The same, valid until the end of a year.
    pub fn sign_until(&self, file: &str, names: &[&str], year: i32) -> Signed {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(1975, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let path = |end: &str| self.folder.path().join(format!("{file}.{end}"));
        fs::write(path("pem"), signed.pem()).expect("written");
        fs::write(path("key"), key.serialize_pem()).expect("written");
        Signed {
            certificate: path("pem"),
            key: path("key"),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority");
        roots
    }
}

/// Returns the settings of a server with a certificate. Clients must have one of `clients`, if there is such an authority.
pub fn config(signed: &Signed, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::pem_file_iter(&signed.certificate).expect("it was written");
    let chain: Result<Vec<_>, _> = chain.collect();
    let key = PrivateKeyDer::from_pem_file(&signed.key).expect("it was written");
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .expect("protocols");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(authority.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let config = builder.with_single_cert(chain.expect("certificates"), key);
    let mut config = config.expect("a key that fits");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With close_notify.
    Announced,
    /// Without.
    Cut,
}

/// The name of the server that a client asked for (SNI), and the protocol that was chosen (ALPN).
pub type Hello = (Option<String>, Option<Vec<u8>>);

pub struct TlsServer {
    pub port: u16,
    requests: Arc<AtomicUsize>,
    handshakes: Arc<AtomicUsize>,
    /// What clients asked for.
    hellos: Arc<Mutex<Vec<Hello>>>,
}

impl TlsServer {
    /// Answers requests by `answer` until the process ends.
    pub fn start(
        config: Arc<ServerConfig>,
        answer: impl Fn(&Asked, &mut dyn Write) -> io::Result<After> + Send + Sync + 'static,
    ) -> Self {
        Self::slow(config, Duration::ZERO, Ending::Announced, answer)
    }

    /// The same, with a pause before the handshake, and another end of connections.
    pub fn slow(
        config: Arc<ServerConfig>,
        pause: Duration,
        ending: Ending,
        answer: impl Fn(&Asked, &mut dyn Write) -> io::Result<After> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = Self {
            port,
            requests: Arc::default(),
            handshakes: Arc::default(),
            hellos: Arc::default(),
        };
        let answer = Arc::new(answer);
        let shared = server.shared();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, answer) = (Arc::clone(&config), Arc::clone(&answer));
                let shared = shared.shared();
                thread::spawn(move || {
                    thread::sleep(pause);
                    // The client may end a connection at any time.
                    drop(shared.serve(config, stream, ending, &*answer));
                });
            }
        });
        server
    }

    fn shared(&self) -> Self {
        Self {
            port: self.port,
            requests: Arc::clone(&self.requests),
            handshakes: Arc::clone(&self.handshakes),
            hellos: Arc::clone(&self.hellos),
        }
    }

    fn serve(
        &self,
        config: Arc<ServerConfig>,
        stream: TcpStream,
        ending: Ending,
        answer: &dyn Fn(&Asked, &mut dyn Write) -> io::Result<After>,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let hello = (
            stream.conn.server_name().map(str::to_owned),
            stream.conn.alpn_protocol().map(<[u8]>::to_vec),
        );
        self.hellos.lock().expect("no panic").push(hello);
        let mut reader = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head)? == 0 {
                    return Ok(());
                }
            }
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let after = answer(&asked(number, head), reader.get_mut())?;
            reader.get_mut().flush()?;
            if after == After::Close {
                let StreamOwned { conn, sock } = reader.get_mut();
                if ending == Ending::Announced {
                    conn.send_close_notify();
                    conn.complete_io(sock)?;
                }
                return Ok(());
            }
        }
    }

    pub fn url(&self, host: &str, path: &str) -> String {
        format!("https://{host}:{}{path}", self.port)
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }

    pub fn hellos(&self) -> Vec<Hello> {
        self.hellos.lock().expect("no panic").clone()
    }
}
