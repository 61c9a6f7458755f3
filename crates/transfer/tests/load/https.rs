//! Loads by https: from servers of this test, over the kernel's sockets and over our stack.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use devmem_linux::test_util::in_netns;
use devmem_tcp::{Dmabuf, Netdev};
use devmem_transfer::load::{
    Checkpoint, HttpRequest, Loaded, Loader, Origin, Part, TlsClient, TlsOptions,
};
use netmem::{FakeDevice, FakePace};

use crate::server::{After, Asked, Server, chunked, empty, good};
use crate::tls_server::{Authority, Ending, TlsServer, config};
use crate::world::{V4, World, memory_for, pattern, told};

const FILE_BYTES: usize = 3_000_001;
/// All names of servers here.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", V4.host];
/// Long enough for a handshake on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);

fn loopback() -> Netdev {
    Netdev::kernel_to(Ipv4Addr::LOCALHOST.into()).expect("the loopback interface")
}

fn loader(nic: &Netdev) -> Loader {
    Loader::new(nic)
        .piece_bytes(200_000)
        .connections(4)
        .idle_limit(PATIENT)
}

/// Returns a request that trusts an authority.
fn request(url: &str, authority: &Authority) -> HttpRequest {
    let tls = TlsOptions::new().authorities(authority.file());
    with(url, tls.client().expect("the file of an authority"))
}

fn with(url: &str, tls: TlsClient) -> HttpRequest {
    HttpRequest::new(url.parse().expect("a URL")).tls(tls)
}

/// Loads a file into `memory` and returns its bytes, or the text of the error.
fn load_into(
    loader: &Loader,
    request: HttpRequest,
    memory: &Dmabuf,
) -> Result<(Loaded, Vec<u8>), String> {
    let source = loader.open(&Origin::Http(request), &mut || ControlFlow::Continue(()));
    let source = source.map_err(|error| told(&error))?;
    assert!(source.is_encrypted());
    let size = source.size().expect("the server tells it");
    let part = Part {
        source: 0..size,
        memory: memory.clone(),
        offset: 0,
    };
    let loaded = loader.load(source, &[part], &mut |_| ControlFlow::Continue(()));
    let loaded = loaded.map_err(|error| told(&error))?;
    let mut bytes = vec![0; size as usize];
    memory.copy_out(0, &mut bytes).expect("inside of it");
    Ok((loaded, bytes))
}

fn load(loader: &Loader, request: HttpRequest) -> Result<(Loaded, Vec<u8>), String> {
    load_into(loader, request, &memory_for(FILE_BYTES))
}

/// A server of a file, and what it serves.
fn file_server(authority: &Authority) -> (TlsServer, Arc<Vec<u8>>) {
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let config = config(&authority.sign("server", &NAMES), None);
    let server = TlsServer::start(config, move |asked, mut out| good(asked, &served, &mut out));
    (server, file)
}

#[test]
fn every_byte_arrives_over_the_kernels_sockets() {
    let authority = Authority::new();
    let (server, file) = file_server(&authority);
    let request = request(&server.url("localhost", "/file"), &authority);
    let (loaded, bytes) = load(&loader(&loopback()), request).unwrap();
    assert!(bytes == *file);
    assert_eq!(loaded.decrypted, FILE_BYTES as u64);
    assert_eq!((loaded.repeated, loaded.stats.device_bytes), (0, 0));
    // The connection that asked for the size is used again.
    assert!(server.handshakes() < server.requests());
    let of_first = server.hellos().swap_remove(0);
    assert_eq!(of_first.0.as_deref(), Some("localhost"), "SNI");
    assert_eq!(of_first.1.as_deref(), Some(&b"http/1.1"[..]), "ALPN");
}

#[test]
fn every_byte_arrives_over_our_stack() {
    in_netns("https::every_byte_arrives_over_our_stack", || {
        let authority = Authority::new();
        let (server, file) = file_server(&authority);
        // Memory is bound: what is received there is decrypted in host memory all the same.
        let world = World::far(V4);
        let request = request(&server.url(V4.host, "/file"), &authority);
        let (loaded, bytes) = load(&loader(&world.nic), request).unwrap();
        assert!(bytes == *file);
        assert_eq!(loaded.decrypted, FILE_BYTES as u64);
        assert_eq!(loaded.connections, 4);
        world.end();
    });
}

