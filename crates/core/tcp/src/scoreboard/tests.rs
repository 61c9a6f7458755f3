//! The records compared with a model of every byte.

use super::*;

impl Scoreboard {
    /// Panics unless the sums are those of the records, and the records are contiguous.
    pub(crate) fn check(&self) {
        let sum = |mark: RecordMarks| -> u64 {
            let marked = self.records.iter().filter(|record| record.marks.has(mark));
            marked.map(|record| u64::from(record.len)).sum()
        };
        assert_eq!(sum(RecordMarks::SACKED), self.sacked(), "sacked");
        assert_eq!(sum(RecordMarks::LOST), self.lost(), "lost");
        assert_eq!(sum(RecordMarks::RETRANS), self.retrans(), "retrans");
        for (record, next) in self.records.iter().zip(self.records.iter().skip(1)) {
            assert_eq!(record.end(), next.start, "a gap");
            assert!(
                !(record.sacked() && next.sacked()),
                "not joined: {record:?} {next:?}"
            );
        }
        for record in &self.records {
            assert!(record.len > 0, "empty: {record:?}");
            let sacked = record.sacked();
            let other =
                record.marks.has(RecordMarks::LOST) || record.marks.has(RecordMarks::RETRANS);
            assert!(!(sacked && other), "{record:?}");
            if record.awaits_retransmission() {
                assert!(
                    record.start >= self.next_lost || record.end() > self.next_lost,
                    "{record:?}"
                );
            }
        }
    }

    /// Returns how many records there are.
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }
}

const MSS: u16 = 100;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn sent(lens: &[u32]) -> Scoreboard {
    let mut board = Scoreboard::default();
    let mut start = 0;
    for (index, len) in lens.iter().enumerate() {
        board.on_sent(start, *len, MSS, at(index as u64));
        start += u64::from(*len);
    }
    board
}

fn sack(board: &mut Scoreboard, start: u64, end: u64) -> Delivered {
    let mut delivered = board.begin_ack();
    board.sack(start, end, &mut delivered);
    board.check();
    delivered
}

fn judge(board: &mut Scoreboard, latest: Sending, window: Duration, now: Instant) -> Losses {
    board.detect_lost(LossCriteria {
        latest,
        window,
        now,
    })
}

fn ack(board: &mut Scoreboard, una: u64) -> Delivered {
    let mut delivered = board.begin_ack();
    board.ack_to(una, &mut delivered);
    board.check();
    delivered
}

#[test]
fn a_burst_is_one_record() {
    let mut board = Scoreboard::default();
    for burst in 0..3 {
        board.on_sent(burst * 1000, 1000, MSS, at(5));
    }
    assert_eq!(
        (board.records(), board.outstanding(), board.pipe()),
        (1, 3000, 3000)
    );
    board.on_sent(3000, 50, MSS, at(5));
    // The last packet is not full: the following bytes would not start at a packet border of the record.
    board.on_sent(3050, 1, MSS, at(5));
    assert_eq!(board.records(), 2);
}

#[test]
fn reports_cut_records_at_packet_borders_and_join_them_again() {
    let mut board = sent(&[1000]);
    assert_eq!(sack(&mut board, 250, 560).bytes, 200);
    assert_eq!(
        (board.records(), board.sacked(), board.pipe()),
        (3, 200, 800)
    );
    assert_eq!(sack(&mut board, 500, 700).bytes, 200);
    assert_eq!(board.records(), 3);
    assert_eq!(sack(&mut board, 0, 300).bytes, 300);
    assert_eq!((board.records(), board.sacked()), (2, 700));
    assert_eq!(sack(&mut board, 0, 1000).bytes, 300);
    assert_eq!((board.records(), board.sacked_packets()), (1, 10));
    assert_eq!(ack(&mut board, 1000).bytes, 0);
    assert_eq!(
        (board.records(), board.outstanding(), board.sacked_packets()),
        (0, 0, 0)
    );
}

#[test]
fn single_bytes_cut_nothing() {
    let mut board = sent(&[1000]);
    for byte in 0..1000 {
        assert_eq!(sack(&mut board, byte, byte + 1).bytes, 0);
    }
    assert_eq!(board.records(), 1);
}

#[test]
fn the_last_packet_may_be_short() {
    let mut board = sent(&[950]);
    assert_eq!(sack(&mut board, 900, 950).bytes, 50);
    assert_eq!(board.last_packet(None), Some((900, 50)));
    board.on_sent(950, 1, MSS, at(9));
    assert_eq!(board.last_packet(Some(950)), Some((900, 51)));
    let fin = sent(&[1]);
    assert_eq!(fin.last_packet(Some(0)), Some((0, 1)));
}

