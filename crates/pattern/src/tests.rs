use super::*;

fn position_stream(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    PositionPattern::new(seed).fill(0, &mut bytes);
    bytes
}

fn position_verifier(seed: u64) -> Verifier {
    Verifier::new(Expected::Position(PositionPattern::new(seed)))
}

/// The stream of the ncdevmem test: `yes $(echo -e \\x01...) | tr \\n ZERO`.
fn repeating_stream(period: u16, zero: u8, len: usize) -> Vec<u8> {
    (1..period)
        .map(|b| b as u8)
        .chain([zero])
        .cycle()
        .take(len)
        .collect()
}

#[test]
fn a_stream_can_be_written_and_checked_in_pieces_of_any_size() {
    let whole = position_stream(7, 200_000);
    for cut in [1, 2, 3, 7, 8, 9, 63, 64, 65, 1447, 4096, 32768, 65160] {
        let mut pieces = vec![0; whole.len()];
        for (i, piece) in pieces.chunks_mut(cut).enumerate() {
            PositionPattern::new(7).fill((i * cut) as u64, piece);
        }
        assert!(pieces == whole, "written in pieces of {cut}");
        let mut verifier = position_verifier(7);
        whole.chunks(cut).for_each(|piece| verifier.check(piece));
        assert_eq!(
            (verifier.good_bytes(), verifier.bad_bytes()),
            (200_000, 0),
            "cut {cut}"
        );
    }
}

#[test]
fn every_changed_byte_is_found_with_its_position() {
    let whole = position_stream(1, 1000);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        let mut verifier = position_verifier(1);
        bytes.chunks(333).for_each(|piece| verifier.check(piece));
        assert_eq!(
            (verifier.bad_bytes(), verifier.first_bad()),
            (1, Some(at as u64))
        );
        assert_eq!(verifier.good_bytes(), 999);
    }
}

#[test]
fn bytes_from_another_position_or_another_stream_are_found() {
    let whole = position_stream(1, 1 << 20);
    for shift in [1, 8, 64, 4096, 65536, 65160, 1 << 19] {
        let mut verifier = position_verifier(1);
        verifier.check(&whole[shift..]);
        let len = (whole.len() - shift) as u64;
        assert!(
            verifier.bad_bytes() > len * 98 / 100,
            "shift {shift}: {verifier:?}"
        );
    }
    let mut other = position_verifier(2);
    other.check(&whole);
    assert!(other.bad_bytes() > (1 << 20) * 98 / 100);
}

#[test]
fn the_repeating_stream_is_accepted_with_nul_or_newline_in_the_zero_position() {
    for zero in [0, b'\n'] {
        for cut in [1, 3, 7, 4096, 65160] {
            let stream = repeating_stream(7, zero, 300_000);
            let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(7)));
            stream.chunks(cut).for_each(|piece| verifier.check(piece));
            assert_eq!((verifier.good_bytes(), verifier.bad_bytes()), (300_000, 0));
        }
    }
}

#[test]
fn the_byte_in_the_zero_position_may_not_change() {
    let mut stream = repeating_stream(7, 0, 70_000);
    stream[6999] = b'\n';
    let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(7)));
    stream.chunks(1000).for_each(|piece| verifier.check(piece));
    assert_eq!(
        (verifier.bad_bytes(), verifier.first_bad()),
        (1, Some(6999))
    );

    let other = repeating_stream(7, b'x', 70);
    let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(7)));
    verifier.check(&other);
    assert_eq!((verifier.bad_bytes(), verifier.first_bad()), (10, Some(6)));
}

#[test]
fn every_period_is_recognised_and_no_other_is() {
    for period in RepeatingPattern::PERIODS {
        let stream = repeating_stream(period, 0, 100_000);
        let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(period)));
        stream.chunks(777).for_each(|piece| verifier.check(piece));
        assert_eq!(verifier.bad_bytes(), 0, "period {period}");
    }
    let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(6)));
    verifier.check(&repeating_stream(7, 0, 1000));
    assert!(verifier.bad_bytes() > 500);
}

#[test]
fn a_lost_byte_of_the_repeating_stream_is_found() {
    let mut stream = repeating_stream(7, 0, 70_000);
    stream.remove(35_000);
    let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(7)));
    verifier.check(&stream);
    assert_eq!(verifier.first_bad(), Some(35_000));
}

#[test]
fn a_repeating_stream_written_in_any_pieces_is_accepted() {
    for period in [2, 7, 256] {
        let mut verifier = Verifier::new(Expected::Repeating(RepeatingPattern::new(period)));
        let mut position = 0;
        for len in [1, 2, 255, 256, 257, 40_000] {
            let mut bytes = vec![0xee; len];
            RepeatingPattern::new(period).fill(position, &mut bytes);
            verifier.check(&bytes);
            position += len as u64;
        }
        assert_eq!((verifier.bad_bytes(), verifier.good_bytes()), (0, position));
    }
}
