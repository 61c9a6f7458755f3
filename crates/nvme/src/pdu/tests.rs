//! Every PDU there and back, byte by byte, and what no PDU is.

use proptest::prelude::*;

use super::*;
use crate::command::{Blocks, DataPlace, Sqe};

const DIGESTS: [Digests; 4] = [
    Digests {
        header: false,
        data: false,
    },
    Digests {
        header: true,
        data: false,
    },
    Digests {
        header: false,
        data: true,
    },
    Digests {
        header: true,
        data: true,
    },
];

/// Parses byte by byte, as little as a connection may deliver; returns what the PDU says and the length before its data.
fn parsed<T>(
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Result<Parsed<T>, PduError>,
) -> Result<(T, usize), PduError> {
    for len in 0..=bytes.len() {
        match parse(&bytes[..len])? {
            Parsed::More(more) => assert!(more > 0 && len + more <= bytes.len(), "{len}"),
            Parsed::Whole(pdu) => return Ok((pdu, len)),
        }
    }
    panic!("{} bytes are not enough", bytes.len());
}

fn of_controller(bytes: &[u8], digests: Digests) -> Result<(FromController, usize), PduError> {
    parsed(bytes, |bytes| parse_from_controller(bytes, digests))
}

fn of_host(bytes: &[u8], digests: Digests) -> Result<(FromHost, usize), PduError> {
    parsed(bytes, |bytes| parse_from_host(bytes, digests))
}

fn data_header() -> DataHeader {
    DataHeader {
        command_id: 7,
        transfer_tag: 9,
        offset: 4096,
        len: 512,
        is_last: true,
        is_success: false,
    }
}

/// A header of data of a read.
fn read_data(data: &DataHeader, digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    Data::from_controller(data, digests, &mut bytes);
    bytes
}

#[test]
fn a_handshake_has_128_bytes_and_no_digest() {
    for digests in DIGESTS {
        let request = HandshakeRequest {
            version: 0,
            alignment: 0,
            digests,
            most_transfers: 0,
        };
        let bytes = Handshake::request(request);
        assert_eq!(bytes[..8], [0, 0, 128, 0, 128, 0, 0, 0]);
        assert_eq!(bytes[11], digests.bits());
        let expected = FromHost::Handshake(request);
        assert_eq!(of_host(&bytes, digests), Ok((expected, 128)));
        let answer = HandshakeAnswer {
            version: 0,
            alignment: 3,
            digests,
            most_data: 0x40_0000,
        };
        let bytes = Handshake::answer(answer);
        let expected = FromController::Handshake(answer);
        assert_eq!(of_controller(&bytes, digests), Ok((expected, 128)));
    }
}

#[test]
fn a_pdu_without_data_has_the_length_of_its_header() {
    for longer in [1, 4] {
        let mut bytes = vec![0; 32];
        bytes[..8].copy_from_slice(&[0x05, 0, 24, 0, 24 + longer, 0, 0, 0]);
        let error = of_controller(&bytes, Digests::default()).unwrap_err();
        assert_eq!(error.offset, 4, "{error}");
    }
}

#[test]
fn a_response_is_24_bytes_and_its_digest() {
    let cqe = Cqe {
        result: 5.into(),
        sq_head: 1.into(),
        sq_id: 2.into(),
        command_id: 0x1234.into(),
        status: crate::Status::INVALID_FIELD.to_field().into(),
    };
    for digests in DIGESTS {
        let mut bytes = Vec::new();
        response(&cqe, digests, &mut bytes);
        assert_eq!(bytes.len(), 24 + digests.header_bytes());
        assert_eq!(bytes[20..24], [0x34, 0x12, 4, 0]);
        let len = bytes.len();
        let expected = FromController::Response(cqe);
        assert_eq!(of_controller(&bytes, digests), Ok((expected, len)));
    }
}

#[test]
fn data_of_both_directions_end_their_header_where_the_data_begin() {
    for digests in DIGESTS {
        let data = data_header();
        let bytes = read_data(&data, digests);
        let header = 24 + digests.header_bytes();
        assert_eq!((bytes.len(), usize::from(bytes[3])), (header, header));
        let plen = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        assert_eq!(plen, header + 512 + digests.data_bytes());
        let expected = FromController::Data(data);
        assert_eq!(of_controller(&bytes, digests), Ok((expected, header)));
        let mut bytes = Vec::new();
        Data::from_host(&data, digests, &mut bytes);
        assert_eq!(of_host(&bytes, digests), Ok((FromHost::Data(data), header)));
    }
}

#[test]
fn padding_before_data_belongs_to_the_header() {
    let mut bytes = read_data(&data_header(), Digests::default());
    bytes[3] += 8;
    bytes[4] += 8;
    bytes.extend([0; 8]);
    let (_, len) = of_controller(&bytes, Digests::default()).unwrap();
    assert_eq!(len, 32);
}

#[test]
fn commands_have_data_in_their_capsule_or_none() {
    let blocks = Blocks { start: 8, count: 1 };
    for digests in DIGESTS {
        for (data_bytes, place) in [(0, DataPlace::OnRequest), (512, DataPlace::InCapsule)] {
            let sqe = Sqe::write(1, blocks, 512, place, false).named(3);
            let mut bytes = Vec::new();
            Capsule {
                sqe: &sqe,
                data_bytes,
            }
            .write(digests, &mut bytes);
            let len = bytes.len();
            assert_eq!(len, 72 + digests.header_bytes());
            let expected = FromHost::Command { sqe, data_bytes };
            assert_eq!(of_host(&bytes, digests), Ok((expected, len)));
        }
        let mut bytes = Vec::new();
        Capsule::write_all(&Sqe::flush(1), &[], digests, &mut bytes);
        assert_eq!(
            bytes.len(),
            72 + digests.header_bytes(),
            "nothing to digest"
        );
    }
}

