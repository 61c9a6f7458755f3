//! The tokio adapter over the user-space stack, in real time.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use devmem_tcp::tokio::{Listener, Stream};
use devmem_tcp::{
    ConnectOptions, Dmabuf, ErrorKind, Frag, Netdev, Placement, RecvError, RxBatch, tcp::Keepalive,
};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

use crate::common::{PATIENCE, pattern};

const PORT: u16 = 5201;

fn to() -> SocketAddr {
    SocketAddr::from(([10, 77, 0, 2], PORT))
}

/// Two threads: tasks run at the same time as each other and as the stack's own thread.
fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs a test, within bounds.
fn run(test: impl Future<Output = ()>) {
    let bounded = async { tokio::time::timeout(PATIENCE, test).await };
    runtime().block_on(bounded).expect("it ends");
}

/// Polls once: whether the future is done.
async fn is_ready<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        let ready = std::pin::Pin::new(&mut *future).poll(cx).is_ready();
        std::task::Poll::Ready(ready)
    })
    .await
}

fn nics(wire: &str) -> (Netdev, Netdev) {
    let link = format!("mem:tokio-{wire}");
    let a = Netdev::user(&link, "10.77.0.1/24").expect("one end");
    let b = Netdev::user(&link, "10.77.0.2/24").expect("the other");
    (a, b)
}

#[test]
fn a_listener_of_several_shards_accepts_from_all_of_them() {
    let open = |address: &str| {
        let builder = Netdev::builder("mem:tokio-shards").and_then(|it| it.address(address));
        builder.and_then(|it| it.shards(2).open()).expect("an end")
    };
    let (a, b) = (open("10.77.0.1/24"), open("10.77.0.2/24"));
    run(async {
        let listener = Listener::new(b.listen(to()).expect("free")).expect("a runtime");
        let accepting = tokio::spawn(async move {
            let mut on_shards = [0; 2];
            for _ in 0..8 {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                on_shards[stream.shard()] += 1;
                stream.write_all(b"welcome").await.expect("room");
            }
            on_shards
        });
        for number in 0..8 {
            let mut stream = Stream::connect(&a, to()).await.expect("it listens");
            assert_eq!(stream.shard(), number % 2);
            let mut got = [0; 7];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut got)
                .await
                .expect("all of it");
            assert_eq!(&got, b"welcome");
        }
        assert_eq!(accepting.await.expect("no panic"), [4, 4]);
    });
}

/// Two NICs and a connection from the first to the second.
async fn connected(wire: &str) -> (Netdev, Netdev, Stream, Stream) {
    let (a, b) = nics(wire);
    let listener = Listener::new(b.listen(to()).expect("the port is free")).expect("a listener");
    let (connecting, accepting) = (Stream::connect(&a, to()), listener.accept());
    let (sender, accepted) = both(connecting, accepting).await;
    let (sender, (receiver, peer)) = (sender.expect("open"), accepted.expect("open"));
    assert_eq!(peer, sender.local_addr().expect("open"));
    (a, b, sender, receiver)
}

/// Awaits two futures at once, in one task.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut from_a, mut from_b) = (None, None);
    std::future::poll_fn(move |cx| {
        use std::task::Poll::{Pending, Ready};
        if from_a.is_none()
            && let Ready(output) = a.as_mut().poll(cx)
        {
            from_a = Some(output);
        }
        if from_b.is_none()
            && let Ready(output) = b.as_mut().poll(cx)
        {
            from_b = Some(output);
        }
        match (from_a.take(), from_b.take()) {
            (Some(a), Some(b)) => Ready((a, b)),
            (a, b) => {
                (from_a, from_b) = (a, b);
                Pending
            }
        }
    })
    .await
}

fn device(bytes: &[u8]) -> Dmabuf {
    let memory = Dmabuf::anonymous(bytes.len().next_multiple_of(4096)).expect("memory");
    memory.copy_in(0, bytes).expect("it fits");
    memory
}

