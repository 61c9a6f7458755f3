//! Where files are: indexes and shards behind redirects, places that expire, buckets of other regions.

use std::io::Write;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use devmem_linux::test_util::in_netns;
use devmem_tcp::Dmabuf;
use devmem_transfer::load::{Checkpoint, CheckpointError, HttpRequest, Loader, S3Credentials};

use crate::server::{After, Asked, Server, empty, good};
use crate::world::{V4, World, pattern, told};

/// Returns a file with one tensor for each name, of `len` bytes that depend on the name.
fn safetensors(names: &[&str], len: usize) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for name in names {
        let start = data.len();
        data.extend(name.bytes().cycle().take(len));
        let end = data.len();
        entries.push(format!(
            r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let entries = map
        .iter()
        .map(|(tensor, file)| format!(r#""{tensor}":"{file}""#));
    let entries: Vec<_> = entries.collect();
    format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes()
}

/// Sends the file that a list has for the target; 404 without one.
fn file_of(
    files: &[(&str, Vec<u8>)],
    asked: &Asked,
    out: &mut TcpStream,
) -> std::io::Result<After> {
    match files.iter().find(|(target, _)| *target == asked.target()) {
        Some((_, file)) => good(asked, file, out),
        None => empty("404 Not Found", "", out),
    }
}

fn request(server: &Server, target: &str) -> HttpRequest {
    let url = format!("http://{}:{}{target}", V4.host, server.port);
    HttpRequest::new(url.parse().expect("a URL"))
}

/// Loads a checkpoint and returns its tensors: names and bytes.
fn load(loader: &Loader, request: HttpRequest) -> Result<Vec<(String, Vec<u8>)>, String> {
    let checkpoint = Checkpoint::open(loader, request).map_err(|error| told(&error))?;
    let memory = Dmabuf::anonymous(checkpoint.memory_bytes()).expect("memory");
    let loaded = checkpoint.load(loader, &memory, &mut |_| ControlFlow::Continue(()));
    let loaded = loaded.map_err(|error| told(&error))?;
    assert_eq!(loaded.bytes, checkpoint.tensor_bytes());
    let tensors = checkpoint.tensors().iter();
    Ok(tensors
        .map(|tensor| {
            (
                tensor.name.clone(),
                memory.slice(tensor.place.clone()).to_vec(),
            )
        })
        .collect())
}

/// The tensors that [`safetensors`] makes.
fn expected(names: &[&str], len: usize) -> Vec<(String, Vec<u8>)> {
    let bytes = |name: &str| name.bytes().cycle().take(len).collect();
    names
        .iter()
        .map(|name| ((*name).to_owned(), bytes(name)))
        .collect()
}

#[test]
fn shards_lie_beside_the_url_that_the_user_gave() {
    in_netns(
        "origins::shards_lie_beside_the_url_that_the_user_gave",
        || {
            let files = [
                (
                    "/cache/abc",
                    index(&[("a", "m-1.safetensors"), ("b", "m 2+.safetensors")]),
                ),
                ("/R/resolve/main/m-1.safetensors", safetensors(&["a"], 9)),
                (
                    "/R/resolve/main/m%202%2B.safetensors",
                    safetensors(&["b"], 9),
                ),
            ];
            let server =
                Server::start(
                    move |asked, out| match asked.target().ends_with("index.json") {
                        true => empty("307 Temporary Redirect", "Location: /cache/abc\r\n", out),
                        false => file_of(&files, asked, out),
                    },
                );
            let world = World::new(V4);
            let request = request(&server, "/R/resolve/main/m.safetensors.index.json");
            let loaded = load(&Loader::new(&world.nic), request);
            assert_eq!(
                loaded,
                Ok(expected(&["b", "a"], 9)),
                "in the order of the files' names"
            );
            world.end();
        },
    );
}

#[test]
fn the_index_decides_which_tensors_come_from_which_shard() {
    in_netns(
        "origins::the_index_decides_which_tensors_come_from_which_shard",
        || {
            let mut old = safetensors(&["a", "b", "unlisted"], 3);
            let end = old.len();
            old[end - 6..end - 3].copy_from_slice(b"old");
            let files = [
                (
                    "/m.safetensors.index.json",
                    index(&[("a", "base"), ("b", "over")]),
                ),
                ("/base", old),
                ("/over", safetensors(&["b"], 3)),
            ];
            let server = Server::start(move |asked, out| file_of(&files, asked, out));
            let world = World::new(V4);
            let request = request(&server, "/m.safetensors.index.json");
            let loaded = load(&Loader::new(&world.nic), request);
            assert_eq!(loaded, Ok(expected(&["a", "b"], 3)));
            world.end();
        },
    );
}

#[test]
fn a_short_shard_takes_one_request_and_connections_are_kept() {
    const SHARDS: usize = 60;
    in_netns(
        "origins::a_short_shard_takes_one_request_and_connections_are_kept",
        || {
            let names: Vec<_> = (0..SHARDS).map(|n| format!("t{n:02}")).collect();
            let shards: Vec<_> = names
                .iter()
                .map(|name| safetensors(&[name.as_str()], 40_000))
                .collect();
            let entries: Vec<_> = names
                .iter()
                .map(|name| format!(r#""{name}":"{name}""#))
                .collect();
            let index = format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes();
            let connections = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
            let seen = Arc::clone(&connections);
            let server = Server::start(move |asked, out| {
                seen.lock().unwrap().insert(out.peer_addr()?);
                match asked.target().strip_prefix("/t") {
                    Some(number) => good(
                        asked,
                        &shards[number.parse::<usize>().expect("a number")],
                        out,
                    ),
                    None => good(asked, &index, out),
                }
            });
            let world = World::new(V4);
            let loader = Loader::new(&world.nic).connections(8);
            let loaded = load(&loader, request(&server, "/m.safetensors.index.json"));
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            assert_eq!(loaded, Ok(expected(&names, 40_000)));
            assert_eq!(server.requests(), SHARDS + 1);
            let connections = connections.lock().unwrap().len();
            assert!(connections <= 8, "{connections} connections");
            world.end();
        },
    );
}

#[test]
fn a_place_that_expires_is_found_again() {
    const TENSOR: usize = 3_000_000;
    in_netns("origins::a_place_that_expires_is_found_again", || {
        let shards = [safetensors(&["a"], TENSOR), safetensors(&["b"], TENSOR)];
        let index = index(&[("a", "m-0"), ("b", "m-1")]);
        // Each place serves two requests; then its signature has expired.
        let places = Mutex::new(Vec::new());
        let asked_hub = Arc::new(AtomicUsize::new(0));
        let hub = Arc::clone(&asked_hub);
        let server = Server::start(move |asked, out| {
            let target = asked.target();
            if target == "/m.safetensors.index.json" {
                return good(asked, &index, out);
            }
            let mut places = places.lock().unwrap();
            if target.starts_with("/m-") {
                hub.fetch_add(1, Ordering::Relaxed);
                assert!(
                    asked.head.contains("Authorization: Basic bWU6cHc="),
                    "{}",
                    asked.head
                );
                let place = places.len();
                places.push(2);
                let location = format!(
                    "Location: http://{}:{}/blob{target}?sig={place}\r\n",
                    "10.77.0.1",
                    out.local_addr()?.port()
                );
                return empty("302 Found", &location, out);
            }
            let (path, place) = target.split_once("?sig=").expect("a place");
            let left: &mut i32 = &mut places[place.parse::<usize>().expect("a number")];
            *left -= 1;
            if *left < 0 {
                return empty("403 Forbidden", "", out);
            }
            let shard = &shards[usize::from(path.ends_with("m-1"))];
            good(asked, shard, out)
        });
        let world = World::new(V4);
        let loader = Loader::new(&world.nic).piece_bytes(1_000_000);
        let url = format!(
            "http://me:pw@{}:{}/m.safetensors.index.json",
            V4.host, server.port
        );
        let loaded = load(&loader, HttpRequest::new(url.parse().expect("a URL")));
        assert_eq!(loaded, Ok(expected(&["a", "b"], TENSOR)));
        assert!(
            asked_hub.load(Ordering::Relaxed) > 2,
            "again after the first two"
        );
        world.end();
    });
}

#[test]
fn a_piece_is_redirected_too_and_a_place_that_always_refuses_ends_the_load() {
    const TEST: &str =
        "origins::a_piece_is_redirected_too_and_a_place_that_always_refuses_ends_the_load";
    in_netns(TEST, || {
        let file = Arc::new(pattern(300_000));
        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| match asked.target() {
            "/file" if asked.range == Some(0..1) && asked.number == 0 => good(asked, &served, out),
            "/file" => empty("307 Temporary Redirect", "Location: /there\r\n", out),
            _ => good(asked, &served, out),
        });
        let world = World::new(V4);
        let loader = Loader::new(&world.nic).piece_bytes(100_000);
        world.load_all(&server.url(V4.host), &file, &loader);

        let served = Arc::clone(&file);
        let server = Server::start(move |asked, out| match asked.target() {
            "/file" => empty("302 Found", "Location: /there\r\n", out),
            _ if asked.range == Some(0..1) => good(asked, &served, out),
            _ => empty("403 Forbidden", "", out),
        });
        let opened = world.open(&server.url(V4.host)).expect("it opens");
        let memory = crate::world::memory_for(file.len());
        let part = crate::world::whole(&memory, file.len());
        let loaded = loader.load(&opened, &[part], &mut |_| ControlFlow::Continue(()));
        let error = told(&loaded.expect_err("it is refused"));
        assert!(error.contains("/there, where http://10.77.0.1:"), "{error}");
        assert!(error.contains("answers 403 Forbidden"), "{error}");
        world.end();
    });
}

#[test]
fn a_redirect_that_leads_nowhere_says_so() {
    in_netns("origins::a_redirect_that_leads_nowhere_says_so", || {
        let world = World::new(V4);
        for (location, expected) in [
            (
                "Location: gs://hub/x?token=s3cret\r\n",
                "/file redirects to gs://hub/x?token=...: \"gs:",
            ),
            (
                "Location: ftp://hub/x\r\n",
                "/file redirects to ftp://hub/x: ",
            ),
            (
                "",
                "/file answers 302 Found\n  the server names no other place",
            ),
        ] {
            let server = Server::start(move |_, out| empty("302 Found", location, out));
            let error = told(&world.open(&server.url(V4.host)).expect_err("nowhere"));
            assert!(error.contains(expected), "{error}");
        }
        world.end();
    });
}

#[test]
fn ten_redirects_in_a_row_are_followed_and_no_more() {
    in_netns(
        "origins::ten_redirects_in_a_row_are_followed_and_no_more",
        || {
            let world = World::new(V4);
            for (last, is_found) in [(10, true), (11, false)] {
                let server = Server::start(move |asked, out| {
                    let at = asked.target().trim_start_matches('/').parse().unwrap_or(0);
                    match at < last {
                        true => empty("302 Found", &format!("Location: /{}\r\n", at + 1), out),
                        false => good(asked, &pattern(1000), out),
                    }
                });
                let opened = world.open(&server.url(V4.host));
                let error = opened.err().map(|error| error.to_string());
                assert_eq!(error.is_none(), is_found, "{error:?}");
                let expected = "more than 10 redirects in a row";
                assert!(error.is_none_or(|error| error.contains(expected)));
            }
            world.end();
        },
    );
}

#[test]
fn a_bucket_of_another_region_is_asked_again_with_its_region() {
    in_netns(
        "origins::a_bucket_of_another_region_is_asked_again_with_its_region",
        || {
            let file = Arc::new(pattern(10_000));
            let served = Arc::clone(&file);
            let server = Server::start(move |asked, out| {
                if asked.head.contains("/eu-central-1/s3/aws4_request") {
                    return good(asked, &served, out);
                }
                let region = "x-amz-bucket-region: eu-central-1\r\n";
                empty("301 Moved Permanently", region, out)
            });
            let world = World::new(V4);
            let plain: HttpRequest = HttpRequest::new(server.url(V4.host).parse().unwrap());
            let signed = plain
                .clone()
                .sign_s3(S3Credentials::new("k", "s", "us-east-1"));
            let opened =
                devmem_transfer::load::HttpFile::open(&world.nic, signed).expect("it opens");
            assert_eq!(opened.size(), Some(10_000));
            let refused = devmem_transfer::load::HttpFile::open(&world.nic, plain)
                .expect_err("it cannot sign");
            let refused = told(&refused);
            assert!(refused.contains("set AWS_REGION=eu-central-1"), "{refused}");
            world.end();
        },
    );
}

#[test]
fn the_answer_for_a_shard_names_it_and_the_servers_words() {
    in_netns(
        "origins::the_answer_for_a_shard_names_it_and_the_servers_words",
        || {
            let index = index(&[("a", "base.safetensors"), ("b", "gone.safetensors")]);
            let base = safetensors(&["a"], 9);
            let server = Server::start(move |asked, out| match asked.target() {
                "/m.safetensors.index.json" => good(asked, &index, out),
                "/base.safetensors" => good(asked, &base, out),
                _ => {
                    let body =
                        "<Error><Code>NoSuchKey</Code><Message>It is gone.</Message></Error>";
                    write!(
                        out,
                        "HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    )?;
                    Ok(After::Keep)
                }
            });
            let world = World::new(V4);
            let request = request(&server, "/m.safetensors.index.json");
            let refused = Checkpoint::open(&Loader::new(&world.nic), request);
            let refused = refused.expect_err("a shard is not there");
            assert!(matches!(refused, CheckpointError::Load(_)), "{refused:?}");
            let refused = told(&refused);
            let expected = "/gone.safetensors answers 404 Not Found: NoSuchKey: It is gone.\n";
            assert!(refused.contains(expected), "{refused}");
            world.end();
        },
    );
}
