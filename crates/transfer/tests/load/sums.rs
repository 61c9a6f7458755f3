//! Checksums of the files of a checkpoint, of which the tensors are in memory.

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

use devmem_linux::test_util::in_netns;
use devmem_tcp::Dmabuf;
use devmem_transfer::load::{
    Checkpoint, Crc32c, HttpRequest, Loader, NoSum, S3Credentials, SumKind,
};

use crate::checkpoint::safetensors;
use crate::server::{After, Asked, Server, good};
use crate::world::{V4, World, told};

fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut sum = Crc32c::default();
    sum.add(bytes);
    sum.value().to_be_bytes()
}

/// Base64 of four bytes (RFC 4648 4).
fn base64(bytes: [u8; 4]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(bytes)) << 4;
    let letter = |at: u32| char::from(LETTERS[(bits >> (30 - 6 * at)) as usize % 64]);
    (0..6).map(letter).collect::<String>() + "=="
}

/// Answers with a range of `file`, and with these fields.
fn answer(asked: &Asked, file: &[u8], fields: &str, out: &mut impl Write) -> io::Result<After> {
    let mut text = Vec::new();
    let after = good(asked, file, &mut text)?;
    let line = text
        .windows(2)
        .position(|end| end == b"\r\n")
        .expect("a head")
        + 2;
    text.splice(line..line, fields.bytes());
    // The request of all bytes.
    if asked.range.is_none() {
        let status = b"HTTP/1.1 206 Partial Content".len();
        text.splice(..status, *b"HTTP/1.1 200 OK");
    }
    out.write_all(&text)?;
    Ok(after)
}

/// Answers as a store that has checksums of the parts of an object, and tells them to those who ask for them.
fn answer_in_parts(
    asked: &Asked,
    file: &[u8],
    parts: &[Range<usize>],
    out: &mut impl Write,
) -> io::Result<After> {
    if !asked.head.contains("x-amz-checksum-mode: ENABLED") {
        return answer(asked, file, "", out);
    }
    let sums = parts.iter().map(|part| crc32c(&file[part.clone()]));
    let number = asked
        .target()
        .split_once("partNumber=")
        .map(|(_, number)| number);
    let (range, sum) = match number {
        None => {
            let all: Vec<u8> = sums.flatten().collect();
            let sum = format!("{}-{}", base64(crc32c(&all)), parts.len());
            (None, sum)
        }
        Some(number) => {
            let part = parts[number.parse::<usize>().expect("a number") - 1].clone();
            let sum = base64(crc32c(&file[part.clone()]));
            (Some(part.start as u64..part.end as u64), sum)
        }
    };
    let asked = Asked {
        range,
        ..asked.clone()
    };
    answer(
        &asked,
        file,
        &format!("x-amz-checksum-crc32c: {sum}\r\n"),
        out,
    )
}