/// Receives until the end, from host memory or `memory`.
async fn receive_all(stream: &mut Stream, memory: Option<&Dmabuf>) -> Vec<u8> {
    let mut batch = RxBatch::with_capacity(64);
    let mut bytes = Vec::new();
    while stream.recv(&mut batch).await.expect("alive") > 0 {
        for frag in &batch {
            match frag {
                Frag::Linear(linear) => bytes.extend_from_slice(linear),
                Frag::Device { range, .. } => {
                    let memory = memory.expect("nothing is bound");
                    bytes.extend(memory.slice(range).to_vec());
                }
            }
        }
    }
    bytes
}

#[test]
fn device_memory_to_device_memory_and_every_send_completes() {
    run(async {
        let (a, b) = nics("device");
        let rx_memory = Dmabuf::anonymous(4 << 20).expect("memory");
        let setup = b.plan_receive(to()).apply().expect("set up");
        let rx = b.bind_rx(&rx_memory, setup.queues()).expect("bound");
        let listener = Listener::new(b.listen(to()).expect("free")).expect("a listener");
        assert_eq!(listener.local_addr().expect("it listens"), to());
        let sent = pattern(6_000_000);
        let tx_memory = device(&sent);
        let tx = a.bind_tx(&tx_memory).expect("bound");
        let sending = async {
            let mut stream = Stream::connect(&a, to()).await.expect("it listens");
            let id = stream
                .send_all(&tx, &[0..1, 1..6_000_000])
                .await
                .expect("sent");
            assert_eq!(id.bytes(), 6_000_000);
            let completions = stream.completions().expect("an fd");
            stream.shutdown_write().expect("open");
            completions.wait(id).await.expect("acknowledged");
            assert_eq!(completions.get_ref().pending().expect("open"), 0);
            stream
        };
        let receiving = async {
            let (mut stream, _) = listener.accept().await.expect("it connects");
            stream.set_placement(Placement::Strict);
            receive_all(&mut stream, Some(&rx_memory)).await
        };
        let (_stream, received) = both(sending, receiving).await;
        assert!(received == sent, "the bytes differ");
        assert_eq!(tx.in_flight(), 0);
        drop(listener);
        let count = rx.unbind().net_iovs();
        assert_eq!(count.home, count.total, "net_iovs that are not home");
    });
}

#[test]
fn a_full_queue_lets_the_task_wait_until_there_is_room() {
    run(async {
        let (a, _b, mut sender, mut receiver) = connected("full").await;
        let sent = pattern(1 << 20);
        let tx = a.bind_tx(&device(&sent)).expect("bound");
        // The peer does not read: send buffer and window fill up.
        let mut queued = 0;
        while is_ready(&mut Box::pin(async {
            let id = sender.send(&tx, &[0..1 << 20]).await.expect("room");
            queued += id.bytes();
        }))
        .await
        {}
        assert!(queued > 1 << 20, "{queued} bytes fill the queue");
        let sending = async {
            let last = sender
                .send_all(&tx, &[0..1000])
                .await
                .expect("there is room");
            assert_eq!(last.bytes(), 1000);
            sender.shutdown_write().expect("open");
        };
        let ((), received) = both(sending, receive_all(&mut receiver, None)).await;
        assert_eq!(received.len(), queued + 1000);
        assert!(received.ends_with(&sent[..1000]), "the last bytes differ");
    });
}

#[test]
fn host_bytes_are_written_as_to_any_other_stream() {
    run(async {
        let (_a, _b, mut sender, mut receiver) = connected("host").await;
        let sent = pattern(20_000_000);
        let sending = async {
            sender.write_all(&sent).await.expect("sent");
            sender.shutdown().await.expect("open");
        };
        let ((), received) = both(sending, receive_all(&mut receiver, None)).await;
        assert!(received == sent, "the bytes differ");
    });
}

