//! Receiving into device memory, and everything that can go astray on the way.

use std::net::IpAddr;

use devmem_linux::test_util::{
    GuestHas, is_victim, kill_victim, skip_outside_guest, wait_to_be_killed,
};
use devmem_tcp::{BindOptions, Dmabuf, Errno, NiovSize, Placement, RecvError, RxBatch, RxQueueId};

use crate::bench::{Bench, collect, receive_all, write};
use crate::common::pattern;

#[test]
fn bytes_land_in_device_memory_and_every_setting_comes_back() {
    const TEST: &str = "bytes_land_in_device_memory_and_every_setting_comes_back";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let before = bench.settings();
    let receiver = bench.receiver(1);
    assert_eq!(receiver.setup.verify(), []);
    assert!(!receiver.setup.queues().contains(&RxQueueId(0)));
    let (peer, mut stream) = receiver.connection(&bench);
    stream.set_placement(Placement::Strict);
    let sent = pattern(5_000_000);
    let writer = write(peer, sent.clone());
    let received = receive_all(&mut stream, &receiver.memory);
    writer.join().unwrap();
    assert!(received == sent, "the bytes differ");
    let stats = stream.stats();
    assert_eq!((stats.device_bytes, stats.linear_bytes), (5_000_000, 0));
    assert_eq!(stats.device_frags, stats.tokens_returned);
    println!("{stats}");
    drop((stream, receiver));
    assert_eq!(bench.settings(), before);
}

#[test]
fn ipv6_lands_in_device_memory_too() {
    const TEST: &str = "ipv6_lands_in_device_memory_too";
    // A link-local address would need its scope.
    let global = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if !v6.is_unicast_link_local());
    let Some(bench) = Bench::with_ip(TEST, global) else {
        return;
    };
    let receiver = bench.receiver(1);
    let (peer, mut stream) = receiver.connection(&bench);
    stream.set_placement(Placement::Strict);
    let sent = pattern(500_000);
    let writer = write(peer, sent.clone());
    assert!(receive_all(&mut stream, &receiver.memory) == sent);
    writer.join().unwrap();
}

#[test]
fn a_memory_file_is_bound_and_its_mapping_sees_the_bytes() {
    const TEST: &str = "a_memory_file_is_bound_and_its_mapping_sees_the_bytes";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let memory = Dmabuf::memfd(16 << 20).unwrap();
    let setup = bench.nic.plan_receive(bench.address()).apply().unwrap();
    let bound = match bench.nic.bind_rx(&memory, setup.queues()) {
        Ok(bound) => bound,
        Err(error) if memory.exporter().is_none() => {
            return skip_outside_guest(TEST, GuestHas::Udmabuf, &format!("{error:?}"));
        }
        Err(error) => panic!("{error}"),
    };
    let listener = bench.nic.listen(bench.address()).unwrap();
    let peer = bench.connect_from_peer();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_placement(Placement::Strict);
    let sent = pattern(100_000);
    let writer = write(peer, sent.clone());
    assert!(receive_all(&mut stream, &memory) == sent);
    writer.join().unwrap();
    drop(bound);
}

#[test]
fn net_iovs_of_another_size_are_bound_or_refused_by_name() {
    const TEST: &str = "net_iovs_of_another_size_are_bound_or_refused_by_name";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let memory = crate::bench::memory();
    let setup = bench.nic.plan_receive(bench.address()).apply().unwrap();
    let size = NiovSize::new(16 << 10).unwrap();
    match bench
        .nic
        .bind_rx_with(&memory, setup.queues(), BindOptions::new().niov_size(size))
    {
        Ok(bound) => assert_eq!(bound.niov_size(), size),
        Err(error) => {
            let known = [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ERANGE];
            assert!(known.contains(&error.errno()), "{error}");
            assert!(format!("{error:?}").contains("net_iovs"), "{error}");
            println!("{error}");
        }
    }
    // A page is always there.
    let bound = bench.nic.bind_rx(&memory, setup.queues()).unwrap();
    assert_eq!(bound.niov_size().bytes(), 4096);
    assert_eq!(bound.net_iovs().total, memory.size() / 4096);
}

#[test]
fn bytes_left_with_the_headers_are_delivered_in_order_or_refused() {
    const TEST: &str = "bytes_left_with_the_headers_are_delivered_in_order_or_refused";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    let (peer, mut stream) = receiver.connection(&bench);
    let sent = pattern(1_000_000);
    let writer = write(peer, sent.clone());
    assert!(receive_all(&mut stream, &receiver.memory) == sent);
    writer.join().unwrap();
    let stats = stream.stats();
    assert_eq!(stats.device_bytes + stats.linear_bytes, 1_000_000);
    assert!(stats.device_bytes > 0, "{stats}");
    if stats.linear_bytes == 0 {
        let why = "this NIC leaves nothing with the headers (`devmem-tcp nic --linear N` does)";
        return devmem_linux::test_util::skip(TEST, "linear", why);
    }
    println!("{stats}");
    let (peer, mut stream) = receiver.connection(&bench);
    let writer = write(peer, sent.clone());
    stream.set_placement(Placement::Strict);
    let mut batch = RxBatch::with_capacity(64);
    let mut bytes = Vec::new();
    loop {
        match stream.recv(&mut batch) {
            Ok(0) => break,
            Ok(_) => collect(&batch, &receiver.memory, &mut bytes),
            Err(RecvError::Misplaced {
                cause: Some(cause), ..
            }) => {
                assert!(cause.reason.contains("headers"), "{cause:?}");
                stream.set_placement(Placement::Mixed);
                assert!(stream.recv(&mut batch).unwrap() > 0);
                collect(&batch, &receiver.memory, &mut bytes);
                stream.set_placement(Placement::Strict);
            }
            Err(error) => panic!("{error}"),
        }
    }
    writer.join().unwrap();
    assert!(bytes == sent, "the bytes differ");
    let stats = stream.stats();
    assert_eq!(stats.device_frags, stats.tokens_returned);
}

