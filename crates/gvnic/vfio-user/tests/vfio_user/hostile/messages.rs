//! Messages that break the protocol.

use super::*;

/// Returns the violation for which the client was disconnected.
#[track_caller]
fn last_violation(bench: &mut Bench) -> ProtocolViolation {
    let events = bench.turn();
    match events.into_iter().next() {
        Some(Event::Left(Disconnect::ProtocolViolation(violation))) => violation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_before_the_version_and_a_second_version_are_breaches() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.send(GET_INFO, 0, &[0; 16], &[]);
    let violation = last_violation(&mut bench);
    assert_eq!(
        violation,
        ProtocolViolation::Order {
            command: Command::GET_INFO
        }
    );
    assert_eq!(client.receive().unwrap().errno, EINVAL);
    assert!(client.is_closed());

    let mut client = bench.client();
    client.send(VERSION, 0, &version_body(), &[]);
    let violation = last_violation(&mut bench);
    assert_eq!(
        violation,
        ProtocolViolation::Order {
            command: Command::VERSION
        }
    );
    assert_eq!(bench.server.stats().disconnected_clients, 2);
    // The next client is accepted.
    bench.client();
}

#[test]
fn another_major_version_and_a_posted_version_are_refused() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.send(VERSION, 0, &[1, 0, 0, 0], &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::Version { major: 1, minor: 0 }
    );
    let mut client = bench.connect();
    client.send(VERSION, POSTED, &version_body(), &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::Order {
            command: Command::VERSION
        }
    );
    let mut client = bench.connect();
    client.send(VERSION, 0, &[0, 0, 0, 0, b'{'], &[]);
    assert!(matches!(
        last_violation(&mut bench),
        ProtocolViolation::Version { .. }
    ));
    // The JSON may be missing: the server does not need it.
    let mut client = bench.connect();
    client.send(VERSION, 0, &[0; 4], &[]);
    assert!(bench.turn().is_empty());
}

#[test]
fn an_invalid_message_size_disconnects_the_client() {
    for size in [0u32, 15, 65_569, u32::MAX] {
        let mut bench = Bench::new();
        let mut client = bench.client();
        let mut bytes = message(1, GET_INFO, 0, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        client.send_raw(&bytes, &[]);
        assert_eq!(last_violation(&mut bench), ProtocolViolation::Size { size });
    }
}

#[test]
fn a_reply_without_a_request_disconnects_the_client() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    client.send(REGION_READ, 1, &[], &[]);
    assert_eq!(
        last_violation(&mut bench),
        ProtocolViolation::NoRequest { flags: 1 }
    );
}

#[test]
fn a_message_that_arrives_byte_by_byte_is_executed() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    for byte in message(9, REGION_WRITE, 0, &access(0, 0, 4, &[1, 2, 3, 4])) {
        assert!(client.receive().is_none());
        client.write_some(&[byte]);
        assert!(bench.turn().is_empty());
    }
    assert_eq!(client.receive().unwrap().errno, 0);
    assert_eq!(bench.device.memory[..4], [1, 2, 3, 4]);
}

#[test]
fn an_incomplete_message_is_not_executed() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let bytes = message(9, REGION_WRITE, 0, &access(0, 0, 4, &[1, 2, 3, 4]));
    client.write_some(&bytes[..bytes.len() - 1]);
    bench.turn();
    drop(client);
    assert!(matches!(
        bench.turn()[..],
        [Event::Left(Disconnect::Truncated)]
    ));
    assert_eq!(bench.device.memory[0], 0);
}

#[test]
fn a_body_that_is_too_short_is_einval_for_every_command() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let commands = [
        DMA_MAP,
        DMA_UNMAP,
        GET_INFO,
        GET_REGION_INFO,
        GET_IRQ_INFO,
        SET_IRQS,
        REGION_READ,
        REGION_WRITE,
    ];
    for command in commands {
        assert_eq!(bench.ask(&mut client, command, &[0; 15], &[]).errno, EINVAL);
    }
    for unknown in [0, 6, 11, 12, 14, 15, u16::MAX] {
        assert_eq!(
            bench.ask(&mut client, unknown, &[0; 64], &[]).errno,
            EOPNOTSUPP
        );
    }
}

#[test]
fn accesses_outside_of_a_region_or_longer_than_their_data_are_einval() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let wrong = [
        access(0, 4096, 1, &[]),
        access(0, 4093, 4, &[0; 4]),
        access(0, u64::MAX, 8, &[0; 8]),
        access(0, 0, 0, &[]),
        access(3, 0, 4, &[0; 4]),
        access(9, 0, 4, &[0; 4]),
        access(u32::MAX, 0, 4, &[0; 4]),
        access(0, 0, u32::MAX, &[]),
    ];
    for body in wrong {
        for command in [REGION_READ, REGION_WRITE] {
            assert_eq!(bench.ask(&mut client, command, &body, &[]).errno, EINVAL);
        }
    }
    let short = access(0, 0, 8, &[0; 7]);
    assert_eq!(
        bench.ask(&mut client, REGION_WRITE, &short, &[]).errno,
        EINVAL
    );
    assert_eq!(bench.device.memory, [0; 4096]);
}

#[test]
fn vectors_that_do_not_exist_and_descriptors_that_do_not_match_are_einval() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let fd = new_eventfd();
    let fd = [fd.as_fd()];
    let wrong = [
        (set_irqs(ASSIGN, 2, 3, 1), &fd[..]),
        (set_irqs(ASSIGN, 2, u32::MAX, 1), &fd[..]),
        (set_irqs(ASSIGN, 2, 0, 2), &fd[..]),
        (set_irqs(ASSIGN, 2, 0, 4), &[]),
        (set_irqs(ASSIGN, 2, u32::MAX, u32::MAX), &[]),
        (set_irqs(ASSIGN, 0, 0, 1), &fd[..]),
        (set_irqs(ASSIGN, 9, 0, 0), &[]),
        (set_irqs(0x21, 2, 0, u32::MAX), &[]),
        (set_irqs(0x22, 2, 0, 3), &[]),
        (set_irqs(0x21, 2, 0, 0), &fd[..]),
        (set_irqs(0x09, 2, 0, 1), &[]),
        (set_irqs(u32::MAX, 2, 0, 1), &[]),
    ];
    for (body, fds) in wrong {
        assert_eq!(
            bench.ask(&mut client, SET_IRQS, &body, fds).errno,
            EINVAL,
            "{body:?}"
        );
    }
}

#[test]
fn requests_of_a_client_that_reads_no_replies_are_not_read_and_use_bounded_memory() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    let read = message(1, REGION_READ, 0, &access(0, 0, 4096, &[]));
    // Until the client's socket is full of requests: a few hundred kilobytes.
    let mut asked = 0;
    loop {
        bench.turn();
        match client.stream.write(&read) {
            Ok(len) if len == read.len() => asked += 1,
            _ => break,
        }
        assert!(asked < 100_000, "the server goes on for ever");
    }
    // The client reads its replies: all of them arrive, in order.
    let mut answered = 0;
    while answered < asked {
        bench.turn();
        while let Some(reply) = client.receive() {
            assert_eq!(reply.body.len(), 16 + 4096);
            answered += 1;
        }
    }
}