#[test]
fn a_receive_that_is_dropped_loses_nothing() {
    run(async {
        let (_a, _b, mut sender, mut receiver) = connected("cancel").await;
        let sent = pattern(3_000_000);
        let writing = async {
            for piece in sent.chunks(10_000) {
                sender.write_all(piece).await.expect("sent");
                tokio::task::yield_now().await;
            }
            sender.shutdown().await.expect("open");
        };
        let reading = async {
            let mut batch = RxBatch::with_capacity(64);
            let mut received = Vec::new();
            let mut dropped = 0;
            loop {
                let mut bytes = None;
                // Given up when it is not ready at once, as by a select! whose other branch was first.
                let was_ready = is_ready(&mut Box::pin(async {
                    bytes = Some(receiver.recv(&mut batch).await.expect("alive"));
                }))
                .await;
                if !was_ready {
                    dropped += 1;
                    tokio::task::yield_now().await;
                    continue;
                }
                for frag in &batch {
                    let Frag::Linear(linear) = frag else {
                        panic!("nothing is bound");
                    };
                    received.extend_from_slice(linear);
                }
                if bytes == Some(0) {
                    return (received, dropped);
                }
            }
        };
        let ((), (received, dropped)) = both(writing, reading).await;
        assert!(received == sent, "the bytes differ");
        assert!(dropped > 0, "no receive was dropped");
    });
}

#[test]
fn many_connections_share_two_threads() {
    const CONNECTIONS: usize = 32;
    const BYTES: usize = 200_000;
    run(async {
        let (a, b) = nics("many");
        let listener = Listener::new(b.listen(to()).expect("free")).expect("a listener");
        let sent = std::sync::Arc::new(pattern(BYTES));
        let memory = device(&sent);
        let tx = std::sync::Arc::new(a.bind_tx(&memory).expect("bound"));
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (a, tx) = (a.clone(), std::sync::Arc::clone(&tx));
                tokio::spawn(async move {
                    let mut stream = Stream::connect(&a, to()).await.expect("it listens");
                    for start in (0..BYTES).step_by(4097) {
                        let range = start..(start + 4097).min(BYTES);
                        let id = stream.send_all(&tx, &[range]).await.expect("sent");
                        if start % 2 == 0 {
                            let completions = stream.completions().expect("an fd");
                            completions.wait(id).await.expect("acknowledged");
                        }
                    }
                    let completions = stream.completions().expect("an fd");
                    drop(stream);
                    completions.wait_all().await.expect("acknowledged");
                })
            })
            .collect();
        let mut receivers = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().await.expect("it connects");
            let sent = std::sync::Arc::clone(&sent);
            receivers.push(tokio::spawn(async move {
                assert!(
                    receive_all(&mut stream, None).await == *sent,
                    "the bytes differ"
                );
            }));
        }
        for task in senders.into_iter().chain(receivers) {
            task.await.expect("no task fails");
        }
        assert_eq!(tx.in_flight(), 0);
    });
}

#[test]
fn completions_tell_every_task_that_waits_whoever_reads_the_error_queue() {
    run(async {
        let (a, _b, mut sender, mut receiver) = connected("tell").await;
        let tx = a.bind_tx(&device(&pattern(100_000))).expect("bound");
        let completions = std::sync::Arc::new(sender.completions().expect("an fd"));
        let mut waiting = Vec::new();
        for start in (0..100_000).step_by(1000) {
            let id = sender
                .send_all(&tx, &[start..start + 1000])
                .await
                .expect("sent");
            let shared = std::sync::Arc::clone(&completions);
            let own = sender.completions().expect("an fd");
            waiting.push(tokio::spawn(async move { shared.wait(id).await }));
            waiting.push(tokio::spawn(async move { own.wait(id).await }));
        }
        sender.shutdown_write().expect("open");
        assert_eq!(receive_all(&mut receiver, None).await.len(), 100_000);
        for task in waiting {
            task.await.expect("no panic").expect("acknowledged");
        }
    });
}