#[test]
fn a_killed_receiver_leaves_a_queue_that_can_be_bound_and_settings_that_come_back() {
    const TEST: &str =
        "receiving::a_killed_receiver_leaves_a_queue_that_can_be_bound_and_settings_that_come_back";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    if is_victim() {
        let _receiver = bench.receiver(1);
        return wait_to_be_killed("bound");
    }
    let before = bench.settings();
    kill_victim(TEST, "bound");
    assert_ne!(bench.settings(), before, "killed, it restored nothing");
    let refused = bench.nic.plan_receive(bench.address()).apply();
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("devmem-tcp restore"), "{refused}");
    bench.restore();
    assert_eq!(bench.settings(), before);
    // And the queue is free.
    drop(bench.receiver(1));
    assert_eq!(bench.settings(), before);
}

#[test]
fn a_setup_dropped_first_is_restored_when_the_binding_is_dropped() {
    const TEST: &str = "a_setup_dropped_first_is_restored_when_the_binding_is_dropped";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let before = bench.settings();
    let receiver = bench.receiver(1);
    drop(receiver.setup);
    assert_ne!(bench.settings(), before, "it waits for the binding");
    drop(receiver.bound);
    assert_eq!(bench.settings(), before);
}

#[test]
fn payloads_of_every_size_are_whole_and_none_is_linear() {
    const TEST: &str = "payloads_of_every_size_are_whole_and_none_is_linear";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    let (mut peer, mut stream) = receiver.connection(&bench);
    stream.set_placement(Placement::Strict);
    let mut batch = RxBatch::with_capacity(64);
    let mut bytes = Vec::new();
    for size in (1..=8192).step_by(7) {
        let sent = pattern(size);
        std::io::Write::write_all(&mut peer, &sent).unwrap();
        bytes.clear();
        while bytes.len() < size {
            assert!(stream.recv(&mut batch).unwrap() > 0);
            collect(&batch, &receiver.memory, &mut bytes);
        }
        assert!(bytes == sent, "the bytes differ at {size}");
    }
}

#[test]
fn frags_that_are_kept_keep_their_bytes_and_go_home_one_by_one() {
    const TEST: &str = "frags_that_are_kept_keep_their_bytes_and_go_home_one_by_one";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    let (peer, mut stream) = receiver.connection(&bench);
    let sent = pattern(200_000);
    let writer = write(peer, sent.clone());
    let target = Dmabuf::anonymous(1 << 20).unwrap();
    let mut batch = RxBatch::with_capacity(16);
    let (mut at, mut kept) = (0, Vec::new());
    while stream.recv(&mut batch).unwrap() > 0 {
        assert!(batch.len() <= 16, "{} frags", batch.len());
        at += batch.gather_into(&target, at).unwrap();
        kept.extend(batch.take());
    }
    writer.join().unwrap();
    assert!(
        target.slice(0..at).to_vec() == sent,
        "the gathered bytes differ"
    );
    let out = receiver.bound.net_iovs();
    assert!(out.home < out.total, "{out:?}");
    // Another connection's bytes do not touch them.
    let (peer, mut second) = receiver.connection(&bench);
    let writer = write(peer, vec![0xee; 1_000_000]);
    assert_eq!(
        receive_all(&mut second, &receiver.memory),
        [0xee; 1_000_000]
    );
    writer.join().unwrap();
    let mut bytes = Vec::new();
    for frag in &kept {
        match frag.as_frag() {
            devmem_tcp::Frag::Device { range, .. } => {
                bytes.extend(receiver.memory.slice(range).to_vec());
            }
            devmem_tcp::Frag::Linear(linear) => bytes.extend_from_slice(linear),
        }
    }
    assert!(bytes == sent, "the kept bytes changed");
    let frags = stream.stats().device_frags;
    drop(kept);
    assert_eq!(stream.stats().tokens_returned, frags);
}