#[test]
fn losses_are_judged_in_order_of_sending() {
    let mut board = sent(&[100, 100, 100, 100]);
    let delivered = sack(&mut board, 200, 300);
    let latest = delivered.latest_original.unwrap();
    assert_eq!(
        latest,
        Sending {
            sent_at: at(2),
            end: 300
        }
    );
    // The first was sent 10 ms ago, the second 9.
    let losses = judge(&mut board, latest, Duration::from_millis(10), at(10));
    assert_eq!((losses.bytes, losses.again_at.is_some()), (100, true));
    let losses = judge(&mut board, latest, Duration::from_millis(10), at(11));
    assert_eq!((losses.bytes, losses.again_at.is_some()), (100, false));
    // What was sent later is not judged at all.
    let losses = judge(&mut board, latest, Duration::ZERO, at(1000));
    assert_eq!((losses.bytes, losses.again_at.is_some()), (0, false));
    assert_eq!(board.next_lost(1000), Some((0, 200)));
    board.check();
}

#[test]
fn retransmissions_are_judged_by_their_own_time() {
    let mut board = sent(&[100, 100, 100]);
    let latest = sack(&mut board, 200, 300).latest_original.unwrap();
    let _ = judge(&mut board, latest, Duration::ZERO, at(10));
    board.on_retransmitted(0, 200, MSS, at(20));
    assert_eq!(
        (board.next_lost(1000), board.retrans(), board.pipe()),
        (None, 200, 200)
    );
    board.on_sent(300, 100, MSS, at(30));
    let latest = sack(&mut board, 300, 400).latest_original.unwrap();
    let losses = judge(&mut board, latest, Duration::from_millis(15), at(34));
    assert!(losses.again_at.is_some() && !losses.retransmission);
    let losses = judge(&mut board, latest, Duration::from_millis(15), at(35));
    assert!(losses.retransmission && losses.bytes == 200);
    assert_eq!(
        (board.next_lost(1000), board.retrans()),
        (Some((0, 200)), 0)
    );
    board.check();
}

#[test]
fn what_leaves_in_one_instant_is_judged_in_the_order_in_which_it_left() {
    for repeats_first in [true, false] {
        let mut board = sent(&[100, 100, 100]);
        let latest = sack(&mut board, 100, 300).latest_original.unwrap();
        let _ = judge(&mut board, latest, Duration::ZERO, at(10));
        if repeats_first {
            board.on_retransmitted(0, 100, MSS, at(20));
        }
        board.on_sent(300, 100, MSS, at(20));
        if !repeats_first {
            board.on_retransmitted(0, 100, MSS, at(20));
        }
        let latest = sack(&mut board, 300, 400).latest_original.unwrap();
        let losses = judge(&mut board, latest, Duration::from_millis(10), at(30));
        assert_eq!(losses.retransmission, repeats_first);
    }
}

#[test]
fn a_retransmission_of_a_part_leaves_the_rest_waiting() {
    let mut board = sent(&[1000]);
    board.mark_lost_where(|_, _| true);
    board.on_retransmitted(0, 300, MSS, at(1));
    assert_eq!(board.next_lost(500), Some((300, 500)));
    board.on_retransmitted(300, 100, MSS, at(1));
    assert_eq!((board.records(), board.pipe()), (2, 400));
    board.check();
    assert_eq!(
        ack(&mut board, 350)
            .latest_retransmission
            .map(|latest| latest.end),
        Some(350)
    );
    assert_eq!(board.pipe(), 50);
}

#[test]
fn an_undone_verdict_is_judged_again() {
    let mut board = sent(&[100, 100]);
    let latest = sack(&mut board, 100, 200).latest_original.unwrap();
    assert_eq!(judge(&mut board, latest, Duration::ZERO, at(5)).bytes, 100);
    board.unmark_lost();
    board.check();
    assert_eq!((board.lost(), board.next_lost(100)), (0, None));
    assert_eq!(judge(&mut board, latest, Duration::ZERO, at(5)).bytes, 100);
    assert_eq!(board.next_lost(100), Some((0, 100)));
}

#[test]
fn originals_that_fill_a_hole_are_reordering_and_retransmissions_are_not() {
    let mut board = sent(&[100, 100, 100]);
    assert!(!sack(&mut board, 200, 300).reordered());
    assert!(sack(&mut board, 100, 200).reordered());
    board.mark_head_lost();
    board.on_retransmitted(0, 100, MSS, at(9));
    let delivered = ack(&mut board, 300);
    assert!(!delivered.reordered() && delivered.acked_retransmission);
    assert_eq!((delivered.bytes, delivered.acked_sent), (100, None));
}

#[test]
fn blocks_of_one_ack_are_no_reordering_among_themselves() {
    let mut board = sent(&[100, 100, 100, 100]);
    let mut delivered = board.begin_ack();
    board.sack(300, 400, &mut delivered);
    board.sack(100, 200, &mut delivered);
    assert!(!delivered.reordered());
}

