//! The typed API over the user-space stack: what an application may rely on.

use std::io::Write;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use devmem_tcp::tcp::Congestion;
use devmem_tcp::{
    BoundRx, ConnectOptions, Dmabuf, ErrorKind, Frag, Listener, Netdev, Placement, RecvError,
    Remedy, RxBatch, Setup, Stream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bench::{Bench, LOCAL};
use crate::common::{PATIENCE, collect, pattern};

/// Sends `bytes` and closes, from another thread.
fn send(mut stream: Stream, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || stream.write_all(&bytes).unwrap())
}

fn receive_all(stream: &mut Stream, memory: &Dmabuf) -> Vec<u8> {
    let mut batch = RxBatch::with_capacity(64);
    let mut bytes = Vec::new();
    while stream.recv(&mut batch).unwrap() > 0 {
        collect(&batch, memory, &mut bytes);
    }
    bytes
}

/// Whether the fd gets readable within the time.
fn is_readable(fd: &impl AsFd, within: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn bytes_land_in_device_memory_and_all_of_it_comes_home() {
    let bench = Bench::new("api-home");
    let (sender, mut stream) = bench.connection();
    let sent = pattern(5_000_000);
    let sending = send(sender, sent.clone());
    assert!(
        receive_all(&mut stream, &bench.memory) == sent,
        "the bytes differ"
    );
    sending.join().unwrap();
    let stats = stream.stats();
    assert_eq!((stats.device_bytes, stats.linear_bytes), (5_000_000, 0));
    assert_eq!(stats.device_frags, stats.tokens_returned);
    drop(stream);
    bench.finish();
}

#[test]
fn a_nonblocking_stream_says_would_block_and_a_timed_one_times_out() {
    let bench = Bench::new("api-nonblocking");
    let (sender, mut stream) = bench.connection();
    let mut batch = RxBatch::with_capacity(4);
    stream.set_nonblocking(true);
    assert!(matches!(
        stream.recv(&mut batch),
        Err(RecvError::WouldBlock)
    ));
    stream.set_timeout(Some(Duration::from_millis(1)));
    assert!(matches!(
        stream.recv(&mut batch),
        Err(RecvError::TimedOut { .. })
    ));
    drop((sender, stream));
    bench.finish();
}

#[test]
fn readiness_fds_follow_data_and_end_of_stream_while_no_thread_is_in_a_call() {
    let bench = Bench::new("api-readiness");
    assert!(!is_readable(&bench.listener, Duration::ZERO));
    let connecting = std::thread::spawn({
        let nic = bench.sender.clone();
        move || nic.connect(LOCAL).unwrap()
    });
    assert!(is_readable(&bench.listener, PATIENCE), "a connection waits");
    let (mut stream, _) = bench.listener.accept().unwrap();
    assert!(!is_readable(&bench.listener, Duration::ZERO));
    let mut sender = connecting.join().unwrap();
    stream.set_nonblocking(true);
    assert!(!is_readable(&stream, Duration::ZERO), "nothing was sent");

    sender.write_all(b"abc").unwrap();
    assert!(is_readable(&stream, PATIENCE), "data arrived");
    let mut batch = RxBatch::with_capacity(4);
    assert_eq!(stream.recv(&mut batch).unwrap(), 3);
    assert!(matches!(
        stream.recv(&mut batch),
        Err(RecvError::WouldBlock)
    ));
    assert!(!is_readable(&stream, Duration::ZERO), "the data was taken");

    sender.shutdown_write().unwrap();
    assert!(is_readable(&stream, PATIENCE), "the stream ended");
    assert_eq!(stream.recv(&mut batch).unwrap(), 0);
    drop((sender, stream, batch));
    bench.finish();
}

#[test]
fn taken_frags_outlive_batch_and_stream_and_keep_their_bytes() {
    let bench = Bench::new("api-taken");
    let (sender, mut stream) = bench.connection();
    let sent = pattern(300_000);
    let sending = send(sender, sent.clone());
    let mut batch = RxBatch::with_capacity(64);
    let mut kept = Vec::new();
    while stream.recv(&mut batch).unwrap() > 0 {
        kept.extend(batch.take());
        assert!(batch.is_empty());
    }
    sending.join().unwrap();
    drop((stream, batch));
    // Whoever took the memory of the closed stream would write over it now.
    let (sender, mut second) = bench.connection();
    let sending = send(sender, vec![0xee; 3_000_000]);
    assert!(
        receive_all(&mut second, &bench.memory)
            .iter()
            .all(|&byte| byte == 0xee)
    );
    sending.join().unwrap();
    drop(second);

    let mut bytes = Vec::new();
    for frag in &kept {
        match frag.as_frag() {
            Frag::Device { range, .. } => bytes.extend(bench.memory.slice(range).to_vec()),
            Frag::Linear(linear) => bytes.extend(linear),
        }
    }
    assert!(bytes == sent, "the kept bytes changed");
    let out = bench.bound.net_iovs();
    assert!(out.home < out.total, "the kept frags hold memory");
    drop(kept);
    bench.finish();
}

#[test]
fn a_batch_that_outlives_its_stream_keeps_its_bytes() {
    let bench = Bench::new("api-outlives");
    let (sender, mut stream) = bench.connection();
    let sending = send(sender, vec![1; 1000]);
    let mut batch = RxBatch::with_capacity(64);
    assert!(stream.recv(&mut batch).unwrap() > 0);
    drop(stream);
    sending.join().unwrap();
    let mut bytes = Vec::new();
    collect(&batch, &bench.memory, &mut bytes);
    assert!(!bytes.is_empty() && bytes.iter().all(|&byte| byte == 1));
    batch.release().unwrap();
    bench.finish();
}

#[test]
fn gathering_makes_a_batch_contiguous_or_names_the_missing_room() {
    let bench = Bench::new("api-gather");
    let (sender, mut stream) = bench.connection();
    let sent = pattern(200_000);
    let sending = send(sender, sent.clone());
    let target = Dmabuf::anonymous(1 << 20).unwrap();
    let mut batch = RxBatch::with_capacity(3);
    let mut at = 100;
    while stream.recv(&mut batch).unwrap() > 0 {
        at += batch.gather_into(&target, at).unwrap();
        let refused = batch.gather_into(&target, (1 << 20) - 1).unwrap_err();
        assert!(
            batch.device_bytes() == 1 || refused.kind() == ErrorKind::InvalidInput,
            "{refused}"
        );
    }
    sending.join().unwrap();
    assert!(
        target.slice(100..at).to_vec() == sent,
        "the gathered bytes differ"
    );
    drop((stream, batch));
    bench.finish();
}

#[test]
fn strict_placement_refuses_linear_bytes_and_mixed_delivers_them() {
    let sender = Netdev::user("mem:strict", "10.77.0.1/24").unwrap();
    let builder = Netdev::builder("mem:strict")
        .unwrap()
        .address("10.77.0.2/24")
        .unwrap();
    let bench = Bench::on(sender, builder.linear_bytes(16).open().unwrap());
    let (sender, mut stream) = bench.connection();
    let sent = pattern(50_000);
    let sending = send(sender, sent.clone());
    stream.set_placement(Placement::Strict);
    let mut batch = RxBatch::with_capacity(64);
    for _ in 0..2 {
        match stream.recv(&mut batch) {
            Err(RecvError::Misplaced { bytes, .. }) => {
                assert!((1..=16).contains(&bytes), "{bytes}")
            }
            other => panic!("{other:?}"),
        }
    }
    stream.set_placement(Placement::Mixed);
    assert!(
        receive_all(&mut stream, &bench.memory) == sent,
        "nothing was lost by refusing"
    );
    assert!(stream.stats().linear_bytes > 0);
    sending.join().unwrap();
    drop((stream, batch));
    bench.finish();
}

#[test]
fn a_connection_that_is_not_steered_arrives_as_plain_bytes() {
    let bench = Bench::new("api-unsteered");
    let listener = bench.receiver.listen("10.77.0.2:7000").unwrap();
    let sender = bench.sender.connect("10.77.0.2:7000").unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_timeout(Some(PATIENCE));
    let sent = pattern(700_000);
    let sending = send(sender, sent.clone());
    assert!(receive_all(&mut stream, &bench.memory) == sent);
    sending.join().unwrap();
    let stats = stream.stats();
    assert_eq!(
        (stats.device_bytes, stats.device_frags, stats.linear_bytes),
        (0, 0, 700_000)
    );
    drop((stream, listener));
    bench.finish();
}

#[test]
fn unbinding_in_mid_transfer_moves_the_rest_to_host_memory_and_loses_nothing() {
    let Bench {
        sender,
        receiver: _receiver,
        memory,
        setup,
        bound,
        listener,
    } = Bench::new("api-unbind");
    let sending_stream = sender.connect(LOCAL).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_timeout(Some(PATIENCE));
    let sent = pattern(8_000_000);
    let sending = send(sending_stream, sent.clone());
    let mut batch = RxBatch::with_capacity(8);
    let mut bytes = Vec::new();
    while bytes.len() < 1_000_000 {
        assert!(stream.recv(&mut batch).unwrap() > 0);
        collect(&batch, &memory, &mut bytes);
    }
    let unbound = bound.unbind();
    while stream.recv(&mut batch).unwrap() > 0 {
        collect(&batch, &memory, &mut bytes);
    }
    sending.join().unwrap();
    assert!(bytes == sent, "the bytes differ");
    let stats = stream.stats();
    assert!(stats.device_bytes > 0 && stats.linear_bytes > 0, "{stats}");
    drop((stream, batch));
    assert_eq!(unbound.net_iovs().home, unbound.net_iovs().total);
    drop(setup);
}

#[test]
fn the_name_of_an_in_memory_wire_is_free_after_one_of_its_two_nics_is_closed() {
    let nic = |host: u8| Netdev::user("mem:again", &format!("10.77.0.{host}/24"));
    // The second never comes.
    drop(nic(1).unwrap());
    for _ in 0..2 {
        let (a, b) = (nic(1).unwrap(), nic(2).unwrap());
        let taken = nic(3).unwrap_err();
        assert_eq!(taken.remedy(), Some(Remedy::OtherWire), "{taken}");
        let listener = b.listen(LOCAL).unwrap();
        let stream = a.connect(LOCAL).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, stream.local_addr().unwrap());
    }
}

