//! Halves, host bytes and completions for tasks, on both backends.

use std::net::{Ipv4Addr, SocketAddr};

use devmem_tcp::tokio::{Listener, Stream};
use devmem_tcp::{ConnectOptions, Dmabuf, EarlyCookie, EarlyData, Netdev, RxBatch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::PATIENCE;

/// Runs `test` on a connection of each backend: both ends.
fn on_both<F: Future<Output = ()>>(wire: &str, test: impl Fn(Stream, Stream) -> F) {
    on_both_nics(wire, |a, b, ip| {
        let test = &test;
        async move {
            let listener = Listener::new(b.listen(ip).unwrap()).unwrap();
            let to: SocketAddr = listener.local_addr().unwrap();
            let (near, far) = tokio::join!(Stream::connect(&a, to), listener.accept());
            test(near.unwrap(), far.unwrap().0).await;
        }
    });
}

/// Runs `test` with two NICs of each backend, and an address of the second.
fn on_both_nics<F: Future<Output = ()>>(
    wire: &str,
    test: impl Fn(Netdev, Netdev, &'static str) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let link = format!("mem:halves-{wire}");
    let user = [1, 2].map(|end| Netdev::user(&link, &format!("10.77.0.{end}/24")).unwrap());
    let lo = Netdev::kernel("lo").unwrap();
    for ([a, b], ip) in [(user, "10.77.0.2:0"), ([lo.clone(), lo], "127.0.0.1:0")] {
        let run = test(a, b, ip);
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, run).await })
            .expect("in time");
    }
}

#[test]
fn two_tasks_use_the_halves_of_a_stream() {
    on_both("tokio-halves", |near, far| async {
        const BYTES: usize = 2_000_000;
        let echo = tokio::spawn(async move {
            let (mut from, mut to) = far.into_split();
            tokio::io::copy(&mut from, &mut to).await.unwrap()
        });
        let (mut from, mut to) = near.into_split();
        let writing = tokio::spawn(async move {
            to.write_all(&vec![7; BYTES]).await.unwrap();
            // The end of the stream is the half that is dropped.
        });
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        writing.await.unwrap();
        assert_eq!(echo.await.unwrap(), BYTES as u64);
        assert!(received == vec![7; BYTES]);
    });
}

#[test]
fn a_task_connects_with_data_in_its_syn() {
    on_both_nics("tokio-early", |a, b, ip| async move {
        let listener = Listener::new(b.listen(ip).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let is_user = to.ip() != Ipv4Addr::LOCALHOST;
        if is_user {
            // The kernel's setting may forbid it, and the test of the kernel's calls has it in a namespace.
            listener.set_fast_open(4).unwrap();
            listener.set_early_cookie(EarlyCookie::NotNeeded).unwrap();
        }
        // More than a SYN, and more than the send queue.
        let bytes: Vec<u8> = (0..20_000_000).map(|at| (at / 7) as u8).collect();
        let memory = Dmabuf::anonymous(1 << 20).unwrap();
        memory.copy_in(0, &bytes[..1 << 20]).unwrap();
        let tx = a.bind_tx(&memory).ok();
        let ranges = [0..4096, 4096..1 << 20];
        let early = [
            Some(EarlyData::Host(&bytes)),
            tx.as_ref().map(|tx| EarlyData::Device(tx, &ranges)),
        ];
        for data in early.into_iter().flatten() {
            let options = ConnectOptions::new().early_cookie(EarlyCookie::NotNeeded);
            let receiving = async {
                let (mut far, _) = listener.accept().await.unwrap();
                let mut received = vec![0; data.len()];
                far.read_exact(&mut received).await.unwrap();
                assert!(received == bytes[..data.len()], "the bytes differ");
            };
            let connecting = Stream::connect_with_data(&a, to, &options, data);
            let (connected, ()) = tokio::join!(connecting, receiving);
            let (stream, sent) = connected.unwrap();
            assert_eq!(sent.bytes(), data.len());
            if is_user {
                assert!(stream.tcp_info().unwrap().syn_data_acked);
                stream.completions().unwrap().wait(sent).await.unwrap();
            }
        }
    });
}

#[test]
fn a_task_peeks_and_receives_at_most_the_requested_bytes() {
    on_both("tokio-peek", |mut near, mut far| async move {
        near.write_all(b"headerbody").await.unwrap();
        let mut head = [0; 6];
        assert_eq!(far.peek(&mut head).await.unwrap(), 6);
        assert_eq!(&head, b"header");
        let mut batch = RxBatch::with_capacity(4);
        assert_eq!(far.recv_at_most(&mut batch, 6).await.unwrap(), 6);
        assert_eq!(far.recv(&mut batch).await.unwrap(), 4);
    });
}

#[test]
fn completions_are_a_stream_that_ends_with_the_last_send() {
    use std::future::poll_fn;
    use std::pin::Pin;

    use futures_core::Stream as _;
    on_both("tokio-completions", |mut near, mut far| async move {
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).await.unwrap();
            bytes.len()
        });
        let mut reports = near.completions().unwrap().into_stream();
        let mut ids = Vec::new();
        for len in [1usize, 1000, 300_000] {
            ids.push(near.send_host_all(&vec![7; len].into()).await.unwrap());
        }
        let bytes: usize = ids.iter().map(|id| id.bytes()).sum();
        let sending = tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(near);
        });
        let mut complete: Vec<&devmem_tcp::SendId> = Vec::new();
        while let Some(report) = poll_fn(|cx| Pin::new(&mut reports).poll_next(cx)).await {
            let report = report.unwrap();
            complete.extend(ids.iter().filter(|id| report.contains(**id)));
        }
        assert_eq!(
            complete,
            ids.iter().collect::<Vec<_>>(),
            "each once, in order"
        );
        sending.await.unwrap();
        assert_eq!(reading.await.unwrap(), bytes);
    });
}

#[test]
fn a_task_receives_exactly_what_it_asks_for_and_learns_of_the_end() {
    on_both("exact", |mut near, mut far| async move {
        let wanted = async {
            let mut header = [0; 6];
            far.recv_exact(&mut header).await.unwrap();
            assert_eq!(&header, b"header");
            let ended = far.recv_exact(&mut [0; 5]).await.unwrap_err();
            assert_eq!(ended.kind(), devmem_tcp::ErrorKind::UnexpectedEof);
            assert_eq!(ended.reason(), "the stream ended after 4 of 5 bytes");
        };
        let written = async {
            near.write_all(b"he").await.unwrap();
            near.flush().await.unwrap();
            near.write_all(b"aderbody").await.unwrap();
            near.shutdown_write().unwrap();
        };
        tokio::join!(wanted, written);
    });
}