#[test]
fn bytes_are_copied_to_the_memory_of_a_device() {
    let authority = Authority::new();
    let (server, file) = file_server(&authority);
    let device = FakeDevice::new(FakePace::AfterPolls(2));
    let memory = device.alloc(FILE_BYTES.next_multiple_of(4096)).unwrap();
    let request = request(&server.url("127.0.0.1", "/file"), &authority);
    let (_, bytes) = load_into(&loader(&loopback()), request, &memory).unwrap();
    assert!(bytes == *file);
    // From pinned host memory, of at most 256 KiB a time.
    let copies: usize = device.submissions().iter().sum();
    assert!(
        copies >= FILE_BYTES.div_ceil(256 << 10),
        "{copies} copies by the device"
    );
}

#[test]
fn chunked_bodies_and_informational_responses_are_read_through_tls() {
    let authority = Authority::new();
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let config = config(&authority.sign("server", &NAMES), None);
    let server = TlsServer::start(config, move |asked, mut out| {
        write!(out, "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n")?;
        match asked.number % 2 {
            0 => good(asked, &served, &mut out),
            _ => chunked(asked, &served, &mut out),
        }
    });
    let request = request(&server.url("127.0.0.1", "/file"), &authority);
    let (_, bytes) = load(&loader(&loopback()), request).unwrap();
    assert!(bytes == *file);
}