/// Serves an index and its files: `a` with a checksum of its bytes, `b` with one of the checksums of three parts, `c`, of which the index names
/// only some tensors, and `d`, which has none.
fn serve() -> Server {
    let lengths = [1000, 0, 70_001, 300_000];
    let files = ["a", "b", "c", "d"].map(|prefix| safetensors(prefix, &lengths).0);
    let names = "a0 a1 a2 a3 b0 b1 b2 b3 c0 c3 d0 d1 d2 d3".split(' ');
    let map = names.map(|name| format!(r#""{name}":"{}.safetensors""#, &name[..1]));
    let map = map.collect::<Vec<_>>().join(",");
    let index = format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes();
    Server::start(move |asked, out| {
        let target = asked.target().split('?').next().unwrap_or_default();
        let goog = |file: &[u8]| format!("x-goog-hash: crc32c={}\r\n", base64(crc32c(file)));
        match target {
            "/a.safetensors" => answer(asked, &files[0], &goog(&files[0]), out),
            // The parts end inside of the header and of a tensor.
            "/b.safetensors" => {
                let parts = [0..50, 50..100_000, 100_000..files[1].len()];
                answer_in_parts(asked, &files[1], &parts, out)
            }
            "/c.safetensors" => answer(asked, &files[2], &goog(&files[2]), out),
            "/d.safetensors" => good(asked, &files[3], out),
            _ => good(asked, &index, out),
        }
    })
}

/// Loads a checkpoint of a store into memory of its own.
fn loaded(loader: &Loader, server: &Server, name: &str) -> (Checkpoint, Dmabuf) {
    let url = format!("http://{}:{}/{name}", V4.host, server.port);
    let request = HttpRequest::new(url.parse().unwrap());
    let request = request.sign_s3(S3Credentials::new("k", "s", "us-east-1"));
    let checkpoint = Checkpoint::open(loader, request).expect("it opens");
    let memory = Dmabuf::anonymous(checkpoint.memory_bytes()).unwrap();
    let loaded = checkpoint.load(loader, &memory, &mut |_| ControlFlow::Continue(()));
    loaded.expect("it loads");
    (checkpoint, memory)
}

/// Changes the last byte of a tensor.
fn spoil(checkpoint: &Checkpoint, memory: &Dmabuf, name: &str) {
    let mut tensors = checkpoint.tensors().iter();
    let tensor = tensors.find(|tensor| tensor.name == name);
    let at = tensor.expect("it is there").place.end - 1;
    let byte = memory.slice(at..at + 1).to_vec()[0];
    memory.copy_in(at, &[byte ^ 1]).unwrap();
}

#[test]
fn tensors_in_memory_are_compared_with_the_checksums_of_their_files() {
    const TEST: &str = "sums::tensors_in_memory_are_compared_with_the_checksums_of_their_files";
    in_netns(TEST, || {
        let server = serve();
        let world = World::new(V4);
        let loader = Loader::new(&world.nic);
        let (checkpoint, memory) = loaded(&loader, &server, "m.safetensors.index.json");

        let compare = |wrong: &[Option<Option<usize>>; 2]| {
            let cancel_check = &mut || ControlFlow::Continue(());
            let compared = checkpoint.compare(&loader, &memory, cancel_check).unwrap();
            for (number, name) in ["a", "b", "c", "d"].iter().enumerate() {
                let file = &compared[number].file;
                assert!(file.ends_with(&format!("/{name}.safetensors")), "{file}");
            }
            for (compared, (parts, wrong)) in compared.iter().zip([0, 3].iter().zip(wrong)) {
                let sums = compared.outcome.as_ref().expect("the server has one");
                assert_eq!((sums.kind, sums.parts), (SumKind::Crc32c, *parts));
                assert_eq!(sums.is_equal(), wrong.is_none(), "{sums:?}");
                let part = sums.wrong_part.as_ref().map(|(number, _)| *number);
                assert_eq!(part, wrong.flatten());
            }
            assert_eq!(compared[2].outcome, Err(NoSum::NotAll));
            assert_eq!(compared[3].outcome, Err(NoSum::None));
        };
        compare(&[None, None]);
        for (name, wrong) in [
            ("a2", [Some(None), None]),
            ("b3", [None, Some(Some(3))]),
            ("b0", [None, Some(Some(2))]),
        ] {
            spoil(&checkpoint, &memory, name);
            compare(&wrong);
            spoil(&checkpoint, &memory, name);
        }
        compare(&[None, None]);

        let cancelled = checkpoint.compare(&loader, &memory, &mut || ControlFlow::Break(()));
        let cancelled = told(&cancelled.unwrap_err());
        assert!(cancelled.contains("cancelled"), "{cancelled}");
        world.end();
    });
}

#[test]
fn a_body_that_follows_the_answer_to_head_does_not_answer_the_next_request() {
    const TEST: &str =
        "sums::a_body_that_follows_the_answer_to_head_does_not_answer_the_next_request";
    in_netns(TEST, || {
        let file = safetensors("a", &[1000]).0;
        let parts = [0..50, 50..file.len()];
        let (heads, gets) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let server = Server::start(move |asked, out| {
            let heads = heads.fetch_add(asked.is_for_head().into(), Ordering::SeqCst);
            let is_get = heads > 0 && !asked.is_for_head();
            let gets = gets.fetch_add(is_get.into(), Ordering::SeqCst);
            // On the connection of an answer to HEAD: the body of that answer comes now.
            match is_get && gets == 0 || asked.is_for_head() && heads == 1 {
                true => out.write_all(&file).map(|()| After::Close),
                false => answer_in_parts(asked, &file, &parts, out),
            }
        });
        let world = World::new(V4);
        let loader = Loader::new(&world.nic);
        let (checkpoint, memory) = loaded(&loader, &server, "a.safetensors");
        let before = server.requests();
        let compared = checkpoint.compare(&loader, &memory, &mut || ControlFlow::Continue(()));
        let compared = compared.expect("the server is asked on another connection");
        let sums = compared[0].outcome.as_ref().expect("the server has one");
        assert!(sums.is_equal(), "{sums:?}");
        // HEAD of the file and of both parts, GET of the header, and one more of each method.
        assert_eq!(server.requests() - before, 6);
        world.end();
    });
}
