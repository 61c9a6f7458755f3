//! The payload: validated, written, counted.

use super::*;

#[test]
fn the_pipeline_of_ncdevmem_is_validated_byte_for_byte() {
    const TEST: &str = "recv::payload::the_pipeline_of_ncdevmem_is_validated_byte_for_byte";
    const BYTES: u64 = 64 << 20;
    in_netns(TEST, || {
        if !has(TEST, "bash") || !has(TEST, "nc") {
            return;
        }
        let recv = start_recv("-p 5201 -v 7 --json");
        // -N makes the OpenBSD netcat end the stream after the input; other versions do so anyway, or have -q.
        let pipeline = format!(
            r"N=$(nc -h 2>&1 | grep -q -- -N && echo -N || echo -q0)
              yes $(echo -e \\x01\\x02\\x03\\x04\\x05\\x06) | tr \\n \\0 | head -c {BYTES} |
              nc $N 10.77.0.2 5201"
        );
        let mut sender = Command::new("bash")
            .args(["-c", &pipeline])
            .spawn()
            .unwrap();
        let json = recv.finish().json();
        assert!(wait_or_kill(&mut sender, LIMIT).is_some());
        assert_all_right(&json, BYTES);
        assert_eq!(json["device_bytes"], BYTES);
    });
}

#[test]
fn a_wrong_byte_fails_the_run_and_its_position_is_named() {
    in_netns(
        "recv::payload::a_wrong_byte_fails_the_run_and_its_position_is_named",
        || {
            let recv = start_recv("-v 7");
            let mut stream = repeating(7, 0, 1_000_000);
            stream[777_777] ^= 1;
            send(recv_addr(), &stream);
            recv.finish().failed_with(
                1,
                "1 bytes are wrong, the first at byte 777777 of its stream",
            );
        },
    );
}

#[test]
fn newline_or_nul_in_the_zero_position_is_accepted_but_not_both() {
    in_netns(
        "recv::payload::newline_or_nul_in_the_zero_position_is_accepted_but_not_both",
        || {
            let recv = start_recv("-v 7 --json");
            send(recv_addr(), &repeating(7, b'\n', 100_000));
            assert_all_right(&recv.finish().json(), 100_000);

            let recv = start_recv("-v 7");
            let both = [repeating(7, b'\n', 7000), repeating(7, 0, 70)].concat();
            send(recv_addr(), &both);
            recv.finish()
                .failed_with(1, "10 bytes are wrong, the first at byte 7006");
        },
    );
}

#[test]
fn the_payload_goes_to_a_file_or_to_stdout() {
    in_netns(
        "recv::payload::the_payload_goes_to_a_file_or_to_stdout",
        || {
            let payload: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("payload");
            let recv = start_recv(&format!("--json -o {}", file.display()));
            send(recv_addr(), &payload);
            let json = recv.finish().json();
            assert_eq!(json["bytes"], payload.len());
            assert_eq!(
                json["verified_bytes"],
                serde_json::Value::Null,
                "no check was requested"
            );
            let written = fs::read(&file).unwrap();
            assert!(written == payload, "{} bytes written", written.len());

            let recv = start_recv("-o -");
            send(recv_addr(), &payload);
            let finished = recv.finish();
            assert_eq!(finished.code, Some(0), "{}", finished.stderr);
            assert!(
                finished.stdout == payload,
                "{} bytes on stdout",
                finished.stdout.len()
            );
        },
    );
}

#[test]
fn ipv6_works_like_ipv4() {
    in_netns("recv::payload::ipv6_works_like_ipv4", || {
        let line = "recv --mem-size 32M --addr fd77::2/64 --peer-addr fd77::1/64 -l -p 5202 -v 7 --json --mtu 9000";
        let mut recv = start(line);
        recv.until("listening on [fd77::2]:5202");
        send(
            "[fd77::2]:5202".parse().unwrap(),
            &repeating(7, 0, 20_000_000),
        );
        let json = recv.finish().json();
        assert_all_right(&json, 20_000_000);
        assert_eq!(json["ip_version"], 6);
    });
}