#[test]
fn cuts_by_the_peer_are_bounded() {
    let mut board = Scoreboard::default();
    let packets = 2 * MAX_RECORDS as u64;
    board.on_sent(0, (packets * 100) as u32, MSS, at(0));
    let mut delivered = board.begin_ack();
    for packet in (0..packets).step_by(2) {
        board.sack(packet * 100, packet * 100 + 100, &mut delivered);
    }
    assert!(board.records() <= MAX_RECORDS + 1, "{}", board.records());
    board.check();
    let _ = ack(&mut board, packets * 100);
    assert!(board.records.capacity() <= KEPT_RECORDS);
}

#[test]
fn acknowledged_retransmissions_are_forgotten() {
    let mut board = Scoreboard::default();
    for round in 0..100u64 {
        board.on_sent(round * 100, 100, MSS, at(round));
        board.mark_head_lost();
        board.on_retransmitted(round * 100, 100, MSS, at(round));
        if round > 0 {
            let _ = ack(&mut board, round * 100);
        }
    }
    let oldest = board
        .retransmissions
        .as_ref()
        .and_then(|queue| queue.oldest());
    assert_eq!(oldest.map(|sent| sent.start), Some(9900));
}

/// A byte as the model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Byte {
    sacked: bool,
    lost: bool,
    retrans: bool,
}

/// Random operations on records and on bytes must agree.
#[test]
fn records_agree_with_bytes() {
    for seed in 0..300u64 {
        let mut random = crate::test_random::Random::new(seed);
        let (mut board, mut bytes) = (Scoreboard::default(), Vec::<Byte>::new());
        let (mut una, mut nxt) = (0u64, 0u64);
        for step in 0..200u64 {
            match random.below(6) {
                0 => {
                    let len = 1 + random.below(800) as u32;
                    board.on_sent(nxt, len, MSS, at(step));
                    nxt += u64::from(len);
                    bytes.resize(nxt as usize, Byte::default());
                }
                1 if una < nxt => {
                    una += random.below(nxt - una + 1);
                    let _ = ack(&mut board, una);
                }
                2 if una < nxt => {
                    let start = una + random.below(nxt - una);
                    let end = (start + random.below(500)).min(nxt);
                    let before = board.sacked();
                    let delivered = sack(&mut board, start, end);
                    assert_eq!(board.sacked() - before, delivered.sacked, "seed {seed}");
                    mirror_sacks(&board, &mut bytes);
                }
                3 => {
                    board.mark_head_lost();
                    board.mark_lost_where(|sent_at, _| {
                        sent_at + Duration::from_millis(50) < at(step)
                    });
                    mirror_marks(&board, &mut bytes);
                }
                4 => {
                    if let Some((start, len)) = board.next_lost(100 * (1 + random.below(9) as u32))
                    {
                        for byte in &mut bytes[start as usize..][..len as usize] {
                            assert!(byte.lost && !byte.retrans && !byte.sacked, "seed {seed}");
                            byte.retrans = true;
                        }
                        board.on_retransmitted(start, len, MSS, at(step));
                    }
                }
                _ => board.unmark_and_mirror(&mut bytes, random.below(10) == 0),
            }
            board.check();
            let live = &bytes[una as usize..];
            let count = |f: fn(&Byte) -> bool| live.iter().filter(|byte| f(byte)).count() as u64;
            assert_eq!(board.outstanding(), nxt - una, "seed {seed}");
            assert_eq!(board.sacked(), count(|byte| byte.sacked), "seed {seed}");
            assert_eq!(board.lost(), count(|byte| byte.lost), "seed {seed}");
            assert_eq!(board.retrans(), count(|byte| byte.retrans), "seed {seed}");
        }
    }
}

impl Scoreboard {
    fn unmark_and_mirror(&mut self, bytes: &mut [Byte], really: bool) {
        if really {
            self.unmark_lost();
            bytes.iter_mut().for_each(|byte| byte.lost = false);
        }
    }
}

/// The records decide which whole packets a report covers; the test checks that nothing else changes.
fn mirror_sacks(board: &Scoreboard, bytes: &mut [Byte]) {
    for record in board.records.iter().filter(|record| record.sacked()) {
        for byte in &mut bytes[record.start as usize..record.end() as usize] {
            *byte = Byte {
                sacked: true,
                ..Byte::default()
            };
        }
    }
}

fn mirror_marks(board: &Scoreboard, bytes: &mut [Byte]) {
    for record in &board.records {
        for byte in &mut bytes[record.start as usize..record.end() as usize] {
            let newly = record.awaits_retransmission();
            byte.lost |= newly;
            byte.retrans &= !newly;
        }
    }
}