#[test]
fn a_request_for_data_names_its_transfer() {
    let transfer = Transfer {
        command_id: 1,
        tag: 2,
        offset: 3,
        len: 4,
    };
    let mut bytes = Vec::new();
    ready_to_transfer(&transfer, DIGESTS[1], &mut bytes);
    let expected = FromController::ReadyToTransfer(transfer);
    assert_eq!(of_controller(&bytes, DIGESTS[1]), Ok((expected, 28)));
    let nothing = Transfer { len: 0, ..transfer };
    let mut bytes = Vec::new();
    ready_to_transfer(&nothing, DIGESTS[0], &mut bytes);
    assert!(of_controller(&bytes, DIGESTS[0]).is_err());
}

#[test]
fn the_end_of_a_connection_has_the_header_that_it_complains_about() {
    let error = PduError {
        status: FatalStatus::OutOfRange,
        offset: 12,
        problem: "",
    };
    for of in [&[][..], &[1; 24], &[2; 500]] {
        let mut bytes = Vec::new();
        terminate(Side::Controller, &error, of, &mut bytes);
        let kept = &of[..of.len().min(128)];
        let expected = Termination {
            status: 4,
            information: 12,
            header: kept.to_vec(),
        };
        let len = 24 + kept.len();
        let (pdu, used) = of_controller(&bytes, DIGESTS[3]).unwrap();
        assert_eq!(
            (pdu, used),
            (FromController::Terminated(expected.clone()), len)
        );
        bytes[0] = 2;
        let (pdu, _) = of_host(&bytes, DIGESTS[0]).unwrap();
        assert_eq!(pdu, FromHost::Terminated(expected));
    }
    assert_eq!(FatalStatus::meaning(4), "data out of range");
}

#[test]
fn the_end_of_a_connection_is_as_long_as_it_may_be() {
    for (hlen, plen) in [(24, 23u32), (24, 153), (24, u32::MAX), (23, 24), (128, 152)] {
        for (kind, is_host) in [(2, true), (3, false)] {
            let mut bytes = vec![0; 200];
            bytes[..4].copy_from_slice(&[kind, 0, hlen, 0]);
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
            let refused = match is_host {
                true => of_host(&bytes, Digests::default()).is_err(),
                false => of_controller(&bytes, Digests::default()).is_err(),
            };
            assert!(refused, "{hlen} {plen}");
            // Nothing is read for one that is too long.
            let first = parse_from_controller(&bytes[..24], Digests::default());
            assert!(is_host || first.is_err(), "{first:?}");
        }
    }
}

#[test]
fn what_is_no_pdu_is_refused_with_its_field() {
    let good = read_data(&data_header(), Digests::default());
    // Type, header length, offset of data, length, flags.
    for (at, value, field) in [
        (0, 0x06, 0),
        (0, 0x08, 0),
        (0, 0xff, 0),
        (2, 23, 2),
        (2, 128, 2),
        (3, 23, 3),
        (3, 0, 3),
        (4, 23, 4),
        (4, 25, 4),
        (6, 1, 4),
        (17, 0, 4),
        (1, 1, 1),
        (1, 2, 1),
        (1, 8, 1),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes.resize(200, 0);
        let error = of_controller(&bytes, Digests::default()).expect_err("refused");
        assert_eq!(error.offset, field, "byte {at} = {value}: {error}");
    }
    let mut empty = good;
    empty[4..8].copy_from_slice(&24u32.to_le_bytes());
    empty[16..20].fill(0);
    assert!(
        of_controller(&empty, Digests::default()).is_err(),
        "no data"
    );
}

#[test]
fn a_wrong_digest_of_a_header_is_found_wherever_the_bit_is() {
    let good = read_data(&data_header(), DIGESTS[1]);
    for at in 8..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        bytes.resize(256, 0);
        let found = parsed(&bytes, |bytes| parse_from_controller(bytes, DIGESTS[1]));
        assert!(found.is_err(), "bit {at}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_pdu_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), bits in 0..4u8) {
        let digests = Digests::of_bits(bits);
        for len in 0..=bytes.len() {
            match parse_from_controller(&bytes[..len], digests) {
                Ok(Parsed::More(more)) => prop_assert!(more > 0 && more < 512),
                Ok(Parsed::Whole(_)) | Err(_) => break,
            }
        }
        for len in 0..=bytes.len() {
            match parse_from_host(&bytes[..len], digests) {
                Ok(Parsed::More(more)) => prop_assert!(more > 0 && more < 512),
                Ok(Parsed::Whole(_)) | Err(_) => break,
            }
        }
    }

    #[test]
    fn any_data_header_is_read_as_written(
        command_id in any::<u16>(), transfer_tag in any::<u16>(), offset in any::<u32>(),
        len in 1..u32::MAX - 64, last in any::<bool>(), success in any::<bool>(), bits in 0..4u8,
    ) {
        let digests = Digests::of_bits(bits);
        let data = DataHeader {
            command_id, transfer_tag, offset, len,
            is_last: last, is_success: last && success,
        };
        let bytes = read_data(&data, digests);
        let (pdu, _) = of_controller(&bytes, digests).unwrap();
        prop_assert_eq!(pdu, FromController::Data(data));
    }
}
