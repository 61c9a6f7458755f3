//! Two sockets of the same stack: from memory to memory through the NIC, without the link.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::common::{PORT, assert_no_memory_drops, drops};
use super::{DeviceSource, DoorSocket, Pair, Sink, Source};
use devmem_uapi::{Errno, MsgFlags};
use netmem::{Dmabuf, NiovSize};
use netsim::{Door as _, PairConfig, Pattern, Progress, Side};
use stack::{FlushScope, Readiness, SendMsg, SocketOption};

/// Connects side A to itself; returns (accepted, opener).
fn connect(pair: &mut Pair, ip: IpAddr, port: u16) -> (DoorSocket, DoorSocket) {
    let local = SocketAddr::new(ip, port);
    let listener = pair.a.listen(local, 4).unwrap();
    let now = pair.now();
    let opener = pair.a.connect(local, now).unwrap();
    let mut accepted = None;
    pair.run(|pair| {
        accepted = accepted.or_else(|| pair.a.accept(listener).ok());
        let is_open = pair
            .a
            .readiness(opener)
            .is_ok_and(|ready| ready.contains(Readiness::WRITABLE));
        if accepted.is_some() && is_open {
            Progress::Done
        } else {
            Progress::Waiting
        }
    })
    .unwrap();
    pair.a.close(listener).unwrap();
    let (accepted, peer) = accepted.unwrap();
    assert_eq!(Ok(peer), pair.a.local_addr(opener));
    (accepted, opener)
}

fn link_local() -> IpAddr {
    // fe80::/64 and the modified EUI-64 of 02:00:00:00:00:0a.
    "fe80::ff:fe00:a".parse().unwrap()
}

fn close(mut pair: Pair, sockets: [DoorSocket; 2]) {
    for socket in sockets {
        pair.a.close(socket).unwrap();
    }
    pair.finish();
}

#[test]
fn a_stack_that_was_not_polled_in_time_receives_what_waits_before_it_judges_its_timers() {
    let mut config = PairConfig::default();
    config.tcp.initial_cwnd = 1000;
    config.tcp.rcv_buf_start = 4 << 20;
    let mut pair = Pair::new(&config);
    let rx = pair.bind(Side::A, 16 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = connect(&mut pair, Side::A.ipv4(), PORT);
    let buffer = SocketOption::SndBuf(4 << 20);
    pair.a.set_option(sender, buffer).unwrap();
    let pattern = Pattern::new(5);
    let mut sink = Sink::new(receiver, pattern).with_memory(rx, pair.dmabuf(Side::A, rx));
    let mut bytes = vec![0; 8 * stack::POLL_BYTES];
    pattern.fill(0, &mut bytes);
    // The first bytes let the windows grow; the rest leaves at once, more than one poll receives.
    let (first, rest) = bytes.split_at(6 * stack::POLL_BYTES);
    for (piece, descheduled) in [
        (first, Duration::ZERO),
        // Longer than a tail loss probe waits: two round trips and 2 ms.
        (rest, Duration::from_millis(20)),
    ] {
        let end = sink.report().bytes() + piece.len() as u64;
        let sent = pair
            .a
            .sendmsg(sender, &SendMsg::new(piece), MsgFlags::empty());
        assert_eq!(sent, Ok(piece.len()));
        let now = pair.now();
        pair.a.stack_mut().flush(FlushScope::All, now);
        let info = pair.a.info(sender).unwrap().unwrap();
        assert!(
            descheduled.is_zero() || info.notsent_bytes == 0,
            "not all left: {info:?}"
        );
        pair.pause(descheduled);
        pair.run(|pair| match sink.run(&mut pair.a) {
            _ if sink.report().bytes() == end => Progress::Done,
            progress => progress,
        })
        .unwrap();
        pair.run_for(Duration::from_millis(100));
    }
    assert_eq!(drops(&pair.a), [].into(), "something was sent twice");
    drop(sink);
    close(pair, [receiver, sender]);
}

/// Sends `total` bytes in `chunk`s from device memory of A to device memory of A.
fn transfer(config: &PairConfig, ip: IpAddr, total: u64, chunk: usize) {
    let mut pair = Pair::new(config);
    let rx = pair.bind(Side::A, 4 << 20, NiovSize::DEFAULT, &[0]);
    let tx = pair.bind_tx(Side::A, 1 << 20);
    let (receiver, sender) = connect(&mut pair, ip, PORT);
    let on_link = pair.a.look(|stack| stack.nic().tx_stats()).frames;
    let pattern = Pattern::new(3);
    let memory = pair.dmabuf(Side::A, tx).clone();
    let mut source =
        DeviceSource::new(&mut pair.a, sender, tx, &memory, pattern, total).in_chunks_of(chunk);
    drop(memory);
    let mut sink = Sink::new(receiver, pattern).with_memory(rx, pair.dmabuf(Side::A, rx));
    let ran = pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.a)));
    assert!(
        ran.is_ok(),
        "{ran:?}: {source:?}, {:?}, dropped {:?}",
        sink.report(),
        drops(&pair.a)
    );
    assert_eq!(sink.report().device_bytes, total);
    assert_no_memory_drops(&pair.a);
    let stats = pair.a.look(|stack| stack.nic().tx_stats());
    assert_eq!(stats.frames, on_link, "nothing on the link");
    assert!(
        stats.looped > 0 && stats.software_tso == 0 && stats.software_checksum == 0,
        "{stats:?}"
    );
    drop((source, sink));
    close(pair, [sender, receiver]);
}

