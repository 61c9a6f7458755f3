//! Checkpoints in the safetensors format.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use devmem_linux::test_util::in_netns;
use devmem_tcp::Dmabuf;
use devmem_transfer::load::{Checkpoint, HttpRequest, Loader};

use crate::server::{After, Server, good};
use crate::world::{V4, World, pattern, told};

/// Returns a file of tensors of these lengths, and the bytes of each.
pub fn safetensors(prefix: &str, lengths: &[usize]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let data = pattern(lengths.iter().sum());
    let (mut entries, mut tensors, mut at) = (Vec::new(), Vec::new(), 0);
    for (index, len) in lengths.iter().enumerate() {
        let end = at + len;
        entries.push(format!(
            r#""{prefix}{index}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{at},{end}]}}"#
        ));
        tensors.push(data[at..end].to_vec());
        at = end;
    }
    let header = format!(r#"{{"__metadata__":{{}},{}}}"#, entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    (file, tensors)
}

#[test]
fn five_hundred_tensors_of_two_shards_land_aligned() {
    in_netns(
        "checkpoint::five_hundred_tensors_of_two_shards_land_aligned",
        || {
            let lengths: Vec<usize> = (0..250).map(|n| (n * 7919) % 40_000).collect();
            let (first, mut expected) = safetensors("a", &lengths);
            let (second, more) = safetensors("b", &lengths);
            expected.extend(more);
            let of = |prefix: &str, file: &str| {
                let entry = |n| format!(r#""{prefix}{n}":"{file}.safetensors""#);
                (0..lengths.len()).map(entry).collect::<Vec<_>>().join(",")
            };
            let map = [of("b", "m-2"), of("a", "m-1")].join(",");
            let index = format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes();
            let files = Arc::new([first, second, index]);
            let server = Server::start(move |asked, out| match asked.target() {
                "/m/m-1.safetensors" => good(asked, &files[0], out),
                "/m/m-2.safetensors" => good(asked, &files[1], out),
                "/m/m.safetensors.index.json" => good(asked, &files[2], out),
                _ => {
                    out.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")?;
                    Ok(After::Close)
                }
            });
            let world = World::new(V4);
            let loader = Loader::new(&world.nic).piece_bytes(1 << 20);
            let base = format!("http://{}:{}/m/m", V4.host, server.port);
            for (name, count) in [(".safetensors.index.json", 500), ("-1.safetensors", 250)] {
                let request = HttpRequest::new(format!("{base}{name}").parse().unwrap());
                let checkpoint = Checkpoint::open(&loader, request).expect("it opens");
                assert_eq!(checkpoint.tensors().len(), count);
                let memory = Dmabuf::anonymous(checkpoint.memory_bytes()).unwrap();
                let loaded = checkpoint.load(&loader, &memory, &mut |_| ControlFlow::Continue(()));
                assert_eq!(loaded.unwrap().bytes, checkpoint.tensor_bytes());
                for (tensor, expected) in checkpoint.tensors().iter().zip(&expected) {
                    assert!(tensor.place.start.is_multiple_of(256), "{tensor:?}");
                    assert_eq!(tensor.shape, [expected.len() as u64]);
                    let landed = memory.slice(tensor.place.clone()).to_vec();
                    assert!(landed == *expected, "{tensor:?}");
                }
            }
            let missing = HttpRequest::new(format!("{base}-3.safetensors").parse().unwrap());
            let missing = Checkpoint::open(&loader, missing).unwrap_err();
            assert!(told(&missing).contains("404"), "{missing}");
            world.end();
        },
    );
}

#[test]
fn shards_that_are_not_those_of_their_index_are_refused() {
    in_netns(
        "checkpoint::shards_that_are_not_those_of_their_index_are_refused",
        || {
            let world = World::new(V4);
            let loader = Loader::new(&world.nic);
            for (prefix, map, expected) in [
                (
                    "b",
                    r#""a0":"1.safetensors","b7":"2.safetensors""#,
                    "2.safetensors has no tensor \"b7\"",
                ),
                (
                    "b",
                    r#""a0":"1.safetensors","a1":"2.safetensors""#,
                    "2.safetensors has no tensor \"a1\"",
                ),
            ] {
                let index = format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes();
                let files = [
                    safetensors("a", &[10, 20]).0,
                    safetensors(prefix, &[30, 40]).0,
                    index,
                ];
                let server = Server::start(move |asked, out| {
                    let names = ["/1.safetensors", "/2.safetensors", "/i.json"];
                    let at = names.iter().position(|name| *name == asked.target());
                    good(asked, &files[at.expect("one of the files")], out)
                });
                let url = format!("http://{}:{}/i.json", V4.host, server.port);
                let request = HttpRequest::new(url.parse().unwrap());
                let refused = told(&Checkpoint::open(&loader, request).unwrap_err());
                assert!(refused.contains(expected), "{refused}");
            }
            world.end();
        },
    );
}

#[test]
fn a_file_of_another_format_is_refused() {
    in_netns("checkpoint::a_file_of_another_format_is_refused", || {
        let server = Server::start(|asked, out| good(asked, &pattern(1000), out));
        let world = World::new(V4);
        let request = HttpRequest::new(server.url(V4.host).parse().unwrap());
        let refused = Checkpoint::open(&Loader::new(&world.nic), request).unwrap_err();
        let refused = told(&refused);
        assert!(refused.contains("is no safetensors file"), "{refused}");
        world.end();
    });
}

/// Most memory that this process had so far, in KiB (proc_pid_status(5)).
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits = line.and_then(|line| line.trim().strip_suffix("kB"));
    digits
        .and_then(|digits| digits.trim().parse().ok())
        .expect("a number")
}

#[test]
fn a_thousand_files_with_long_headers_are_refused_and_take_little_memory() {
    const TEST: &str =
        "checkpoint::a_thousand_files_with_long_headers_are_refused_and_take_little_memory";
    const HEADER_BYTES: usize = 8_000_000;
    in_netns(TEST, || {
        // Each text is another one, so that all would be kept.
        let mut header = r#"{"__metadata__":{"":"""#.to_owned();
        let mut number = 0;
        while header.len() < HEADER_BYTES {
            number += 1;
            header.push_str(&format!(r#","{number:x}":"""#));
        }
        header.push_str("}}");
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        drop(header);
        let name = |n| format!(r#""{n}":"{n}.safetensors""#);
        let names: Vec<_> = (0..1000).map(name).collect();
        let index = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(",")).into_bytes();
        let server = Server::start(move |asked, out| match asked.target() {
            "/i.json" => good(asked, &index, out),
            _ => good(asked, &file, out),
        });
        let world = World::new(V4);
        let before = peak_kib();
        let url = format!("http://{}:{}/i.json", V4.host, server.port);
        let request = HttpRequest::new(url.parse().unwrap());
        let refused = Checkpoint::open(&Loader::new(&world.nic), request).unwrap_err();
        // The first file is read, and lacks a tensor of the index.
        assert!(told(&refused).contains("has no tensor"), "{refused}");
        let grown = peak_kib() - before;
        assert!(grown < 48 << 10, "{grown} KiB");
        world.end();
    });
}

#[test]
fn the_headers_of_all_files_have_one_limit() {
    in_netns(
        "checkpoint::the_headers_of_all_files_have_one_limit",
        || {
            // Each may have 100 MB, and the two have more than all may have.
            let file = |name: &str, blanks: usize| {
                let blanks = " ".repeat(blanks);
                let header = format!(
                    r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}{blanks}"#
                );
                let length = (header.len() as u64).to_le_bytes();
                [&length[..], header.as_bytes(), b"x"].concat()
            };
            let files = [file("a", 30_000_000), file("b", 99_000_000)];
            let index = br#"{"weight_map":{"a":"0.safetensors","b":"1.safetensors"}}"#;
            let server = Server::start(move |asked, out| match asked.target() {
                "/0.safetensors" => good(asked, &files[0], out),
                "/1.safetensors" => good(asked, &files[1], out),
                _ => good(asked, index, out),
            });
            let world = World::new(V4);
            let url = format!("http://{}:{}/i.json", V4.host, server.port);
            let request = HttpRequest::new(url.parse().unwrap());
            let refused = Checkpoint::open(&Loader::new(&world.nic), request).unwrap_err();
            let expected = "more than 128000000 bytes together";
            assert!(told(&refused).contains(expected), "{refused}");
            assert!(told(&refused).contains("/1.safetensors"), "{refused}");
            world.end();
        },
    );
}