#[test]
fn several_tasks_accept_from_one_listener() {
    run(async {
        let (a, b) = nics("accept");
        let listener = Listener::new(b.listen(to()).expect("free")).expect("a listener");
        let listener = std::sync::Arc::new(listener);
        let accepting: Vec<_> = (0..8)
            .map(|_| {
                let listener = std::sync::Arc::clone(&listener);
                tokio::spawn(async move { listener.accept().await.expect("it connects").1 })
            })
            .collect();
        let mut open = Vec::new();
        for _ in 0..8 {
            open.push(Stream::connect(&a, to()).await.expect("it listens"));
        }
        let mut accepted = Vec::new();
        for task in accepting {
            accepted.push(Some(task.await.expect("no panic")));
        }
        for stream in &open {
            assert!(accepted.contains(&stream.local_addr().ok()));
        }
    });
}

#[test]
fn a_refused_connection_and_a_reset_are_errors_of_the_call() {
    run(async {
        let (a, b) = nics("errors");
        let refused = Stream::connect(&a, to())
            .await
            .expect_err("there is no listener");
        assert!(refused.remedy().is_some(), "{refused}");

        let listener = Listener::new(b.listen(to()).expect("free")).expect("a listener");
        let (sender, accepted) = both(Stream::connect(&a, to()), listener.accept()).await;
        let (mut sender, (mut receiver, _)) = (sender.expect("open"), accepted.expect("open"));
        sender.write_all(b"never read").await.expect("sent");
        let mut batch = RxBatch::with_capacity(4);
        assert_eq!(receiver.recv(&mut batch).await.expect("alive"), 10);
        sender.write_all(b"never read").await.expect("sent");
        // Closed with unread bytes: a reset, once they are there.
        while receiver.tcp_info().is_some_and(|info| info.readable == 0) {
            tokio::task::yield_now().await;
        }
        drop((receiver, batch));
        let tx = a.bind_tx(&device(&[0; 4096])).expect("bound");
        let error = loop {
            match sender.send(&tx, &[0..4096]).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(!error.kind().is_not_ready(), "{error:?}");
        // The peer's end of the stream may come before its reset.
        let mut ends = Vec::new();
        while ends.len() < 2 {
            ends.push(sender.recv(&mut RxBatch::with_capacity(4)).await);
        }
        assert!(
            ends.iter()
                .all(|end| matches!(end, Ok(0) | Err(RecvError::Failed(_)))),
            "{ends:?}"
        );
    });
}

#[test]
fn a_stream_converted_back_blocks_as_before() {
    run(async {
        let (_a, _b, mut sender, receiver) = connected("taken-out").await;
        sender.write_all(b"hello").await.expect("sent");
        let read = tokio::task::spawn_blocking(move || {
            let mut stream = receiver.into_inner();
            let mut batch = RxBatch::with_capacity(4);
            stream.recv(&mut batch).expect("alive")
        });
        assert_eq!(read.await.expect("no panic"), 5);
    });
}

/// The kernel's own sockets, over its loopback: what the adapter waits by is the kernel's to make ready.
#[test]
fn the_kernels_sockets_are_awaited_in_the_same_way() {
    run(async {
        let nic = Netdev::kernel("lo").expect("every machine has it");
        let listener = nic.listen("127.0.0.1:0").expect("a free port");
        let listener = Listener::new(listener).expect("a listener");
        let to = listener.local_addr().expect("it listens");
        let (connecting, accepting) = (Stream::connect(&nic, to), listener.accept());
        let (sender, accepted) = both(connecting, accepting).await;
        let (mut sender, (mut receiver, _)) = (sender.expect("open"), accepted.expect("open"));
        let sent = pattern(8_000_000);
        let sending = async {
            // Copied, then not copied, and told so.
            sender.write_all(&sent[..4_000_000]).await.expect("sent");
            let completions = sender.completions().expect("an fd");
            for piece in sent[4_000_000..].chunks(100_000) {
                let id = sender.send_host_all(&piece.into()).await.expect("sent");
                assert_eq!(id.bytes(), piece.len());
                completions.wait(id).await.expect("acknowledged");
            }
            completions.wait_all().await.expect("acknowledged");
            assert_eq!(completions.get_ref().pending().expect("open"), 0);
            sender.shutdown_write().expect("open");
        };
        let ((), received) = both(sending, receive_all(&mut receiver, None)).await;
        assert!(received == sent, "the bytes differ");
    });
}

#[test]
fn the_kernels_completions_come_while_the_peer_reads_late() {
    run(async {
        let nic = Netdev::kernel("lo").expect("every machine has it");
        let listener = nic.listen("[::1]:0").expect("a free port");
        let listener = Listener::new(listener).expect("a listener");
        let to = listener.local_addr().expect("it listens");
        let (connecting, accepting) = (Stream::connect(&nic, to), listener.accept());
        let (sender, accepted) = both(connecting, accepting).await;
        let (mut sender, (mut receiver, _)) = (sender.expect("open"), accepted.expect("open"));
        // Until nothing more fits.
        let bytes: std::sync::Arc<[u8]> = pattern(1 << 20).into();
        let mut queued = 0;
        while is_ready(&mut Box::pin(async {
            queued += sender
                .send_host(&bytes, 0..1 << 20)
                .await
                .expect("room")
                .bytes();
        }))
        .await
        {}
        let completions = sender.completions().expect("an fd");
        let sending = async {
            // There is room again, and everything completes, only because the other task reads.
            queued += sender
                .send_host(&bytes, 0..1 << 20)
                .await
                .expect("room")
                .bytes();
            sender.shutdown_write().expect("open");
            completions.wait_all().await.expect("acknowledged");
        };
        let ((), received) = both(sending, receive_all(&mut receiver, None)).await;
        assert_eq!(received.len(), queued);
        // Nobody listens there any more.
        drop((listener, receiver));
        let refused = Stream::connect(&nic, to)
            .await
            .expect_err("there is no listener");
        assert!(refused.remedy().is_some(), "{refused}");
    });
}

#[test]
fn virtual_time_is_refused() {
    run(async {
        let (_a, b) = Netdev::pair("".parse().expect("no impairment")).expect("a pair");
        let error = Listener::new(b.listen(to()).expect("free")).expect_err("virtual time");
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        let listener = b
            .listen((std::net::Ipv4Addr::new(10, 77, 0, 2), 0))
            .expect("free");
        listener.set_nonblocking(true);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_task_reads_bytes_out_of_device_memory_and_has_the_options_of_tokio() {
    run(async {
        let (a, b) = nics("read-device");
        let memory = Dmabuf::anonymous(4 << 20).expect("memory");
        let plan = b.plan_receive(to()).queues(1);
        let setup = plan.apply().expect("it has two queues");
        let rx = b.bind_rx(&memory, setup.queues()).expect("bound");
        let listener = Listener::new(b.listen(to()).expect("free")).expect("a runtime");
        let from = ConnectOptions::new().source(([10, 77, 0, 1], 40_000).into());
        // Nothing listens at the first address.
        let peers = [([10, 77, 0, 2], 9).into(), to()];
        let connecting = Stream::connect_with(&a, &peers[..], &from);
        let (sender, accepted) = both(connecting, listener.accept()).await;
        let (mut sender, (mut receiver, _)) = (sender.expect("open"), accepted.expect("open"));
        sender.set_nodelay(true).expect("open");
        assert!(sender.nodelay().expect("open"));
        sender
            .set_keepalive(Some(Keepalive::default()))
            .expect("valid");
        receiver.set_linger(Some(Duration::ZERO)).expect("open");

        sender.write_all(&pattern(100_000)).await.expect("room");
        sender.flush().await.expect("open");
        let mut read = vec![0; 100_000];
        let all = tokio::io::AsyncReadExt::read_exact(&mut receiver, &mut read);
        all.await.expect("all of it");
        assert!(read == pattern(100_000));
        assert_eq!(receiver.stats().device_bytes, 100_000);
        drop(receiver);
        let reset = loop {
            if let Some(error) = sender.take_error().expect("open") {
                break error;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
        drop(sender);
        let count = rx.unbind().net_iovs();
        assert_eq!(count.home, count.total);
    });
}