#[test]
fn device_memory_to_device_memory_over_every_own_address() {
    for ip in [Side::A.ipv4(), Side::A.ipv6(), link_local()] {
        for chunk in [1, 4097, 65_536, 1 << 20] {
            transfer(
                &PairConfig::default(),
                ip,
                (chunk as u64 * 1000).min(3_000_000),
                chunk,
            );
        }
    }
}

#[test]
fn the_capabilities_of_the_link_do_not_matter() {
    // A link without offloads that loses nearly everything.
    let impairment = Some("loss=90%".parse().unwrap());
    transfer(
        &PairConfig {
            impairment,
            ..PairConfig::default()
        },
        Side::A.ipv4(),
        1_000_000,
        65_536,
    );
}

#[test]
fn linear_bytes_stay_in_host_memory_as_from_the_link() {
    let mut pair = Pair::new(&PairConfig {
        linear_bytes: 64,
        ..PairConfig::default()
    });
    let rx = pair.bind(Side::A, 4 << 20, NiovSize::DEFAULT, &[0]);
    let (receiver, sender) = connect(&mut pair, Side::A.ipv4(), PORT);
    let pattern = Pattern::new(6);
    let mut source = Source::new(sender, pattern, 500_000, 20_000);
    let mut sink = Sink::new(receiver, pattern).with_memory(rx, pair.dmabuf(Side::A, rx));
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.a)))
        .unwrap();
    let report = sink.report();
    assert!(
        report.linear_bytes > 0 && report.device_bytes > report.linear_bytes,
        "{report:?}"
    );
    drop(sink);
    close(pair, [sender, receiver]);
}

#[test]
fn host_memory_to_host_memory_in_both_directions() {
    let mut pair = Pair::new(&PairConfig::default());
    let (b, a) = connect(&mut pair, Side::A.ipv4(), PORT);
    let (there, back) = (Pattern::new(1), Pattern::new(2));
    let mut sources = [
        Source::new(a, there, 2_000_000, 30_000),
        Source::new(b, back, 1_500_000, 7000),
    ];
    let mut sinks = [Sink::new(b, there), Sink::new(a, back)];
    pair.run(|pair| {
        let sent = sources
            .iter_mut()
            .map(|source| source.run(&mut pair.a))
            .fold(Progress::Done, Progress::and);
        sinks
            .iter_mut()
            .map(|sink| sink.run(&mut pair.a))
            .fold(sent, Progress::and)
    })
    .unwrap();
    assert_eq!(
        sinks.map(|sink| sink.report().readable_bytes),
        [2_000_000, 1_500_000]
    );
    close(pair, [a, b]);
}

#[test]
fn one_dmabuf_may_be_sent_from_and_received_to_and_is_never_read_by_the_stack() {
    let mut pair = Pair::new(&PairConfig::default());
    let opaque = Dmabuf::opaque(4 << 20).unwrap();
    let source_memory = Dmabuf::opaque(1 << 20).unwrap();
    let rx = pair.bind_memory(Side::A, opaque.clone(), NiovSize::DEFAULT, &[0]);
    let tx = pair.bind_tx_memory(Side::A, source_memory.clone());
    let (receiver, sender) = connect(&mut pair, Side::A.ipv6(), PORT);
    let pattern = Pattern::new(5);
    let device = source_memory.clone();
    let write = Box::new(move |offset: usize, bytes: &[u8]| device.device_write(offset, bytes));
    let mut source =
        DeviceSource::with_writer(&mut pair.a, sender, tx, 1 << 20, write, pattern, 3_000_000);
    let device = opaque.clone();
    let reader = Box::new(move |offset, out: &mut [u8]| device.device_read(offset as usize, out));
    let mut sink = Sink::new(receiver, pattern).with_reader(rx, reader);
    pair.run(|pair| source.run(&mut pair.a).and(sink.run(&mut pair.a)))
        .unwrap();
    assert_eq!(sink.report().device_bytes, 3_000_000);
    drop((source, sink, opaque, source_memory));
    close(pair, [sender, receiver]);
}

