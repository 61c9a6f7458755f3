//! Tensors one after the other, in bounded memory.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use devmem_linux::test_util::in_netns;
use devmem_tcp::Dmabuf;
use devmem_transfer::load::{
    Arrived, Checkpoint, HttpRequest, Loader, NextTensor, Selected, Sharing, StreamFailure,
    StreamSettings, TensorStream,
};

use crate::server::{After, Server, good};
use crate::world::{V4, World, pattern, told};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// Returns a file of tensors of bytes, each with these rows and columns.
fn file(prefix: &str, shapes: &[(usize, usize)]) -> Vec<u8> {
    let (mut entries, mut at) = (Vec::new(), 0);
    for (number, (rows, columns)) in shapes.iter().enumerate() {
        let end = at + rows * columns;
        entries.push(format!(
            r#""{prefix}{number}":{{"dtype":"U8","shape":[{rows},{columns}],"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&pattern(at));
    file
}

/// Serves two files of a checkpoint and their index, and opens it.
fn checkpoint(loader: &Loader) -> Arc<Checkpoint> {
    let (first, second) = (
        file("a", &[(1, 10), (1000, 3000), (0, 5), (2, MIB)]),
        file("b", &[(700, 2000), (1, 7), (3000, 1000)]),
    );
    let of = |prefix: &str, file: &str, count: usize| {
        let entry = |n| format!(r#""{prefix}{n}":"{file}.safetensors""#);
        (0..count).map(entry).collect::<Vec<_>>().join(",")
    };
    let map = [of("a", "1", 4), of("b", "2", 3)].join(",");
    let index = format!(r#"{{"weight_map":{{{map}}}}}"#).into_bytes();
    let server = Server::start(move |asked, out| match asked.target() {
        "/1.safetensors" => good(asked, &first, out),
        "/2.safetensors" => good(asked, &second, out),
        "/m.safetensors.index.json" => good(asked, &index, out),
        _ => {
            out.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")?;
            Ok(After::Close)
        }
    });
    let url = format!(
        "http://{}:{}/m.safetensors.index.json",
        V4.host, server.port
    );
    let opened = Checkpoint::open(loader, HttpRequest::new(url.parse().unwrap()));
    Arc::new(opened.expect("it opens"))
}

/// Returns the bytes of each tensor.
fn expected(name: &str) -> Vec<u8> {
    let (a, b) = (
        pattern(10 + 3_000_000 + 2 * MIB),
        pattern(1_400_000 + 7 + 3_000_000),
    );
    match name {
        "a0" => a[..10].to_vec(),
        "a1" => a[10..3_000_010].to_vec(),
        "a2" => Vec::new(),
        "a3" => a[3_000_010..].to_vec(),
        "b0" => b[..1_400_000].to_vec(),
        "b1" => b[1_400_000..1_400_007].to_vec(),
        "b2" => b[1_400_007..].to_vec(),
        other => panic!("{other}"),
    }
}

fn all(checkpoint: &Checkpoint) -> Vec<Selected> {
    let select = |number| checkpoint.select(number, &[]).expect("a tensor");
    (0..checkpoint.tensors().len()).map(select).collect()
}

fn start(
    loader: &Loader,
    checkpoint: &Arc<Checkpoint>,
    selected: Vec<Selected>,
    settings: StreamSettings,
) -> Result<TensorStream<String>, StreamFailure<String>> {
    let alloc = |bytes| Dmabuf::anonymous(bytes).map_err(|error| told(&error));
    let checkpoint = Arc::clone(checkpoint);
    TensorStream::start(loader.clone(), checkpoint, selected, settings, alloc, || {})
}

/// Takes a tensor; `None` at the end.
fn take(stream: &mut TensorStream<String>) -> Option<Arrived> {
    match stream.next(PATIENCE).expect("no failure") {
        NextTensor::Tensor(arrived) => Some(arrived),
        NextTensor::NotYet => panic!("nothing came"),
        NextTensor::End => None,
    }
}

fn bytes_of(arrived: &Arrived) -> Vec<u8> {
    let end = arrived.offset + arrived.selected.bytes as usize;
    arrived.memory.slice(arrived.offset..end).to_vec()
}

#[test]
fn tensors_of_all_files_come_once_each_in_memory_that_is_free_when_it_is_dropped() {
    in_netns(
        "tensors::tensors_of_all_files_come_once_each_in_memory_that_is_free_when_it_is_dropped",
        || {
            let world = World::new(V4);
            let loader = Loader::new(&world.nic).piece_bytes(1 << 20);
            let checkpoint = checkpoint(&loader);
            for (sharing, limit) in [
                (Sharing::SmallTensors, 4 * MIB),
                (Sharing::Windows, 4 * MIB),
                (Sharing::SmallTensors, 100 * MIB),
            ] {
                let mut settings = StreamSettings::new(limit as u64);
                settings.sharing = sharing;
                let mut stream = start(&loader, &checkpoint, all(&checkpoint), settings).unwrap();
                let mut seen = HashMap::new();
                while let Some(arrived) = take(&mut stream) {
                    let tensor = &checkpoint.tensors()[arrived.selected.tensor];
                    assert!(bytes_of(&arrived) == expected(&tensor.name), "{tensor:?}");
                    let came = seen.insert(tensor.name.clone(), arrived.is_last);
                    assert_eq!(came, None, "{} came twice", tensor.name);
                }
                assert_eq!(seen.len(), 7);
                assert!(seen.values().any(|is_last| *is_last));
                let (done, total) = stream.progress();
                assert_eq!(
                    (done, total),
                    (checkpoint.tensor_bytes(), checkpoint.tensor_bytes())
                );
            }
            drop(checkpoint);
            world.end();
        },
    );
}

#[test]
fn the_next_tensors_wait_until_there_is_room_for_them() {
    in_netns(
        "tensors::the_next_tensors_wait_until_there_is_room_for_them",
        || {
            let world = World::new(V4);
            let loader = Loader::new(&world.nic);
            let checkpoint = checkpoint(&loader);
            let mut settings = StreamSettings::new(6 * MIB as u64);
            settings.patience = Duration::from_millis(50);
            let mut stream = start(&loader, &checkpoint, all(&checkpoint), settings).unwrap();
            let (mut held, mut starved) = (Vec::new(), 0);
            let begun = Instant::now();
            loop {
                match stream.next(10 * PATIENCE) {
                    Ok(NextTensor::Tensor(arrived)) => held.push(arrived),
                    Ok(NextTensor::End) => break,
                    Ok(NextTensor::NotYet) => panic!("nothing came"),
                    Err(StreamFailure::Held {
                        held: bytes,
                        needed,
                        limit,
                    }) => {
                        assert!(bytes <= limit && bytes + needed > limit && limit == 6 << 20);
                        starved += 1;
                        held.clear();
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            // 9.5 MB do not fit at once.
            assert!(starved >= 1);
            assert!(
                begun.elapsed() < PATIENCE,
                "told after the limit of the call"
            );
            let too_small = StreamSettings::new(2 * MIB as u64);
            match start(&loader, &checkpoint, all(&checkpoint), too_small) {
                Err(StreamFailure::TooLarge { name, .. }) => assert_eq!(name, "a1"),
                other => panic!("{other:?}"),
            }
            drop(checkpoint);
            world.end();
        },
    );
}

#[test]
fn columns_land_without_what_is_between_them() {
    in_netns("tensors::columns_land_without_what_is_between_them", || {
        let world = World::new(V4);
        let loader = Loader::new(&world.nic);
        let checkpoint = checkpoint(&loader);
        let number = |name: &str| {
            let named = checkpoint.tensors().iter().position(|it| it.name == name);
            named.expect("a tensor")
        };
        for merge_gap in [0, 32 << 10] {
            let selected = vec![
                checkpoint
                    .select(number("b2"), &[100..800, 250..750])
                    .unwrap(),
                checkpoint
                    .select(number("a1"), &[0..300, 2999..3000])
                    .unwrap(),
            ];
            let mut settings = StreamSettings::new(8 * MIB as u64);
            settings.merge_gap = merge_gap;
            let mut stream = start(&loader, &checkpoint, selected, settings).unwrap();
            let mut seen = 0;
            while let Some(arrived) = take(&mut stream) {
                let tensor = &checkpoint.tensors()[arrived.selected.tensor];
                let whole = expected(&tensor.name);
                let part: Vec<u8> = match tensor.name.as_str() {
                    "b2" => (100..800)
                        .flat_map(|row| &whole[row * 1000 + 250..][..500])
                        .copied()
                        .collect(),
                    _ => (0..300).map(|row| whole[row * 3000 + 2999]).collect(),
                };
                assert!(bytes_of(&arrived) == part, "{} {merge_gap}", tensor.name);
                seen += 1;
            }
            assert_eq!(seen, 2);
        }
        drop(checkpoint);
        world.end();
    });
}

#[test]
fn a_stream_that_is_dropped_ends_its_load_and_one_that_fails_says_so() {
    in_netns(
        "tensors::a_stream_that_is_dropped_ends_its_load_and_one_that_fails_says_so",
        || {
            let world = World::new(V4);
            let loader = Loader::new(&world.nic);
            let checkpoint = checkpoint(&loader);
            let settings = StreamSettings::new(4 * MIB as u64);
            let mut stream = start(&loader, &checkpoint, all(&checkpoint), settings).unwrap();
            let kept = take(&mut stream).expect("a tensor");
            let begun = Instant::now();
            drop(stream);
            assert!(begun.elapsed() < PATIENCE);
            drop(kept);

            let (tell, told) = channel();
            let alloc = |_| Err("no memory today".to_owned());
            let ready = move || {
                let _ = tell.send(());
            };
            let (of, selected) = (Arc::clone(&checkpoint), all(&checkpoint));
            let mut stream =
                TensorStream::start(loader, of, selected, settings, alloc, ready).unwrap();
            told.recv_timeout(PATIENCE)
                .expect("there is something to take");
            let failed = stream.next(PATIENCE);
            assert!(matches!(failed, Err(StreamFailure::Memory(why)) if why == "no memory today"));
            assert!(matches!(stream.next(PATIENCE), Ok(NextTensor::End)));
            drop((stream, checkpoint));
            world.end();
        },
    );
}
