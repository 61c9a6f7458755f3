use nvme::pdu::{self, Data as DataPdu, Termination, Transfer};

use super::*;

const BLOCK: u64 = 512;

fn session(digests: Digests) -> NvmeSession {
    NvmeSession::new(
        "host",
        Limits::FOR_TESTS,
        digests,
        4,
        Membership::of_nobody(),
    )
}

/// A session with commands 0 and 1 for pieces of 2048 bytes.
fn asked(digests: Digests) -> NvmeSession {
    let mut session = session(digests);
    for start in [4096, 0] {
        session.request(Piece {
            start,
            end: start + 4 * BLOCK,
        });
    }
    session
}

fn data(command_id: u16, offset: u32, len: u32, is_last: bool, is_success: bool) -> DataHeader {
    DataHeader {
        command_id,
        transfer_tag: 0,
        offset,
        len,
        is_last,
        is_success,
    }
}

/// The header of data, and so many bytes of 7, with their digest.
fn data_pdu(header: &DataHeader, digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    DataPdu::from_controller(header, digests, &mut bytes);
    let payload = vec![7; header.len as usize];
    bytes.extend_from_slice(&payload);
    if digests.data {
        bytes.extend_from_slice(&pdu::digest_after(0, &payload).to_le_bytes());
    }
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

/// Feeds bytes as a connection does, `cut` at a time. Returns where payload was placed.
fn feed(session: &mut NvmeSession, mut bytes: &[u8], cut: usize) -> Result<Vec<(u64, u64)>, Fault> {
    let mut placed = Vec::new();
    while !bytes.is_empty() {
        match session.next() {
            Next::Header(most) => {
                let (now, rest) = bytes.split_at(most.min(cut).min(bytes.len()));
                session.on_text(now)?;
                bytes = rest;
            }
            Next::Payload { at, len } => {
                let now = (len as usize).min(cut).min(bytes.len());
                if let Some(sum) = session.checksum() {
                    sum.add(&bytes[..now]);
                }
                placed.push((at, now as u64));
                session.on_bytes(now as u64)?;
                bytes = &bytes[now..];
            }
            next => panic!("{} bytes are left: {next:?}", bytes.len()),
        }
    }
    Ok(placed)
}

#[test]
fn data_of_commands_in_any_order_go_to_their_places_however_they_are_cut() {
    for bits in 0..4 {
        let digests = Digests::of_bits(bits);
        let bytes = [
            data_pdu(&data(1, 0, 512, false, false), digests),
            data_pdu(&data(0, 0, 2048, true, true), digests),
            data_pdu(&data(1, 512, 1536, true, false), digests),
            response(1, Status::SUCCESS, digests),
        ]
        .concat();
        for cut in [1, 7, 100, usize::MAX] {
            let mut session = asked(digests);
            let placed = feed(&mut session, &bytes, cut).unwrap();
            let total: u64 = placed.iter().map(|(_, len)| len).sum();
            assert_eq!(total, 4096);
            if cut == usize::MAX {
                assert_eq!(placed, [(0, 512), (4096, 2048), (512, 1536)]);
            }
            let done: Vec<_> = std::iter::from_fn(|| session.completed()).collect();
            assert_eq!(
                done.iter().map(|it| it.start).collect::<Vec<_>>(),
                [4096, 0]
            );
            assert_eq!((session.outstanding(), session.next()), (0, Next::Nothing));
            assert_eq!(session.last_word(), None);
        }
    }
}

/// What a controller may not send, and what is said about it.
fn wrong_answers() -> Vec<(Vec<u8>, &'static str)> {
    let plain = Digests::default();
    let whole = || data_pdu(&data(0, 0, 2048, true, false), plain);
    let transfer = Transfer {
        command_id: 0,
        tag: 0,
        offset: 0,
        len: 512,
    };
    let mut requested = Vec::new();
    pdu::ready_to_transfer(&transfer, plain, &mut requested);
    vec![
        (
            data_pdu(&data(9, 0, 512, false, false), plain),
            "data without a command",
        ),
        (
            data_pdu(&data(0, 512, 512, false, false), plain),
            "before, behind or twice",
        ),
        (
            data_pdu(&data(0, 0, 2049, true, false), plain),
            "before, behind or twice",
        ),
        (
            data_pdu(&data(0, 0, 512, true, true), plain),
            "some are missing",
        ),
        (
            [
                data_pdu(&data(0, 0, 512, false, false), plain),
                data_pdu(&data(0, 0, 512, false, false), plain),
            ]
            .concat(),
            "before, behind or twice",
        ),
        (
            [whole(), data_pdu(&data(0, 2048, 512, false, false), plain)].concat(),
            "before, behind or twice",
        ),
        (
            response(7, Status::SUCCESS, plain),
            "a response without a command",
        ),
        (response(0, Status::SUCCESS, plain), "data are missing"),
        (
            [
                whole(),
                response(0, Status::SUCCESS, plain),
                response(0, Status::SUCCESS, plain),
            ]
            .concat(),
            "a response without a command",
        ),
        (requested, "no read is answered with"),
        (vec![0xff; 24], "unknown type"),
    ]
}

#[test]
fn what_no_command_asked_for_is_told_the_controller_and_fatal() {
    for (bytes, problem) in wrong_answers() {
        let mut session = asked(Digests::default());
        let fault = feed(&mut session, &bytes, usize::MAX).expect_err(problem);
        let Fault::Fatal(error @ LoadError::Invalid { .. }) = fault else {
            panic!("{problem}: {fault:?}");
        };
        assert!(error.to_string().contains(problem), "{problem}: {error}");
        let word = session.last_word().expect(problem);
        assert_eq!(word[0], 2, "H2CTermReq");
    }
}

#[test]
fn a_command_that_failed_is_fatal_with_its_place_and_a_path_that_failed_is_not() {
    let plain = Digests::default();
    let mut session = asked(plain);
    let failed = response(0, Status::LBA_OUT_OF_RANGE.do_not_retry(), plain);
    let fault = feed(&mut session, &failed, usize::MAX).unwrap_err();
    let Fault::Fatal(error) = fault else {
        panic!("{fault:?}");
    };
    let text = format!("{error}; {}", error.remedy().unwrap());
    assert!(
        text.contains("at byte 4096") && text.contains("has shrunk"),
        "{text}"
    );

    let mut session = asked(plain);
    let aborted = response(0, Status::ABORTED_QUEUE_DELETED, plain);
    let fault = feed(&mut session, &aborted, usize::MAX).unwrap_err();
    assert!(matches!(fault, Fault::Broken(_)), "{fault:?}");
    assert_eq!(
        session.take_outstanding().len(),
        2,
        "both are requested again"
    );
}

#[test]
fn wrong_digests_and_the_end_of_the_connection_ask_for_another_one() {
    let digests = Digests::of_bits(3);
    let good = data_pdu(&data(0, 0, 2048, true, true), digests);
    for at in [8, 27, 100, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        let mut session = asked(digests);
        let fault = feed(&mut session, &bytes, usize::MAX).unwrap_err();
        assert!(matches!(fault, Fault::Broken(_)), "{at}: {fault:?}");
        assert!(session.completed().is_none());
    }
    let mut session = asked(digests);
    let error = PduError {
        status: FatalStatus::LimitExceeded,
        offset: 0,
        problem: "",
    };
    let mut bytes = Vec::new();
    terminate(Side::Controller, &error, &[0; 72], &mut bytes);
    let fault = feed(&mut session, &bytes, 10).unwrap_err();
    let Fault::Broken(cause) = fault else {
        panic!("{fault:?}");
    };
    assert!(cause.reason().contains("limit exceeded"), "{cause}");
    let unknown = Termination {
        status: 99,
        information: 0,
        header: Vec::new(),
    };
    assert_eq!(FatalStatus::meaning(unknown.status), "unknown reason");
    assert!(matches!(session.on_end(), Fault::Broken(_)));
}

#[test]
fn names_of_commands_in_flight_are_different_also_after_65536_of_them() {
    let plain = Digests::default();
    let mut session = session(plain);
    let piece = Piece {
        start: 0,
        end: BLOCK,
    };
    // One command stays in flight.
    session.request(piece);
    for _ in 0..0x1_0001 {
        session.request(piece);
        assert_eq!(session.outstanding(), 2);
        let id = session.next_id.wrapping_sub(1);
        assert_ne!(id, 0);
        let header = data(id, 0, 512, true, true);
        feed(&mut session, &data_pdu(&header, plain), usize::MAX).unwrap();
        session.outgoing().clear();
        assert_eq!(session.completed(), Some(piece));
    }
}

#[test]
fn the_data_of_all_commands_are_predicted_behind_the_headers_that_come_before_them() {
    for bits in 0..4 {
        let digests = Digests::of_bits(bits);
        let header = if digests.header { 28 } else { 24 };
        let mut session = asked(digests);
        let behind = digests.data_bytes() + header;
        let of = |gap, at, len| Predicted { gap, at, len };
        // Command 0 is of the piece at 4096, command 1 of that at 0.
        let whole = [of(header, 4096, 2048), of(behind, 0, 2048)];
        assert_eq!(session.predicted(9), whole);
        assert_eq!(session.predicted(1), whole[..1]);
        let part = data_pdu(&data(0, 0, 1024, false, false), digests);
        feed(&mut session, &part[..10], usize::MAX).unwrap();
        assert_eq!(session.predicted(1), [of(header - 10, 4096, 2048)]);
        feed(&mut session, &part[10..header], usize::MAX).unwrap();
        let parts = |first| {
            [
                of(first, 5120, 1024),
                of(behind, 0, 1024),
                of(behind, 1024, 1024),
            ]
        };
        assert_eq!(session.predicted(9), parts(behind), "in parts from now on");
        feed(&mut session, &part[header..], usize::MAX).unwrap();
        assert_eq!(session.predicted(9), parts(header));
        let last = data_pdu(&data(0, 1024, 1024, true, false), digests);
        feed(&mut session, &last[..header], usize::MAX).unwrap();
        let rest = |first| [of(first, 0, 1024), of(behind, 1024, 1024)];
        assert_eq!(
            session.predicted(9),
            rest(behind + header),
            "a response first"
        );
        feed(&mut session, &last[header..], usize::MAX).unwrap();
        let answer = response(0, Status::SUCCESS, digests);
        feed(&mut session, &answer, usize::MAX).unwrap();
        assert_eq!(session.predicted(9), rest(header));
        let whole = data_pdu(&data(1, 0, 2048, true, true), digests);
        feed(&mut session, &whole[..header], usize::MAX).unwrap();
        assert_eq!(session.predicted(9), []);
    }
}

#[test]
fn responses_are_predicted_if_the_last_data_had_one_and_not_if_they_were_the_success() {
    let plain = Digests::default();
    for (is_success, gap) in [(true, 24), (false, 48)] {
        let mut session = asked(plain);
        session.request(Piece {
            start: 8192,
            end: 8192 + BLOCK,
        });
        let whole = data_pdu(&data(0, 0, 2048, true, is_success), plain);
        feed(&mut session, &whole[..24], usize::MAX).unwrap();
        let of = |at, len| Predicted { gap, at, len };
        assert_eq!(session.predicted(9), [of(0, 2048), of(8192, 512)]);
    }
}
