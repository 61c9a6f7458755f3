use proptest::prelude::*;

use super::*;
use crate::{FastOpenCookie, FastOpenForm};

fn blocks(pairs: &[(u32, u32)]) -> SackBlocks {
    let mut blocks = SackBlocks::new();
    for (left, right) in pairs {
        assert!(blocks.push(*left, *right));
    }
    blocks
}

fn emitted(options: &TcpOptions) -> Vec<u8> {
    let mut out = [0xee; 40];
    let len = options.emit(&mut out);
    assert_eq!(len, options.emit_len());
    assert!(
        out[len..].iter().all(|byte| *byte == 0xee),
        "wrote past the length it returned"
    );
    out[..len].to_vec()
}

#[test]
fn no_bytes_are_no_options() {
    assert_eq!(TcpOptions::parse(&[]), Ok(TcpOptions::default()));
    assert_eq!(emitted(&TcpOptions::default()), []);
}

#[test]
fn the_syn_of_a_linux_host_is_understood() {
    let bytes = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7,
    ];
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        sack: SackBlocks::new(),
        accecn: None,
        fast_open: None,
    };
    assert_eq!(TcpOptions::parse(&bytes), Ok(options));
    assert_eq!(emitted(&options), bytes);
}

#[test]
fn a_lone_timestamp_is_laid_out_for_the_fast_path() {
    let timestamps = Some(Timestamps {
        value: 0x0102_0304,
        echo: 0x0506_0708,
    });
    let options = TcpOptions {
        timestamps,
        ..TcpOptions::default()
    };
    assert_eq!(emitted(&options), [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(TcpOptions::parse(&emitted(&options)), Ok(options));
}

fn fast_open(cookie: &[u8], form: FastOpenForm) -> TcpOptions {
    let cookie = FastOpenCookie::new(cookie);
    TcpOptions {
        fast_open: Some(FastOpen { cookie, form }),
        ..TcpOptions::default()
    }
}

#[test]
fn fast_open_is_written_and_understood_in_both_forms() {
    let standard = fast_open(&[1, 2, 3, 4], FastOpenForm::Standard);
    assert_eq!(emitted(&standard), [34, 6, 1, 2, 3, 4, 1, 1]);
    let experimental = fast_open(&[1, 2, 3, 4], FastOpenForm::Experimental);
    assert_eq!(emitted(&experimental), [254, 8, 0xf9, 0x89, 1, 2, 3, 4]);
    let request = fast_open(&[], FastOpenForm::Standard);
    assert_eq!(emitted(&request), [34, 2, 1, 1]);
    let longest = fast_open(&[9; 16], FastOpenForm::Experimental);
    for options in [standard, experimental, request, longest] {
        assert_eq!(TcpOptions::parse(&emitted(&options)), Ok(options));
    }
}

#[test]
fn a_fast_open_option_that_is_no_cookie_is_skipped() {
    let odd = [34, 7, 1, 2, 3, 4, 5, 1];
    let short = [34, 4, 1, 2];
    let long = [&[34, 20][..], &[7; 18]].concat();
    let other_experiment = [254, 8, 0xf9, 0x88, 1, 2, 3, 4];
    let unmarked = [254, 3, 0xf9, 1];
    for bytes in [&odd[..], &short, &long, &other_experiment, &unmarked] {
        assert_eq!(TcpOptions::parse(bytes), Ok(TcpOptions::default()));
    }
}

#[test]
fn fast_open_is_left_out_where_it_does_not_fit() {
    let full = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps::default()),
        ..fast_open(&[9; 16], FastOpenForm::Standard)
    };
    assert_eq!(emitted(&full).len(), 40);
    let sack = blocks(&[(1, 2)]);
    let too_full = TcpOptions { sack, ..full };
    assert_eq!(emitted(&too_full).len(), 32);
}

#[test]
fn an_unaligned_timestamp_means_the_same_as_an_aligned_one() {
    let options = TcpOptions::parse(&[8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]).unwrap();
    assert_eq!(
        options.timestamps,
        Some(Timestamps {
            value: 0x0102_0304,
            echo: 0x0506_0708
        })
    );
}

#[test]
fn an_option_of_length_zero_or_one_is_an_error() {
    let error = |kind, len| Err(TcpOptionsError::BadLength { kind, len });
    assert_eq!(TcpOptions::parse(&[8, 0, 0, 0]), error(8, 0));
    assert_eq!(TcpOptions::parse(&[1, 99, 1, 0]), error(99, 1));
}

