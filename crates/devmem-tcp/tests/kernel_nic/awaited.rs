//! The tokio adapter: device memory both ways, awaited.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use devmem_tcp::tokio::{Listener, Stream};
use devmem_tcp::{Errno, Placement, RxBatch};
use tokio::runtime::Builder;

use crate::bench::{Bench, PATIENCE, collect, memory, read, write};
use crate::common::pattern;

/// Runs a test on two threads, within bounds.
fn run(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let bounded = async { tokio::time::timeout(PATIENCE, test).await };
    runtime.block_on(bounded).expect("it ends");
}

/// Polls once: what there is now.
async fn now<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn a_task_awaits_device_memory_both_ways_on_one_connection() {
    const TEST: &str = "awaited::a_task_awaits_device_memory_both_ways_on_one_connection";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    run(async {
        let receiver = bench.receiver(1);
        let tx_memory = memory();
        let answer = pattern(tx_memory.size());
        tx_memory.copy_in(0, &answer).unwrap();
        let tx = bench.nic.bind_tx(&tx_memory).unwrap();
        let listener = Listener::new(receiver.listener).unwrap();
        let peer = bench.connect_from_peer();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_placement(Placement::Strict);

        let question = pattern(3_000_000);
        let (peer_reads, peer_writes) = (peer.try_clone().unwrap(), question.clone());
        let reader = read(peer_reads);
        let writer = std::thread::spawn(move || {
            use std::io::Write;
            (&peer).write_all(&peer_writes).unwrap();
            peer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut batch = RxBatch::with_capacity(256);
        let mut received = Vec::new();
        while stream.recv(&mut batch).await.unwrap() > 0 {
            collect(&batch, &receiver.memory, &mut received);
        }
        writer.join().unwrap();
        assert!(received == question, "the question differs");
        let stats = stream.stats();
        assert_eq!((stats.device_bytes, stats.linear_bytes), (3_000_000, 0));

        let id = stream.send_all(&tx, &[0..tx_memory.size()]).await.unwrap();
        let completions = stream.completions().unwrap();
        completions.wait(id).await.unwrap();
        tx_memory.fill(0..tx_memory.size(), 0xff).unwrap();
        let counts = completions.get_ref().counts().unwrap();
        assert_eq!((counts.complete, counts.copied), (counts.sent, 0));
        assert_eq!(tx.in_flight(), 0);
        stream.shutdown_write().unwrap();
        assert!(reader.join().unwrap() == answer, "the answer differs");
    });
}

#[test]
fn a_full_send_queue_is_awaited_and_completions_wake_every_task() {
    const TEST: &str = "awaited::a_full_send_queue_is_awaited_and_completions_wake_every_task";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    run(async {
        let memory = memory();
        let bytes = pattern(memory.size());
        memory.copy_in(0, &bytes).unwrap();
        let tx = bench.nic.bind_tx(&memory).unwrap();
        let listener = bench.listen_at_peer();
        let to = (bench.peer_ip(), listener.local_addr().unwrap().port());
        let mut stream = Stream::connect(&bench.nic, to).await.unwrap();
        let (peer, _) = listener.accept().unwrap();

        // The peer reads nothing yet: at some point nothing more fits, and a send that is given up has sent nothing.
        let mut queued = Vec::new();
        let mut ids = Vec::new();
        while let Some(sent) = now(pin!(stream.send(&tx, &[0..memory.size()]))).await {
            let id = sent.unwrap();
            queued.extend_from_slice(&bytes[..id.bytes()]);
            ids.push(id);
        }
        let first = *ids.first().expect("something fits");
        let completions = stream.completions().unwrap();
        let last = *ids.last().expect("something fits");
        assert!(now(pin!(completions.wait(last))).await.is_none());

        let reader = read(peer);
        let next = stream.send(&tx, &[0..1000]).await.unwrap();
        queued.extend_from_slice(&bytes[..next.bytes()]);
        // Two more tasks wait beside this one; all of them wake, whichever reads the error queue.
        let others = [first, last].map(|id| {
            let completions = stream.completions().unwrap();
            tokio::spawn(async move { completions.wait(id).await })
        });
        completions.wait_all().await.unwrap();
        for other in others {
            other.await.unwrap().unwrap();
        }
        assert_eq!(
            (tx.in_flight(), completions.get_ref().pending().unwrap()),
            (0, 0)
        );
        drop(stream);
        assert!(reader.join().unwrap() == queued, "the bytes differ");
    });
}

#[test]
fn a_refusal_of_the_kernel_is_the_error_of_the_awaited_call() {
    const TEST: &str = "awaited::a_refusal_of_the_kernel_is_the_error_of_the_awaited_call";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    run(async {
        let receiver = bench.receiver(1);
        let tx_memory = memory();
        let tx = bench.nic.bind_tx(&tx_memory).unwrap();
        let size = tx_memory.size();
        let listener = Listener::new(receiver.listener).unwrap();
        let peer = bench.connect_from_peer();
        let (mut stream, _) = listener.accept().await.unwrap();
        let refused = stream.send(&tx, &[size..size + 1]).await.unwrap_err();
        assert_eq!(refused.errno(), Errno::EFAULT, "{refused}");
        // And the connection is as good as before.
        let writer = write(peer, pattern(10_000));
        let mut batch = RxBatch::with_capacity(16);
        let mut received = Vec::new();
        while stream.recv(&mut batch).await.unwrap() > 0 {
            collect(&batch, &receiver.memory, &mut received);
        }
        writer.join().unwrap();
        assert!(received == pattern(10_000), "the bytes differ");
    });
}
