//! Loads by https through a proxy.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use devmem_tcp::Netdev;
use devmem_transfer::load::{HttpRequest, Loader, Origin, Part, TlsOptions};

use crate::server::good;
use crate::tls_server::{Authority, TlsServer, config};
use crate::world::{memory_for, pattern, told};

const FILE_BYTES: usize = 1_000_001;

/// A proxy that knows CONNECT alone, and answers it with `refusal` if there is one.
struct Proxy {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(refusal: Option<&'static str>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heads = Arc::clone(&kept);
                thread::spawn(move || drop(serve(stream, refusal, &heads)));
            }
        });
        Self { port, heads }
    }

    fn url(&self, credentials: &str) -> String {
        format!("http://{credentials}127.0.0.1:{}", self.port)
    }
}

fn serve(
    client: TcpStream,
    refusal: Option<&'static str>,
    heads: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let place = head.split(' ').nth(1).unwrap_or_default().to_owned();
    heads.lock().expect("no panic").push(head);
    let mut answers = client.try_clone()?;
    if let Some(refusal) = refusal {
        return answers.write_all(refusal.as_bytes());
    }
    let server = TcpStream::connect(place)?;
    answers.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")?;
    let (mut up, mut down) = (server.try_clone()?, server);
    thread::spawn(move || {
        let _ = io::copy(&mut reader, &mut up);
        let _ = up.shutdown(Shutdown::Write);
    });
    io::copy(&mut down, &mut answers)?;
    answers.shutdown(Shutdown::Both)
}

fn request(server: &TlsServer, authority: &Authority, proxy: &str) -> HttpRequest {
    let tls = TlsOptions::new().authorities(authority.file());
    let url = server.url("localhost", "/file").parse().expect("a URL");
    let request = HttpRequest::new(url).tls(tls.client().expect("an authority"));
    request
        .through_proxy(proxy.parse().expect("a URL"))
        .expect("an http proxy")
}

fn load(request: HttpRequest) -> Result<Vec<u8>, String> {
    let nic = Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).expect("the loopback interface");
    let loader = Loader::new(&nic)
        .piece_bytes(100_000)
        .idle_limit(Duration::from_secs(120));
    let source = loader.open(&Origin::Http(request), &mut || ControlFlow::Continue(()));
    let source = source.map_err(|error| told(&error))?;
    let memory = memory_for(FILE_BYTES);
    let part = Part {
        source: 0..FILE_BYTES as u64,
        memory: memory.clone(),
        offset: 0,
    };
    let loaded = loader.load(source, &[part], &mut |_| ControlFlow::Continue(()));
    loaded.map_err(|error| told(&error))?;
    Ok(memory.slice(0..FILE_BYTES).to_vec())
}

fn server(authority: &Authority) -> (TlsServer, Arc<Vec<u8>>) {
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let config = config(&authority.sign("server", &["localhost"]), None);
    let server = TlsServer::start(config, move |asked, mut out| good(asked, &served, &mut out));
    (server, file)
}

#[test]
fn a_proxy_passes_the_bytes_of_tls_on_and_sees_no_request() {
    let authority = Authority::new();
    let (server, file) = server(&authority);
    let proxy = Proxy::start(None);
    let request = request(&server, &authority, &proxy.url("me:word@"));
    let request = request.field("X-Token", "s3cret").unwrap();
    assert!(load(request).unwrap() == *file);
    let heads = proxy.heads.lock().unwrap();
    assert_eq!(heads.len(), server.handshakes(), "one tunnel for each");
    for head in heads.iter() {
        let place = format!("CONNECT localhost:{} HTTP/1.1\r\n", server.port);
        assert!(head.starts_with(&place), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic bWU6d29yZA==\r\n"));
        assert!(!head.contains("s3cret"), "{head}");
    }
    assert!(server.requests() > heads.len(), "tunnels are used again");
}

#[test]
fn a_refusal_of_the_proxy_is_told_as_that_of_the_proxy() {
    let authority = Authority::new();
    let (server, _) = server(&authority);
    for (refusal, expected) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            ["answers 407", "user:password@"],
        ),
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            ["answers 403", "does not permit"],
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
            ["gave up", "may not reach localhost"],
        ),
        ("no HTTP at all\r\n\r\n", ["the proxy", "is not HTTP"]),
        ("", ["gave up", "the proxy closed the connection"]),
    ] {
        let proxy = Proxy::start(Some(refusal));
        let text = load(request(&server, &authority, &proxy.url(""))).unwrap_err();
        assert!(expected.iter().all(|word| text.contains(word)), "{text}");
        assert!(text.contains(&proxy.url("")), "{text}");
    }
    assert_eq!(server.handshakes(), 0);
}