#[test]
fn an_option_past_the_end_is_an_error() {
    let error = |kind, len| Err(TcpOptionsError::BadLength { kind, len });
    assert_eq!(TcpOptions::parse(&[2, 5, 5, 0xb4]), error(2, 5));
    assert_eq!(TcpOptions::parse(&[254, 255]), error(254, 255));
}

#[test]
fn an_option_without_a_length_byte_is_an_error() {
    assert_eq!(
        TcpOptions::parse(&[1, 1, 1, 8]),
        Err(TcpOptionsError::NoLength { kind: 8 })
    );
}

#[test]
fn nothing_counts_after_the_end_of_list() {
    assert_eq!(
        TcpOptions::parse(&[1, 0, 8, 0, 2, 4, 5, 0xb4]),
        Ok(TcpOptions::default())
    );
}

#[test]
fn unknown_options_are_skipped() {
    let options = TcpOptions::parse(&[254, 6, 1, 2, 3, 4, 2, 4, 5, 0xb4, 30, 2]).unwrap();
    assert_eq!(
        options,
        TcpOptions {
            mss: Some(1460),
            ..TcpOptions::default()
        }
    );
}

#[test]
fn known_options_of_another_length_are_skipped() {
    for bytes in [
        &[2, 3, 5][..],
        &[3, 4, 7, 7],
        &[4, 3, 0],
        &[8, 9, 0, 0, 0, 0, 0, 0, 0],
        &[5, 9, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(
            TcpOptions::parse(bytes),
            Ok(TcpOptions::default()),
            "{bytes:?}"
        );
    }
}

#[test]
fn of_two_timestamps_the_later_counts() {
    let bytes = [8, 10, 0, 0, 0, 1, 0, 0, 0, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 2];
    let timestamps = TcpOptions::parse(&bytes).unwrap().timestamps;
    assert_eq!(timestamps, Some(Timestamps { value: 2, echo: 2 }));
}

#[test]
fn of_two_sack_options_the_later_counts() {
    let mut bytes = vec![5, 18];
    bytes.extend([0; 16]);
    bytes.extend([5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(TcpOptions::parse(&bytes).unwrap().sack, blocks(&[(1, 2)]));
}

#[test]
fn an_absurd_window_scale_counts_as_fourteen() {
    assert_eq!(
        TcpOptions::parse(&[3, 3, 255]).unwrap().window_scale,
        Some(14)
    );
    assert_eq!(
        TcpOptions::parse(&[3, 3, 14]).unwrap().window_scale,
        Some(14)
    );
    assert_eq!(TcpOptions::parse(&[3, 3, 0]).unwrap().window_scale, Some(0));
}

#[test]
fn more_than_four_sack_blocks_are_cut_to_the_first_four() {
    let mut bytes = vec![5, 2 + 8 * 6];
    for block in 0..6u32 {
        bytes.extend((block * 10).to_be_bytes());
        bytes.extend((block * 10 + 5).to_be_bytes());
    }
    let sack = TcpOptions::parse(&bytes).unwrap().sack;
    assert_eq!(sack, blocks(&[(0, 5), (10, 15), (20, 25), (30, 35)]));
}

#[test]
fn a_fifth_block_is_refused() {
    let mut full = blocks(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    assert!(!full.push(9, 10));
    assert_eq!(
        full.iter().collect::<Vec<_>>(),
        [(1, 2), (3, 4), (5, 6), (7, 8)]
    );
    assert_eq!(full.len(), 4);
    assert!(!full.is_empty() && SackBlocks::new().is_empty());
}

#[test]
fn blocks_left_over_from_before_do_not_make_a_difference() {
    let mut replaced = TcpOptions::default();
    replaced.set(SACK, &[9; 16]);
    replaced.set(SACK, &[0; 8]);
    assert_eq!(replaced.sack, blocks(&[(0, 0)]));
}

#[test]
fn timestamps_leave_room_for_three_sack_blocks() {
    let sack = blocks(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    let options = TcpOptions {
        timestamps: Some(Timestamps::default()),
        sack,
        ..TcpOptions::default()
    };
    let bytes = emitted(&options);
    assert_eq!(bytes.len(), 40);
    assert_eq!(
        TcpOptions::parse(&bytes).unwrap().sack,
        blocks(&[(1, 2), (3, 4), (5, 6)])
    );
}

fn arbitrary() -> impl Strategy<Value = TcpOptions> {
    (
        any::<Option<u16>>(),
        proptest::option::of(0..=MAX_WINDOW_SCALE),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        any::<Option<([u32; 3], u8)>>(),
        proptest::collection::vec(any::<(u32, u32)>(), 0..=4),
        proptest::option::of((proptest::collection::vec(any::<u8>(), 0..18), any::<bool>())),
    )
        .prop_map(
            |(mss, window_scale, sack_permitted, timestamps, accecn, pairs, fast_open)| {
                TcpOptions {
                    mss,
                    window_scale,
                    sack_permitted,
                    timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                    accecn: accecn.map(|([ect1, ce, ect0], fields)| {
                        let told =
                            |at: u8, field: u32| (fields % 4 > at).then_some(field & 0x00ff_ffff);
                        AccEcn {
                            ect1: told(0, ect1),
                            ce: told(1, ce),
                            ect0: told(2, ect0),
                        }
                    }),
                    sack: blocks(&pairs),
                    fast_open: fast_open.map(|(cookie, is_standard)| FastOpen {
                        cookie: FastOpenCookie::new(&cookie),
                        form: match is_standard {
                            true => FastOpenForm::Standard,
                            false => FastOpenForm::Experimental,
                        },
                    }),
                }
            },
        )
}

proptest! {
    #[test]
    fn options_survive_the_round_trip_unless_they_have_no_room(options in arbitrary()) {
        let bytes = emitted(&options);
        prop_assert!(bytes.len() <= 40 && bytes.len().is_multiple_of(4));
        let parsed = TcpOptions::parse(&bytes).unwrap();
        prop_assert!(options.sack.as_slice().starts_with(parsed.sack.as_slice()));
        if parsed.sack != options.sack {
            // The first block brings four bytes more.
            let head = if parsed.sack.is_empty() { 4 } else { 0 };
            prop_assert!(bytes.len() + head + 8 > 40, "a block was left out although there was room");
        }
        if parsed.fast_open.is_none() {
            prop_assert!(options.fast_open.is_none() || bytes.len() > 20);
        } else {
            prop_assert_eq!(parsed.fast_open, options.fast_open);
        }
        let TcpOptions { sack, fast_open, .. } = options;
        prop_assert_eq!(TcpOptions { sack, fast_open, ..parsed }, options);
    }

    #[test]
    fn any_bytes_are_options_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(options) = TcpOptions::parse(&bytes) {
            prop_assert!(options.window_scale.is_none_or(|shift| shift <= MAX_WINDOW_SCALE));
            prop_assert!(options.sack.len() <= SackBlocks::CAPACITY);
        }
    }

    #[test]
    fn the_fast_path_agrees_with_the_slow_one(value: u32, echo: u32) {
        let mut bytes = vec![1, 1, 8, 10];
        bytes.extend(value.to_be_bytes());
        bytes.extend(echo.to_be_bytes());
        prop_assert_eq!(TcpOptions::parse(&bytes), TcpOptions::parse_slow(&bytes));
    }
}

#[test]
fn accecn_is_read_in_both_orders_and_written_in_the_one_of_linux() {
    let option = AccEcn {
        ect1: Some(1),
        ce: Some(0x0002_0304),
        ect0: Some(0x00ff_ffff),
    };
    let all = TcpOptions {
        accecn: Some(option),
        ..TcpOptions::default()
    };
    let bytes = [174, 11, 0, 0, 1, 2, 3, 4, 0xff, 0xff, 0xff, 1];
    assert_eq!(emitted(&all), bytes);
    assert_eq!(TcpOptions::parse(&bytes), Ok(all));
    let other = [172, 11, 0xff, 0xff, 0xff, 2, 3, 4, 0, 0, 1, 1];
    assert_eq!(TcpOptions::parse(&other), Ok(all));
    let some = AccEcn {
        ect0: None,
        ..option
    };
    let options = TcpOptions {
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        accecn: Some(some),
        sack: blocks(&[(1, 2), (3, 4)]),
        ..TcpOptions::default()
    };
    let bytes = emitted(&options);
    assert_eq!(bytes.len(), 40, "all room is used");
    assert_eq!(TcpOptions::parse(&bytes), Ok(options));
    // A third field takes the room of a SACK block.
    let full = TcpOptions {
        accecn: Some(option),
        ..options
    };
    let read = TcpOptions::parse(&emitted(&full)).unwrap();
    assert_eq!((read.accecn, read.sack), (Some(option), blocks(&[(1, 2)])));
    // An option without fields is one, and a length that no field has is none.
    let empty = TcpOptions::parse(&[172, 2, 0, 0]).unwrap();
    assert_eq!(empty.accecn, Some(AccEcn::default()));
    for bytes in [
        &[172, 4, 1, 2][..],
        &[174, 14, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0],
    ] {
        assert_eq!(TcpOptions::parse(bytes).unwrap().accecn, None);
    }
}