#[test]
fn the_shards_of_a_checkpoint_share_connections() {
    const SHARDS: usize = 40;
    let authority = Authority::new();
    let config = config(&authority.sign("server", &NAMES), None);
    let server = TlsServer::start(config, |asked, mut out| {
        let name = |shard: usize| format!(r#""t{shard}":"m-{shard}.safetensors""#);
        let number = asked.target().trim_end_matches(".safetensors");
        let number = number.trim_start_matches("/m-").parse::<u8>();
        let file = match number {
            Ok(shard) => {
                let header = format!(
                    r#"{{"t{shard}":{{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}}}"#
                );
                let length = (header.len() as u64).to_le_bytes();
                [&length[..], header.as_bytes(), &[shard; 1000]].concat()
            }
            Err(_) => {
                let names: Vec<_> = (0..SHARDS).map(name).collect();
                format!(r#"{{"weight_map":{{{}}}}}"#, names.join(",")).into_bytes()
            }
        };
        good(asked, &file, &mut out)
    });
    let nic = loopback();
    let request = request(
        &server.url("127.0.0.1", "/m.safetensors.index.json"),
        &authority,
    );
    let loader = loader(&nic);
    let checkpoint = Checkpoint::open(&loader, request).unwrap();
    assert!(checkpoint.is_encrypted());
    let memory = Dmabuf::anonymous(checkpoint.memory_bytes()).unwrap();
    let loaded = checkpoint.load(&loader, &memory, &mut |_| ControlFlow::Continue(()));
    assert_eq!(loaded.unwrap().bytes, (SHARDS * 1000) as u64);
    for tensor in checkpoint.tensors() {
        let shard: u8 = tensor.name.trim_start_matches('t').parse().unwrap();
        assert!(memory.slice(tensor.place.clone()).to_vec() == [shard; 1000]);
    }
    let (requests, handshakes) = (server.requests(), server.handshakes());
    assert!(handshakes < requests / 2, "{handshakes} of {requests}");
}

/// Returns the error of a load.
fn refused(request: HttpRequest) -> String {
    let outcome = load(&loader(&loopback()), request);
    outcome.map(|(loaded, _)| loaded).unwrap_err()
}

#[test]
fn a_server_must_prove_who_it_is() {
    let (authority, other) = (Authority::new(), Authority::named("Another"));
    let (server, file) = file_server(&authority);
    let url = server.url("localhost", "/file");
    let unknown = refused(request(&url, &other));
    assert!(unknown.starts_with("localhost: "), "{unknown}");
    assert!(unknown.contains("signed by no authority"), "{unknown}");
    assert!(unknown.contains("`TlsOptions::authorities`"), "{unknown}");
    let namesake = refused(request(&url, &Authority::new()));
    assert!(namesake.contains("same name and another key"), "{namesake}");
    assert_eq!(server.requests(), 0, "nothing is asked before");

    let serve = |signed| TlsServer::start(config(&signed, None), |_, _| Ok(After::Close));
    let old = serve(authority.sign_until("old", &NAMES, 2000));
    let old = refused(request(&old.url("localhost", "/file"), &authority));
    assert!(
        old.contains("has expired") && old.contains("clock"),
        "{old}"
    );
    let elsewhere = serve(authority.sign("elsewhere", &["other.example"]));
    let wrong = refused(request(&elsewhere.url("localhost", "/file"), &authority));
    let expected = "is for other.example, and not for localhost";
    assert!(wrong.contains(expected), "{wrong}");
    let by_address = refused(request(&elsewhere.url("127.0.0.1", "/file"), &authority));
    assert!(by_address.contains("not for 127.0.0.1"), "{by_address}");

    let any = TlsOptions::new().without_verification().client().unwrap();
    let (_, bytes) = load(&loader(&loopback()), with(&url, any)).unwrap();
    assert!(bytes == *file, "if the user has asked for it");
}

#[test]
fn a_client_shows_its_certificate_to_the_origin_alone() {
    let (authority, clients) = (Authority::new(), Authority::named("Of clients"));
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let strict = config(&authority.sign("server", &NAMES), Some(&clients));
    let server = TlsServer::start(Arc::clone(&strict), move |asked, mut out| {
        match asked.target() {
            "/file" => good(asked, &served, &mut out),
            elsewhere => {
                let fields = format!("Location: {}\r\n", elsewhere.trim_start_matches('/'));
                empty("302 Found", &fields, &mut out)
            }
        }
    });
    let url = server.url("localhost", "/file");
    let without = refused(request(&url, &authority));
    assert!(without.contains("certificate of this client"), "{without}");
    assert!(without.contains("`TlsOptions::identity`"), "{without}");

    let own = clients.sign("client", &["a client"]);
    let options = TlsOptions::new().authorities(authority.file());
    let shown = options.clone().identity(&own.certificate, &own.key);
    let shown = shown.client().unwrap();
    let (_, bytes) = load(&loader(&loopback()), with(&url, shown.clone())).unwrap();
    assert!(bytes == *file);

    let stranger = authority.sign("stranger", &["a stranger"]);
    let foreign = options.identity(&stranger.certificate, &stranger.key);
    let foreign = refused(with(&url, foreign.client().unwrap()));
    assert!(foreign.contains("refuses the certificate"), "{foreign}");

    let other = TlsServer::start(strict, |_, _| Ok(After::Close));
    let redirect = format!("/{}", other.url("localhost", "/x"));
    let elsewhere = refused(with(&server.url("localhost", &redirect), shown));
    assert!(
        elsewhere.contains("certificate of this client"),
        "{elsewhere}"
    );
}

#[test]
fn files_of_tls_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let signed = authority.sign("some", &NAMES);
    let text = |options: TlsOptions| told(&options.client().unwrap_err());
    let missing = text(TlsOptions::new().authorities("/no/such/file"));
    assert!(missing.starts_with("read /no/such/file: "), "{missing}");
    let no_certificate = text(TlsOptions::new().authorities(&signed.key));
    assert!(no_certificate.contains("some.key has no usable certificate"));
    let options = TlsOptions::new().authorities(authority.file());
    let no_key = text(
        options
            .clone()
            .identity(&signed.certificate, &signed.certificate),
    );
    assert!(
        no_key.contains("some.pem has no usable private key"),
        "{no_key}"
    );
    let other = authority.sign("other", &NAMES);
    let of_other = text(options.identity(&signed.certificate, &other.key));
    assert!(
        of_other.contains("other.key has no usable private key"),
        "{of_other}"
    );
}

/// The heads of all requests.
type Heads = Arc<Mutex<Vec<String>>>;

/// Returns what answers with a redirect, or with a file where the target is `/file`, and keeps the heads.
fn redirecting(
    heads: &Heads,
    file: &Arc<Vec<u8>>,
) -> impl Fn(&Asked, &mut dyn Write) -> io::Result<After> + Send + Sync + use<> {
    let (heads, file) = (Arc::clone(heads), Arc::clone(file));
    move |asked: &Asked, mut out: &mut dyn Write| {
        heads.lock().unwrap().push(asked.head.clone());
        match asked.target().strip_prefix("/to/") {
            Some(place) => {
                let fields = format!("Location: {place}\r\n");
                empty("307 Temporary Redirect", &fields, &mut out)
            }
            None => good(asked, &file, &mut out),
        }
    }
}

#[test]
fn credentials_stay_with_their_origin_over_redirects_between_http_and_https() {
    let authority = Authority::new();
    let file = Arc::new(pattern(FILE_BYTES));
    let (secret, plain) = (Heads::default(), Heads::default());
    let config = config(&authority.sign("server", &NAMES), None);
    let https = TlsServer::start(config, redirecting(&secret, &file));
    let answer = redirecting(&plain, &file);
    let http = Server::start(move |asked, out| answer(asked, out));
    let tls = TlsOptions::new().authorities(authority.file());
    let tls = tls.client().unwrap();
    let (a, b) = (
        format!("http://me:s3cret@localhost:{}", http.port),
        format!("https://me:s3cret@localhost:{}", https.port),
    );
    let (there, back) = (
        format!("{a}/to/https://localhost:{}/file", https.port),
        format!("{b}/to/http://localhost:{}/file", http.port),
    );
    let warned = Arc::new(AtomicUsize::new(0));
    let nic = loopback();
    for (url, from, to, is_encrypted) in [
        (&there, &plain, &secret, true),
        (&back, &secret, &plain, false),
    ] {
        from.lock().unwrap().clear();
        to.lock().unwrap().clear();
        let request = with(url, tls.clone()).field("X-Token", "s3cret").unwrap();
        let heard = Arc::clone(&warned);
        let loader = loader(&nic).on_notice(move |text| {
            assert!(text.contains("neither encrypted nor verified"), "{text}");
            heard.fetch_add(1, Ordering::Relaxed);
        });
        let origin = Origin::Http(request);
        let source = loader.open(&origin, &mut || ControlFlow::Continue(()));
        let source = source.unwrap();
        assert_eq!(source.is_encrypted(), is_encrypted);
        let memory = memory_for(FILE_BYTES);
        let part = Part {
            source: 0..FILE_BYTES as u64,
            memory: memory.clone(),
            offset: 0,
        };
        let loaded = loader.load(source, &[part], &mut |_| ControlFlow::Continue(()));
        let decrypted = loaded.unwrap().decrypted;
        assert_eq!(decrypted, if is_encrypted { FILE_BYTES as u64 } else { 0 });
        assert!(memory.slice(0..FILE_BYTES).to_vec() == *file);
        let (from, to) = (from.lock().unwrap(), to.lock().unwrap());
        assert!(from[0].contains("X-Token: s3cret") && from[0].contains("Authorization: Basic"));
        assert!(!to.is_empty());
        for head in to.iter() {
            assert!(
                !head.contains("s3cret") && !head.contains("Basic"),
                "{head}"
            );
        }
    }
    assert_eq!(warned.load(Ordering::Relaxed), 1, "from https to http");
}

#[test]
fn a_connection_that_is_cut_in_mid_body_ends_no_file() {
    let authority = Authority::new();
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let config = config(&authority.sign("server", &NAMES), None);
    // The second half of each range never comes on the same connection.
    let halving = move |asked: &Asked, out: &mut dyn Write| {
        let range = asked.range.clone().unwrap_or(0..1);
        let len = range.end - range.start;
        let mut whole = Vec::new();
        good(asked, &served, &mut whole)?;
        let missing = if asked.number < 30 {
            len as usize / 2
        } else {
            0
        };
        out.write_all(&whole[..whole.len() - missing])?;
        Ok(match missing {
            0 => After::Keep,
            _ => After::Close,
        })
    };
    let server = TlsServer::slow(Arc::clone(&config), Duration::ZERO, Ending::Cut, halving);
    let request_of = |server: &TlsServer| request(&server.url("localhost", "/file"), &authority);
    let (loaded, bytes) = load(&loader(&loopback()), request_of(&server)).unwrap();
    assert!(bytes == *file && loaded.broken > 0, "what has come stays");

    // Without a length, only the end of TLS could tell a whole body from one that was cut.
    let endless = |_: &Asked, out: &mut dyn Write| {
        write!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")?;
        Ok(After::Close)
    };
    let cut = TlsServer::slow(Arc::clone(&config), Duration::ZERO, Ending::Cut, endless);
    let origin = Origin::Http(request_of(&cut));
    let opened = loader(&loopback()).open(&origin, &mut || ControlFlow::Continue(()));
    assert_eq!(opened.unwrap().size(), None, "it may be longer");
    let whole = TlsServer::slow(config, Duration::ZERO, Ending::Announced, endless);
    let origin = Origin::Http(request_of(&whole));
    let opened = loader(&loopback()).open(&origin, &mut || ControlFlow::Continue(()));
    assert_eq!(opened.unwrap().size(), Some(5));
}

#[test]
fn a_server_that_cuts_every_connection_is_given_up_with_the_reason() {
    let authority = Authority::new();
    let config = config(&authority.sign("server", &NAMES), None);
    let cutting = |asked: &Asked, out: &mut dyn Write| {
        let end = if asked.number == 0 { "x" } else { "" };
        write!(
            out,
            "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-0/1\r\nContent-Length: 1\r\n\r\n{end}"
        )?;
        Ok(After::Close)
    };
    let server = TlsServer::slow(config, Duration::ZERO, Ending::Cut, cutting);
    let loader = Loader::new(&loopback()).attempts(2).connections(1);
    let request = request(&server.url("localhost", "/file"), &authority);
    let text = load(&loader, request).map(|_| ()).unwrap_err();
    assert!(text.contains("gave up after 2 attempts"), "{text}");
    assert!(text.contains("close_notify"), "{text}");
}

#[test]
fn a_slow_handshake_is_waited_for_up_to_the_limit() {
    let authority = Authority::new();
    let file = Arc::new(pattern(FILE_BYTES));
    let served = Arc::clone(&file);
    let config = config(&authority.sign("server", &NAMES), None);
    let answer = move |asked: &Asked, mut out: &mut dyn Write| good(asked, &served, &mut out);
    let slow = Duration::from_millis(300);
    let server = TlsServer::slow(config, slow, Ending::Announced, answer);
    let request_of = |port: u16| {
        let url = format!("https://localhost:{port}/file");
        request(&url, &authority)
    };
    let (_, bytes) = load(&loader(&loopback()), request_of(server.port)).unwrap();
    assert!(bytes == *file);

    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let impatient = loader(&loopback()).idle_limit(Duration::from_millis(100));
    let text = load(&impatient, request_of(port)).map(|_| ()).unwrap_err();
    assert!(
        text.contains("the handshake of TLS was not complete"),
        "{text}"
    );
    let cancelled = loader(&loopback()).open(&Origin::Http(request_of(port)), &mut || {
        ControlFlow::Break(())
    });
    assert!(cancelled.unwrap_err().to_string().contains("cancelled"));
}

#[test]
fn plain_http_and_tls_on_each_others_ports_are_told() {
    let authority = Authority::new();
    let (tls, _) = file_server(&authority);
    let answering = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = answering.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in answering.incoming().flatten() {
            let mut stream = stream;
            let mut hello = [0; 16];
            let _ = stream.read(&mut hello);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let text = refused(request(
        &format!("https://localhost:{port}/file"),
        &authority,
    ));
    assert!(text.contains("answers in plain HTTP"), "{text}");
    assert!(text.contains("write http://"), "{text}");

    let url = format!("http://localhost:{}/file", tls.port);
    let plain = HttpRequest::new(url.parse().unwrap());
    let nic = loopback();
    let opened = loader(&nic).open(&Origin::Http(plain), &mut || ControlFlow::Continue(()));
    let text = told(&opened.unwrap_err());
    assert!(
        text.contains("is one of TLS") && text.contains("https://"),
        "{text}"
    );
}
