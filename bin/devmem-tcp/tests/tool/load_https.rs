//! `load` by https from nginx, with certificates that openssl has made.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::test_util::{in_netns, skip};

use crate::common::{Finished, LIMIT, repeating, start_command, tool};

const FILE_BYTES: usize = 3_000_001;
const PORT: u16 = 8443;

/// nginx, killed at the end.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(test: &str, program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null());
    let found = command.stderr(Stdio::null()).status();
    let is_here = found.is_ok_and(|status| status.success());
    if !is_here {
        skip(test, program, &format!("there is no {program} here"));
    }
    is_here
}

/// Makes `NAME.pem` and `NAME.key`: the certificate of an authority, or one that `signer` has signed.
fn make_certificate(folder: &Path, name: &str, signer: Option<&str>) {
    let path = |file: String| folder.join(file);
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "3650", "-newkey", "ec"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    command.args(["-subj", &format!("/CN={name}")]);
    command.arg("-out").arg(path(format!("{name}.pem")));
    command.arg("-keyout").arg(path(format!("{name}.key")));
    if let Some(signer) = signer {
        command.arg("-CA").arg(path(format!("{signer}.pem")));
        command.arg("-CAkey").arg(path(format!("{signer}.key")));
        command.args(["-addext", "subjectAltName=DNS:localhost,IP:10.77.0.1"]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    }
    let made = command.stderr(Stdio::null()).status();
    assert!(made.expect("it was found before").success());
}

/// Starts nginx with TLS on 8443 and, for clients with a certificate, on 8444; it redirects there from plain HTTP on 8080.
fn start_nginx(folder: &Path) -> Nginx {
    let text = format!(
        "user root; daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/errors;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fcgi;\n\
         uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         ssl_certificate {0}/server.pem; ssl_certificate_key {0}/server.key;\n\
         server {{ listen {PORT} ssl; root {0}; }}\n\
         server {{ listen 8444 ssl; root {0}; ssl_client_certificate {0}/ca.pem; ssl_verify_client on; }}\n\
         server {{ listen 8080; return 302 https://$host:{PORT}$request_uri; }} }}\n",
        folder.display()
    );
    let conf = folder.join("nginx.conf");
    fs::write(&conf, text).expect("there is room");
    let mut command = Command::new("nginx");
    command.arg("-e").arg(folder.join("errors"));
    command.arg("-c").arg(conf).stderr(Stdio::null());
    let nginx = Nginx(command.spawn().expect("it was found before"));
    let start = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err() {
        assert!(start.elapsed() < LIMIT, "it does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    nginx
}

/// Runs `load` with options, in which `@` is the folder.
fn load(folder: &Path, options: &str) -> Finished {
    let mut command = tool();
    command.args(["load", "--json"]);
    let folder = folder.display().to_string();
    command.args(
        options
            .split_whitespace()
            .map(|word| word.replace('@', &folder)),
    );
    for variable in [
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        command.env_remove(variable);
    }
    start_command(command).finish()
}

fn in_world(test: &'static str, run: fn(&Path)) {
    if !has(test, "nginx", "-v") || !has(test, "openssl", "version") {
        return;
    }
    in_netns(test, || {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path();
        fs::write(path.join("file"), repeating(251, 9, FILE_BYTES)).expect("there is room");
        make_certificate(path, "ca", None);
        make_certificate(path, "server", Some("ca"));
        make_certificate(path, "me", Some("ca"));
        let _nginx = start_nginx(path);
        run(path);
    });
}

#[test]
fn https_uses_the_kernels_sockets_and_verifies_the_server() {
    const TEST: &str = "load_https::https_uses_the_kernels_sockets_and_verifies_the_server";
    in_world(TEST, |folder| {
        let to = "--to @/copy --piece 500K";
        let done = load(
            folder,
            &format!("https://localhost:{PORT}/file --cacert @/ca.pem {to}"),
        );
        let json = done.json();
        assert_eq!(json["backend"], "sockets");
        assert_eq!(json["decrypted_bytes"], FILE_BYTES, "{json}");
        assert!(
            done.stderr.contains("decrypted by the CPU"),
            "{}",
            done.stderr
        );
        let copy = fs::read(folder.join("copy")).expect("it is there");
        assert!(copy == repeating(251, 9, FILE_BYTES));

        let unknown = load(folder, &format!("https://localhost:{PORT}/file"));
        unknown.failed_with(1, "no authority");
        let name = load(
            folder,
            &format!("https://127.0.0.1:{PORT}/file --cacert @/ca.pem"),
        );
        name.failed_with(1, "is for localhost, 10.77.0.1");
        let any = load(folder, &format!("https://127.0.0.1:{PORT}/file --insecure"));
        assert_eq!(any.json()["bytes"], FILE_BYTES);
        assert!(any.stderr.contains("warning: --insecure"), "{}", any.stderr);
        let plain = load(
            folder,
            &format!("http://localhost:{PORT}/file --backend sockets"),
        );
        plain.failed_with(1, "write https://");
        let redirected = load(
            folder,
            "http://localhost:8080/file --backend sockets --cacert @/ca.pem",
        );
        assert_eq!(redirected.json()["decrypted_bytes"], FILE_BYTES);
    });
}

#[test]
fn a_certificate_of_the_client_is_shown_where_it_is_asked_for() {
    const TEST: &str = "load_https::a_certificate_of_the_client_is_shown_where_it_is_asked_for";
    in_world(TEST, |folder| {
        let url = "https://localhost:8444/file --cacert @/ca.pem";
        load(folder, url).failed_with(1, "--cert FILE --key FILE");
        let shown = load(folder, &format!("{url} --cert @/me.pem --key @/me.key"));
        assert_eq!(shown.json()["bytes"], FILE_BYTES);
        let other = load(folder, &format!("{url} --cert @/me.pem --key @/server.key"));
        other.failed_with(2, "server.key has no usable private key");
        let missing = load(folder, &format!("{url} --cert @/none.pem"));
        missing.failed_with(1, "none.pem");
    });
}

#[test]
fn strict_refuses_https_with_the_reason() {
    const TEST: &str = "load_https::strict_refuses_https_with_the_reason";
    in_world(TEST, |folder| {
        let url = format!("https://localhost:{PORT}/file --cacert @/ca.pem --strict");
        load(folder, &url).failed_with(2, "the CPU decrypts the bytes in host memory");
        let sockets = load(
            folder,
            "http://localhost:8080/file --backend sockets --strict",
        );
        sockets.failed_with(2, "receives into host memory");
        if crate::common::has_tap(TEST) {
            let through = "--peer-addr 10.77.0.1/24 --cacert @/ca.pem";
            let redirected = format!("http://10.77.0.1:8080/file {through} --strict");
            load(folder, &redirected).failed_with(2, "the CPU decrypts the bytes");
        }
    });
}

#[test]
fn our_stack_loads_https_without_bound_memory() {
    const TEST: &str = "load_https::our_stack_loads_https_without_bound_memory";
    in_world(TEST, |folder| {
        if !crate::common::has_tap(TEST) {
            return;
        }
        let json = load(
            folder,
            &format!("https://10.77.0.1:{PORT}/file --peer-addr 10.77.0.1/24 --cacert @/ca.pem --to @/copy"),
        )
        .json();
        assert_eq!(json["backend"], "user");
        assert_eq!(
            (&json["decrypted_bytes"], &json["mem_bytes"]),
            (&FILE_BYTES.into(), &0.into())
        );
        let copy = fs::read(folder.join("copy")).expect("it is there");
        assert!(copy == repeating(251, 9, FILE_BYTES));
    });
}