#[test]
fn the_same_memory_goes_round_through_both_bindings() {
    let mut pair = Pair::new(&PairConfig::default());
    let dmabuf = Dmabuf::anonymous(4 << 20).unwrap();
    let rx = pair.bind_memory(Side::A, dmabuf.clone(), NiovSize::DEFAULT, &[0]);
    let tx = pair.bind_tx_memory(Side::A, dmabuf.clone());
    drop(dmabuf);
    let (receiver, sender) = connect(&mut pair, Side::A.ipv4(), PORT);
    let pattern = Pattern::new(9);
    let mut bytes = vec![0; 10_000];
    pattern.fill(0, &mut bytes);
    let mut source = Source::new(sender, pattern, 10_000, 10_000);
    // Received bytes are sent once more from where they lie, over another connection.
    let (second_receiver, second_sender) = connect(&mut pair, Side::A.ipv4(), PORT + 1);
    pair.a
        .set_option(second_sender, stack::SocketOption::Zerocopy(true))
        .unwrap();
    let mut control = vec![0; devmem_uapi::cmsg_space(4)];
    devmem_uapi::CmsgWriter::new(&mut control)
        .push_tx_dmabuf(tx)
        .unwrap();
    let mut relay = netsim::Sink::new(receiver, pattern)
        .with_memory(rx, pair.dmabuf(Side::A, rx))
        .keeping(netsim::Keep::Everything);
    pair.run(|pair| source.run(&mut pair.a).and(relay.run(&mut pair.a)))
        .unwrap();
    assert_eq!(relay.report().device_bytes, 10_000);
    let memory = pair.dmabuf(Side::A, rx).clone();
    let at = (0..memory.size())
        .step_by(64)
        .find(|&at| memory.slice(at..at + 64).to_vec() == bytes[..64])
        .unwrap();
    drop(memory);
    let sent = pair.a.sendmsg(
        second_sender,
        &stack::SendMsg::device(&[at..at + 64], &control),
        devmem_uapi::MsgFlags::ZEROCOPY,
    );
    assert_eq!(sent, Ok(64));
    pair.a
        .shutdown(second_sender, std::net::Shutdown::Write)
        .unwrap();
    let mut last = Sink::new(second_receiver, pattern).with_memory(rx, pair.dmabuf(Side::A, rx));
    pair.run(|pair| last.run(&mut pair.a)).unwrap();
    assert_eq!(last.report().device_bytes, 64);
    relay.release(&mut pair.a, 0);
    drop((relay, last));
    for socket in [sender, receiver, second_sender, second_receiver] {
        pair.a.close(socket).unwrap();
    }
    pair.finish();
}

#[test]
fn a_slow_reader_slows_the_sender_and_drops_nothing() {
    let mut pair = Pair::new(&PairConfig::default());
    let rx = pair.bind(Side::A, 256 << 10, NiovSize::MIN, &[0]);
    let tx = pair.bind_tx(Side::A, 1 << 20);
    let (receiver, sender) = connect(&mut pair, Side::A.ipv4(), PORT);
    let pattern = Pattern::new(2);
    let memory = pair.dmabuf(Side::A, tx).clone();
    let mut source = DeviceSource::new(&mut pair.a, sender, tx, &memory, pattern, 2_000_000);
    drop(memory);
    let mut sink = Sink::new(receiver, pattern)
        .with_memory(rx, pair.dmabuf(Side::A, rx))
        .with_buffers(5000, 2);
    let mut turn = 0;
    pair.run(|pair| {
        let sent = source.run(&mut pair.a);
        turn += 1;
        if turn % 3 > 0 {
            return sent.and(Progress::Worked);
        }
        sent.and(match sink.receive_once(&mut pair.a) {
            Ok(0) => Progress::Done,
            _ => Progress::Worked,
        })
    })
    .unwrap();
    assert_eq!(sink.report().device_bytes, 2_000_000);
    assert_no_memory_drops(&pair.a);
    drop((source, sink));
    close(pair, [sender, receiver]);
}

#[test]
fn a_refused_connection_and_a_reset_behave_as_over_the_link() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    let refused = pair
        .a
        .connect(SocketAddr::new(Side::A.ipv4(), 77), now)
        .unwrap();
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.a.take_error(refused), Ok(Some(Errno::ECONNREFUSED)));
    pair.a.close(refused).unwrap();
    let (receiver, sender) = connect(&mut pair, Side::A.ipv4(), PORT);
    pair.a.abort(receiver).unwrap();
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.a.take_error(sender), Ok(Some(Errno::ECONNRESET)));
    pair.a.close(sender).unwrap();
    pair.finish();
}

#[test]
fn the_link_keeps_its_turn_beside_a_busy_loop() {
    let mut pair = Pair::new(&PairConfig::default());
    let (loop_b, loop_a) = connect(&mut pair, Side::A.ipv4(), PORT);
    let (at_a, at_b) = pair.connect(Side::A, Side::A.ipv4(), PORT + 1);
    let (one, two) = (Pattern::new(1), Pattern::new(2));
    let mut looped = (
        Source::new(loop_a, one, 3_000_000, 50_000),
        Sink::new(loop_b, one),
    );
    let mut linked = (
        Source::new(at_b, two, 3_000_000, 50_000),
        Sink::new(at_a, two),
    );
    pair.run(|pair| {
        let first = looped.0.run(&mut pair.a).and(looped.1.run(&mut pair.a));
        first
            .and(linked.0.run(&mut pair.b))
            .and(linked.1.run(&mut pair.a))
    })
    .unwrap();
    pair.b.close(at_b).unwrap();
    pair.a.close(at_a).unwrap();
    close(pair, [loop_a, loop_b]);
}
