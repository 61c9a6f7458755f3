//! nginx with TLS as a server of `bench load`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tool::stock::{FILE, StockServer};

/// The program that makes its certificate.
pub const OPENSSL: &str = "openssl";
const PORT: u16 = 8443;

/// Returns the file of its certificate, which clients trust.
pub fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

/// Returns the address that it listens on.
pub fn address(host: IpAddr) -> SocketAddr {
    SocketAddr::new(host, PORT)
}

/// Returns the URL of the file.
pub fn url(host: IpAddr) -> String {
    format!("https://{}/{FILE}", address(host))
}

/// Returns the command that serves the file of `folder`.
///
/// # Errors
///
/// Its certificate cannot be made, or its configuration not be written.
pub fn command(folder: &Path, host: IpAddr) -> Result<Command> {
    let key = folder.join("key.pem");
    let certificate = certificate(folder);
    if !certificate.exists() {
        make_certificate(&certificate, &key, host)?;
    }
    let server = StockServer::Nginx;
    let conf = folder.join("https.conf");
    write_conf(&conf, folder, &certificate, &key).context("write the configuration of nginx")?;
    let mut command = Command::new(server.path().unwrap_or_else(|| server.program().into()));
    command.arg("-e").arg(folder.join("https.errors"));
    command.arg("-c").arg(conf);
    Ok(command)
}

fn make_certificate(certificate: &Path, key: &Path, host: IpAddr) -> Result<()> {
    let mut command = Command::new(OPENSSL);
    command.args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec"]);
    command.args([
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-subj",
        "/CN=bench",
    ]);
    command.args(["-addext", &format!("subjectAltName=IP:{host}")]);
    // The certificate of an authority may not be that of a server.
    command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    command.arg("-out").arg(certificate).arg("-keyout").arg(key);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command.stderr(Stdio::null()).status();
    let ended = ended.with_context(|| format!("start {OPENSSL}"))?;
    match ended.success() {
        true => Ok(()),
        false => bail!("{OPENSSL} could not make a certificate: {ended}"),
    }
}

fn write_conf(conf: &Path, folder: &Path, certificate: &Path, key: &Path) -> io::Result<()> {
    let (folder, certificate, key) = (folder.display(), certificate.display(), key.display());
    let text = format!(
        "user root; daemon off; master_process off; worker_processes 1; pid {folder}/https.pid;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on;\n\
         client_body_temp_path {folder}/h-body; proxy_temp_path {folder}/h-proxy; fastcgi_temp_path {folder}/h-fcgi;\n\
         uwsgi_temp_path {folder}/h-uwsgi; scgi_temp_path {folder}/h-scgi;\n\
         ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;\n\
         server {{ listen {PORT} ssl; root {folder}; }} }}\n"
    );
    fs::write(conf, text)
}