#[test]
fn a_receiver_that_keeps_everything_starves_and_recovers() {
    const TEST: &str = "a_receiver_that_keeps_everything_starves_and_recovers";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    let (peer, mut stream) = receiver.connection(&bench);
    // More than the memory holds.
    let sent = pattern(receiver.memory.size() + (8 << 20));
    let writer = write(peer, sent.clone());
    let mut batch = RxBatch::with_capacity(64);
    let (mut received, mut kept) = (0, Vec::new());
    // Kept until nothing more comes for a while: the queue has no memory left, or all of it came.
    stream.set_timeout(Some(std::time::Duration::from_secs(2)));
    loop {
        match stream.recv(&mut batch) {
            Ok(0) => break,
            Ok(bytes) => received += bytes,
            Err(RecvError::TimedOut { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        kept.extend(batch.take());
    }
    assert!(received < sent.len(), "it never starved");
    drop(kept);
    stream.set_timeout(Some(crate::bench::PATIENCE));
    let rest = receive_all(&mut stream, &receiver.memory);
    assert!(rest == sent[received..], "the rest differs");
    writer.join().unwrap();
}

#[test]
fn two_queues_share_the_flows() {
    const TEST: &str = "two_queues_share_the_flows";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = match bench.nic.plan_receive(bench.address()).queues(2).commands() {
        Ok(_) => bench.receiver(2),
        Err(error) => return skip_outside_guest(TEST, GuestHas::Nic, &format!("{error:?}")),
    };
    for number in 0..8u8 {
        let (peer, mut stream) = receiver.connection(&bench);
        stream.set_placement(Placement::Strict);
        let writer = write(peer, vec![number; 100_000]);
        let received = receive_all(&mut stream, &receiver.memory);
        assert!(received == vec![number; 100_000], "the bytes differ");
        writer.join().unwrap();
    }
}

#[test]
fn a_flow_that_is_not_steered_is_refused_with_the_reason() {
    const TEST: &str = "a_flow_that_is_not_steered_is_refused_with_the_reason";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    // The rule goes, as after a reset of the device.
    let mut ethtool = devmem_linux::ethtool::Ethtool::by_name(&bench.name).unwrap();
    for rule in ethtool.rules().unwrap() {
        ethtool.delete_rule(rule.location).unwrap();
    }
    let (peer, mut stream) = receiver.connection(&bench);
    stream.set_placement(Placement::Strict);
    let writer = write(peer, b"astray".to_vec());
    let error = stream.recv(&mut RxBatch::with_capacity(4)).unwrap_err();
    writer.join().unwrap();
    let RecvError::Misplaced {
        bytes,
        cause: Some(cause),
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(*bytes, 6);
    assert_eq!(cause.dmabuf, Some(receiver.bound.id()));
    assert!(cause.reason.contains("rule"), "{error}");
    println!("{error}");
    stream.set_placement(Placement::Mixed);
    assert_eq!(receive_all(&mut stream, &receiver.memory), b"astray");
}

#[test]
fn a_flow_by_another_queue_is_refused_with_that_queue() {
    const TEST: &str = "a_flow_by_another_queue_is_refused_with_that_queue";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    // Another port, which no rule steers.
    let listener = bench.nic.listen((bench.ip, 0)).unwrap();
    let peer = bench.connect_from_peer_to(listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_timeout(Some(crate::bench::PATIENCE));
    stream.set_placement(Placement::Strict);
    let writer = write(peer, b"elsewhere".to_vec());
    let error = stream.recv(&mut RxBatch::with_capacity(4)).unwrap_err();
    writer.join().unwrap();
    let RecvError::Misplaced {
        bytes: 9,
        cause: Some(cause),
    } = &error
    else {
        panic!("{error:?}");
    };
    println!("{error}");
    let bound = receiver.setup.queues()[0];
    assert!(
        cause.reason.contains("the flow arrives on queue"),
        "{error}"
    );
    assert!(cause.reason.ends_with(&bound.0.to_string()), "{error}");
    drop(receiver);
}

#[test]
fn a_queue_that_is_bound_is_not_bound_again_and_is_free_afterwards() {
    const TEST: &str = "a_queue_that_is_bound_is_not_bound_again_and_is_free_afterwards";
    let Some(bench) = Bench::new(TEST) else {
        return;
    };
    let receiver = bench.receiver(1);
    let queues = receiver.setup.queues();
    let again = bench.nic.bind_rx(&receiver.memory, queues).unwrap_err();
    assert_eq!(again.errno(), Errno::EEXIST, "{again}");
    // A queue that does not exist is refused before memory that is in use.
    let past = || {
        let past = bench.nic.bind_rx(&receiver.memory, &[RxQueueId(4095)]);
        past.unwrap_err().errno()
    };
    assert_eq!(past(), Errno::EINVAL);
    // Memory has one binding at a time, over all queues.
    let mut others = [1, 2].map(RxQueueId).into_iter();
    let free = others.find(|queue| !queues.contains(queue)).unwrap();
    let elsewhere = bench.nic.bind_rx(&receiver.memory, &[free]).unwrap_err();
    assert_eq!(elsewhere.errno(), Errno::EBUSY, "{elsewhere}");
    let unbound = receiver.bound.unbind();
    assert_eq!(past(), Errno::EINVAL);
    let bound = bench.nic.bind_rx(&receiver.memory, queues).unwrap();
    drop(bound);
    println!("{:?}", unbound.net_iovs());
}