/// The receiver connects, and its port is not known before.
#[test]
fn only_payload_of_the_named_server_lands_in_device_memory() {
    let server = Netdev::user("mem:from-peer", "10.77.0.1/24").unwrap();
    let client = Netdev::user("mem:from-peer", "10.77.0.2/24").unwrap();
    let memory = Dmabuf::anonymous(4 << 20).unwrap();
    let plan = client.plan_receive("10.77.0.2:0".parse().unwrap());
    let setup = plan.from_peer("10.77.0.1:80".parse().unwrap()).apply();
    let setup = setup.unwrap();
    let bound = client.bind_rx(&memory, setup.queues()).unwrap();
    for (address, expected) in [("10.77.0.1:80", 70_000), ("10.77.0.1:81", 0)] {
        let listener = server.listen(address).unwrap();
        listener.set_timeout(Some(PATIENCE));
        let mut stream = client.connect(address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.write_all(&pattern(70_000)).unwrap();
        accepted.shutdown_write().unwrap();
        stream.set_timeout(Some(PATIENCE));
        let mut batch = RxBatch::with_capacity(64);
        while stream.recv(&mut batch).unwrap() > 0 {}
        let stats = stream.stats();
        assert_eq!(stats.device_bytes, expected, "{address}: {stats:?}");
        assert_eq!(stats.device_bytes + stats.linear_bytes, 70_000);
    }
    let count = bound.unbind().net_iovs();
    assert_eq!(count.home, count.total);
}

#[test]
fn binding_without_header_split_is_refused_with_the_reason() {
    let nic = Netdev::user("mem:nosplit", "10.77.0.2/24").unwrap();
    let memory = Dmabuf::anonymous(1 << 20).unwrap();
    let queue = [devmem_tcp::RxQueueId(1)];
    let refused = nic.bind_rx(&memory, &queue).unwrap_err();
    assert_eq!(refused.errno(), devmem_tcp::Errno::EINVAL);
    assert!(refused.to_string().contains("tcp-data-split"), "{refused}");
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    let bench = Bench::new("api-refused");
    match bench.sender.connect("10.77.0.2:9") {
        Err(error) => assert!(error.to_string().contains("refused"), "{error}"),
        other => panic!("{other:?}"),
    }
    bench.finish();
}

/// The unit tests of the driver show that such a thread hands the lock to others while packets arrive.
#[test]
fn threads_receive_their_own_streams_while_one_waits_for_a_silent_peer() {
    let bench = Bench::new("api-threads");
    let sent = pattern(1_000_000);
    let (mut silent, mut idle) = bench.connection();
    let memory = bench.memory.clone();
    // It waits from before the first to after the last of the others.
    let waiting = std::thread::spawn(move || receive_all(&mut idle, &memory));
    for threads in [1, 2, 4, 8] {
        let receive = |_| {
            let (sender, mut stream) = bench.connection();
            let (memory, sent) = (bench.memory.clone(), sent.clone());
            let sending = send(sender, sent.clone());
            std::thread::spawn(move || {
                let received = receive_all(&mut stream, &memory);
                assert!(received == sent, "the bytes differ");
                sending.join().unwrap();
            })
        };
        let workers: Vec<_> = (0..threads).map(receive).collect();
        for worker in workers {
            worker.join().unwrap();
        }
    }
    assert!(!waiting.is_finished(), "nothing was sent to it");
    silent.write_all(b"at last").unwrap();
    drop(silent);
    assert_eq!(waiting.join().unwrap(), b"at last");
    bench.finish();
}

#[test]
fn a_stream_that_goes_from_thread_to_thread_loses_no_byte() {
    const THREADS: usize = 4;
    let bench = Bench::new("api-handed-on");
    let sent = pattern(2_000_000);
    let (sender, mut stream) = bench.connection();
    let sending = send(sender, sent.clone());
    let mut received = Vec::new();
    // Each thread receives a part, and the next one begins with what waits since then.
    for thread in 1..=THREADS {
        let (memory, until) = (bench.memory.clone(), sent.len() * thread / THREADS);
        let receiving = std::thread::spawn(move || {
            let mut batch = RxBatch::with_capacity(8);
            while received.len() < until && stream.recv(&mut batch).unwrap() > 0 {
                collect(&batch, &memory, &mut received);
            }
            drop(batch);
            (stream, received)
        });
        (stream, received) = receiving.join().unwrap();
    }
    assert!(received == sent, "the bytes differ");
    sending.join().unwrap();
    drop(stream);
    bench.finish();
}

#[test]
fn a_virtual_pair_gets_every_byte_through_a_bad_wire() {
    for seed in 0..4 {
        let text = format!("loss=3%,reorder=2%,dup=2%,corrupt=1%,delay=5ms,jitter=1ms,seed={seed}");
        let (a, b) = Netdev::pair(text.parse().unwrap()).unwrap();
        let bench = Bench::on(a, b);
        let (sender, mut stream) = bench.connection();
        let sent = pattern(400_000);
        let sending = send(sender, sent.clone());
        assert!(
            receive_all(&mut stream, &bench.memory) == sent,
            "{text}: the bytes differ"
        );
        sending.join().unwrap();
        drop(stream);
        bench.finish();
    }
}

#[test]
fn handles_move_between_threads() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Netdev>();
    is_shared::<Listener>();
    is_shared::<Dmabuf>();
    is_shared::<devmem_tcp::Completions>();
    is_shared::<devmem_tcp::BoundTx>();
    moves::<BoundRx>();
    moves::<Setup>();
    moves::<Stream>();
    moves::<RxBatch>();
    moves::<devmem_tcp::RxFrag>();
}

#[test]
fn dctcp_is_chosen_for_a_connect_and_for_a_listener_and_both_agree_on_its_marks() {
    use Congestion::{Cubic, Dctcp};
    let (a, b) = Netdev::pair("seed=1,delay=1ms".parse().unwrap()).unwrap();
    for (port, (ours, theirs)) in (6000..).zip([(Dctcp, Dctcp), (Dctcp, Cubic), (Cubic, Dctcp)]) {
        let listener = b.listen(("10.77.0.2", port)).unwrap();
        listener.set_congestion(theirs).unwrap();
        let options = ConnectOptions::new().congestion(ours);
        let stream = a.connect_with(("10.77.0.2", port), &options).unwrap();
        let (peer, _) = listener.accept().unwrap();
        for end in [&stream, &peer] {
            let ecn = end.tcp_info().unwrap().ecn;
            assert_eq!(ecn, ours == theirs, "{ours} to {theirs}");
        }
        stream.set_congestion(Congestion::Bbr).unwrap();
    }
}
