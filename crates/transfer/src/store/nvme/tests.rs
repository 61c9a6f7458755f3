use client::Piece;
use nvme::pdu::{self, FromHost, parse_from_host};

use super::*;

fn limits(capsule_bytes: u64) -> Limits {
    Limits {
        capsule_bytes,
        ..Limits::FOR_TESTS
    }
}

fn session(capsule_bytes: u64, digests: Digests, acknowledge: Acknowledge) -> NvmeSession {
    let queue = QueueLimits {
        digests,
        most_data: 4096,
        depth: 3,
    };
    let limits = limits(capsule_bytes);
    NvmeSession::new("host", limits, &queue, acknowledge, Membership::of_nobody())
}

fn of(operation: Operation, end: u64) -> Write {
    let piece = Piece { start: 512, end };
    Write { operation, piece }
}

/// Takes what is to be sent: headers parsed, ranges of payload and of digests.
#[derive(Debug, PartialEq)]
enum Sent {
    Pdu(FromHost),
    Payload(Range),
    Digest(Range),
}

type Range = std::ops::Range<u64>;

fn sent(session: &mut NvmeSession) -> Vec<Sent> {
    let digests = session.digests;
    let next = || session.outgoing();
    let parse = |outgoing| match outgoing {
        Outgoing::Text(bytes) => match parse_from_host(&bytes, digests) {
            Ok(Parsed::Whole(pdu)) => Sent::Pdu(pdu),
            other => panic!("{other:?}"),
        },
        Outgoing::Payload { range, .. } => Sent::Payload(range),
        Outgoing::Digest { range, .. } => Sent::Digest(range),
    };
    std::iter::from_fn(next).map(parse).collect()
}

fn command(sent: &Sent) -> (&Sqe, u32) {
    match sent {
        Sent::Pdu(FromHost::Command { sqe, data_bytes }) => (sqe, *data_bytes),
        other => panic!("{other:?}"),
    }
}

fn transfer(command_id: u16, offset: u32, len: u32, digests: Digests) -> Vec<u8> {
    let transfer = Transfer {
        command_id,
        tag: 77,
        offset,
        len,
    };
    let mut bytes = Vec::new();
    pdu::ready_to_transfer(&transfer, digests, &mut bytes);
    bytes
}

fn response(command_id: u16, status: Status, digests: Digests) -> Vec<u8> {
    let cqe = Cqe {
        result: 0.into(),
        sq_head: 0.into(),
        sq_id: 1.into(),
        command_id: command_id.into(),
        status: status.to_field().into(),
    };
    let mut bytes = Vec::new();
    pdu::response(&cqe, digests, &mut bytes);
    bytes
}

fn feed(session: &mut NvmeSession, mut bytes: &[u8]) -> Result<(), Fault> {
    while !bytes.is_empty() && session.missing() > 0 {
        let (now, rest) = bytes.split_at(session.missing().min(bytes.len()).min(5));
        session.on_text(now)?;
        bytes = rest;
    }
    Ok(())
}

#[test]
fn a_short_write_has_its_data_in_the_capsule() {
    for bits in 0..4 {
        let digests = Digests::of_bits(bits);
        let mut session = session(1024, digests, Acknowledge::Durable);
        let write = of(Operation::Write, 1536);
        let id = session.request(write);
        let sent = sent(&mut session);
        let (sqe, data_bytes) = command(&sent[0]);
        assert!(sqe.is_durable() && sqe.has_data_in_capsule());
        assert_eq!((data_bytes, sqe.as_blocks().start), (1024, 1));
        assert_eq!(sent[1], Sent::Payload(0..1024));
        assert_eq!(sent.get(2), digests.data.then_some(&Sent::Digest(0..1024)));
        feed(&mut session, &response(0, Status::SUCCESS, digests)).unwrap();
        assert_eq!(session.completed(), Some((id, write)));
        assert!(!session.is_waiting());
    }
}

#[test]
fn the_data_of_a_long_write_are_sent_when_they_are_requested_and_in_parts() {
    for bits in 0..4 {
        let digests = Digests::of_bits(bits);
        let mut session = session(1024, digests, Acknowledge::Received);
        session.request(of(Operation::Write, 512 + 10_240));
        let first = sent(&mut session);
        let (sqe, data_bytes) = command(&first[0]);
        assert!(first.len() == 1 && data_bytes == 0 && !sqe.has_data_in_capsule());
        feed(&mut session, &transfer(0, 0, 6144, digests)).unwrap();
        let mut parts = sent(&mut session);
        feed(&mut session, &transfer(0, 6144, 4096, digests)).unwrap();
        parts.extend(sent(&mut session));
        let headers: Vec<_> = parts
            .iter()
            .filter_map(|sent| match sent {
                Sent::Pdu(FromHost::Data(data)) => Some((data.offset, data.len, data.is_last)),
                _ => None,
            })
            .collect();
        assert_eq!(
            headers,
            [(0, 4096, false), (4096, 2048, true), (6144, 4096, true)]
        );
        let payloads = [0..4096, 4096..6144, 6144..10_240];
        for payload in payloads {
            assert!(parts.contains(&Sent::Payload(payload.clone())));
            assert_eq!(parts.contains(&Sent::Digest(payload)), digests.data);
        }
        feed(&mut session, &response(0, Status::SUCCESS, digests)).unwrap();
        assert!(session.completed().is_some());
    }
}