#[test]
fn several_connections_at_once_each_have_their_own_stream() {
    in_netns(
        "recv::payload::several_connections_at_once_each_have_their_own_stream",
        || {
            let recv = start_recv("--connections 8 -v 7 --json");
            thread::scope(|scope| {
                for i in 0..8 {
                    scope.spawn(move || send(recv_addr(), &repeating(7, 0, 500_000 + i)));
                }
            });
            let json = recv.finish().json();
            assert_eq!(json["connections"], 8);
            assert_all_right(&json, 4_000_028);
        },
    );
}

#[test]
fn a_receiver_that_keeps_its_tokens_slows_the_sender_and_loses_no_byte() {
    in_netns(
        "recv::payload::a_receiver_that_keeps_its_tokens_slows_the_sender_and_loses_no_byte",
        || {
            let recv = start_recv("-v 7 --json --mem-size 4M --niov 16K --keep-tokens 40");
            send(recv_addr(), &repeating(7, 0, 50_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 50_000_000);
            assert_nothing_dropped(&json);
        },
    );
}

#[test]
fn linear_bytes_are_delivered_in_order_with_the_rest() {
    in_netns(
        "recv::payload::linear_bytes_are_delivered_in_order_with_the_rest",
        || {
            let recv = start_recv("-v 7 --json --linear 100");
            send(recv_addr(), &repeating(7, 0, 10_000_000));
            let json = recv.finish().json();
            assert_all_right(&json, 10_000_000);
            assert!(
                json["linear_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
                "{json}"
            );
            assert!(
                json["device_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
                "{json}"
            );
        },
    );
}

#[test]
fn a_capture_has_every_payload_byte() {
    in_netns("recv::payload::a_capture_has_every_payload_byte", || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("capture.pcapng");
        let recv = start_recv(&format!("-v 7 --json --capture {}", file.display()));
        let sent = repeating(7, 0, 3_000_000);
        send(recv_addr(), &sent);
        let json = recv.finish().json();
        assert_all_right(&json, 3_000_000);
        let captured = captured_stream(&fs::read(&file).unwrap(), sent.len());
        assert!(captured == sent, "the capture's stream differs");
        let comments = comments(&fs::read(&file).unwrap(), 5201);
        assert!(
            comments
                .iter()
                .any(|comment| comment == "rx queue 1, no payload")
        );
        let split = "rx queue 1, split at 66, net_iov ";
        for comment in comments.iter().filter(|comment| comment.contains("split")) {
            // A packet that the sender repeated was received before, and has no token.
            let is_read = comment.contains(", token ");
            assert!(comment.starts_with(split), "{comment}");
            assert!(
                is_read || json["discarded"]["tcp_duplicate"].is_u64(),
                "{comment}"
            );
        }
        assert!(
            comments.iter().any(|comment| comment.contains("token")),
            "{comments:?}"
        );
    });
}

/// Reassembles the stream to port 5201 from a capture file.
fn captured_stream(file: &[u8], len: usize) -> Vec<u8> {
    use pcap_file::pcapng::{Block, PcapNgReader};
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut stream = vec![0; len];
    let mut start = None;
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else {
            continue;
        };
        let Ok(headers) = wire::RxHeaders::parse(&packet.data, packet.data.len()) else {
            continue;
        };
        let Some(tcp) = headers.tcp().filter(|tcp| tcp.dst_port == 5201) else {
            continue;
        };
        if tcp.flags.contains(wire::TcpFlags::SYN) {
            start = Some(tcp.seq.wrapping_add(1));
        }
        let (from, to) = (headers.header_len, headers.header_len + headers.payload_len);
        let offset = tcp.seq.wrapping_sub(start.expect("the SYN comes first"));
        let offset = usize::try_from(offset).unwrap();
        if from < to {
            stream[offset..offset + (to - from)].copy_from_slice(&packet.data[from..to]);
        }
    }
    stream
}