#[test]
fn zeros_deallocations_and_flushes_send_no_payload() {
    let plain = Digests::default();
    let mut session = session(1024, plain, Acknowledge::Received);
    session.request(of(Operation::WriteZeroes, 1536));
    session.request(of(Operation::Trim, 1536));
    assert!(!session.accepts());
    session.request(of(Operation::Flush, 512));
    let mut lens = Vec::new();
    while let Some(Outgoing::Text(text)) = session.outgoing() {
        lens.push((text.len(), text[8]));
    }
    assert_eq!(lens, [(72, 0x08), (72 + 16, 0x09), (72, 0x00)]);
    for id in 0..3 {
        feed(&mut session, &response(id, Status::SUCCESS, plain)).unwrap();
        assert!(session.completed().is_some());
    }
}

#[test]
fn a_deallocation_is_described_on_request_where_capsules_have_no_data() {
    for bits in 0..4 {
        let digests = Digests::of_bits(bits);
        let mut session = session(0, digests, Acknowledge::Received);
        session.request(of(Operation::Trim, 1536));
        assert_eq!(sent(&mut session).len(), 1);
        feed(&mut session, &transfer(0, 0, 16, digests)).unwrap();
        let Some(Outgoing::Text(text)) = session.outgoing() else {
            panic!("the description");
        };
        let header = if digests.header { 28 } else { 24 };
        assert_eq!(
            text[header..header + 16],
            deallocated(blocks_of(of(Operation::Trim, 1536).piece, &limits(0)))
        );
        assert_eq!(text.len(), header + 16 + digests.data_bytes());
        feed(&mut session, &response(0, Status::SUCCESS, digests)).unwrap();
        assert!(session.completed().is_some());
    }
}

#[test]
fn what_no_command_explains_is_told_the_controller_and_fatal() {
    let plain = Digests::default();
    let mut data = Vec::new();
    let header = DataHeader {
        command_id: 0,
        transfer_tag: 0,
        offset: 0,
        len: 512,
        is_last: true,
        is_success: false,
    };
    Data::from_controller(&header, plain, &mut data);
    for (bytes, problem) in [
        (transfer(9, 0, 512, plain), "without a command"),
        (transfer(0, 0, 8192, plain), "before, behind or twice"),
        (transfer(0, 512, 512, plain), "before, behind or twice"),
        (
            transfer(0, u32::MAX, u32::MAX, plain),
            "before, behind or twice",
        ),
        (
            [transfer(0, 0, 512, plain), transfer(0, 0, 512, plain)].concat(),
            "before, behind or twice",
        ),
        (
            [transfer(0, 0, 512, plain), transfer(0, 512, 512, plain)].concat(),
            "while those of the last one are sent",
        ),
        (
            response(5, Status::SUCCESS, plain),
            "a response without a command",
        ),
        (
            response(0, Status::SUCCESS, plain),
            "its data were not requested",
        ),
        (data, "no write is answered with"),
        (vec![0x55; 24], "unknown type"),
    ] {
        let mut session = session(0, plain, Acknowledge::Received);
        session.request(of(Operation::Write, 4608));
        let fault = feed(&mut session, &bytes).expect_err(problem);
        let Fault::Fatal(StoreError::Export(error)) = fault else {
            panic!("{problem}: {fault:?}");
        };
        assert!(error.to_string().contains(problem), "{problem}: {error}");
        assert_eq!(session.last_word().expect(problem)[0], 2, "H2CTermReq");
        assert_eq!(session.take_outstanding().len(), 1);
    }
}

#[test]
fn a_refusal_names_its_range_and_a_remedy() {
    let plain = Digests::default();
    for (status, remedy) in [
        (Status::WRITE_PROTECTED, "is read-only"),
        (Status::LBA_OUT_OF_RANGE, "has shrunk"),
        (Status::INVALID_NAMESPACE, "has vanished"),
        (Status::CAPACITY_EXCEEDED, "make room"),
        (Status::INTERNAL, "log of the controller"),
    ] {
        let mut session = session(0, plain, Acknowledge::Received);
        session.request(of(Operation::Write, 1536));
        let refused = response(0, status.do_not_retry(), plain);
        let fault = feed(&mut session, &refused).unwrap_err();
        let Fault::Fatal(error) = fault else {
            panic!("{fault:?}");
        };
        let text = format!("{error}; {}", error.remedy().unwrap());
        assert!(
            text.contains("write bytes 512 to 1536") && text.contains(remedy),
            "{text}"
        );
    }
    let mut session = session(0, plain, Acknowledge::Received);
    session.request(of(Operation::Write, 1536));
    let lost = response(0, Status::of_field(0x302 << 1), plain);
    let fault = feed(&mut session, &lost).unwrap_err();
    assert!(matches!(fault, Fault::Broken(_)), "{fault:?}");
}

#[test]
fn a_command_overtakes_waiting_data_and_not_the_rest_of_a_pdu() {
    let digests = Digests::of_bits(2);
    let mut session = session(0, digests, Acknowledge::Received);
    session.request(of(Operation::Write, 512 + 8192));
    assert_eq!(sent(&mut session).len(), 1);
    feed(&mut session, &transfer(0, 0, 8192, digests)).unwrap();
    let Some(Outgoing::Text(_)) = session.outgoing() else {
        panic!("the header of the first PDU of data");
    };
    session.request(of(Operation::Flush, 512));
    let sent = sent(&mut session);
    assert_eq!(sent[..2], [Sent::Payload(0..4096), Sent::Digest(0..4096)]);
    assert_eq!(command(&sent[2]).0.opcode, 0);
    let Sent::Pdu(FromHost::Data(data)) = &sent[3] else {
        panic!("{:?}", sent[3]);
    };
    assert!(data.offset == 4096 && data.is_last);
    assert_eq!(
        sent[4..],
        [Sent::Payload(4096..8192), Sent::Digest(4096..8192)]
    );
}
