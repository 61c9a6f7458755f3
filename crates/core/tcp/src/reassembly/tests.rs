use super::*;
use crate::test_payload::Bytes;

/// Sequence numbers start close to the wrap, so that every test crosses it.
const BASE: SeqNum = SeqNum(u32::MAX - 20);

struct Trace {
    reassembly: Reassembly<Bytes>,
    stream: u8,
}

impl Trace {
    fn new() -> Trace {
        Trace {
            reassembly: Reassembly::new(10_000),
            stream: 0,
        }
    }

    /// Inserts `[from, to)` relative to BASE, each time with bytes of another stream.
    fn insert(&mut self, from: usize, to: usize) -> Result<Inserted, Full> {
        let payload = Bytes::stream(self.stream, BASE + from, to - from);
        self.stream += 1;
        self.reassembly.insert(BASE + from, payload)
    }

    fn ranges(&self) -> Vec<(usize, usize)> {
        self.reassembly
            .ranges
            .iter()
            .map(|r| relative((r.start, r.end)))
            .collect()
    }

    fn sack(&self) -> Vec<(usize, usize)> {
        self.reassembly.sack_ranges().map(relative).collect()
    }

    /// Pops what is ready at `from`: (stream, relative start, length) of each run.
    fn pop(&mut self, from: usize) -> Vec<(u8, usize, usize)> {
        let mut all = Bytes::default();
        for payload in self.reassembly.pop_ready(BASE + from) {
            all.append(payload);
        }
        all.runs()
            .iter()
            .map(|run| (run.stream, SeqNum(run.start).bytes_since(BASE), run.len))
            .collect()
    }
}

fn relative((start, end): SeqRange) -> (usize, usize) {
    (start.bytes_since(BASE), end.bytes_since(BASE))
}

const NEW: Result<Inserted, Full> = Ok(Inserted {
    stored: true,
    duplicate: None,
});

fn duplicate(stored: bool, from: usize, to: usize) -> Result<Inserted, Full> {
    Ok(Inserted {
        stored,
        duplicate: Some((BASE + from, BASE + to)),
    })
}

#[test]
fn touching_ranges_become_one() {
    let mut t = Trace::new();
    assert_eq!(t.insert(10, 20), NEW);
    assert_eq!(t.insert(30, 40), NEW);
    assert_eq!(t.ranges(), [(10, 20), (30, 40)]);
    assert_eq!(t.insert(20, 30), NEW);
    assert_eq!(t.ranges(), [(10, 40)]);
    assert_eq!(t.reassembly.len(), 30);
    assert_eq!(t.pop(9), []);
    assert_eq!(t.pop(10), [(0, 10, 10), (2, 20, 10), (1, 30, 10)]);
    assert!(t.reassembly.is_empty());
    assert_eq!((t.reassembly.len(), t.reassembly.payloads), (0, 0));
}

#[test]
fn the_first_byte_received_wins() {
    let mut t = Trace::new();
    assert_eq!(t.insert(10, 20), NEW);
    assert_eq!(t.insert(15, 25), duplicate(true, 15, 20));
    assert_eq!(t.insert(5, 12), duplicate(true, 10, 12));
    assert_eq!(t.insert(8, 22), duplicate(false, 8, 22));
    assert_eq!(t.pop(5), [(2, 5, 5), (0, 10, 10), (1, 20, 5)]);
}

#[test]
fn one_payload_fills_many_gaps() {
    let mut t = Trace::new();
    for from in [10, 20, 30] {
        assert_eq!(t.insert(from, from + 5), NEW);
    }
    assert_eq!(t.insert(5, 50), duplicate(true, 10, 15));
    assert_eq!(t.ranges(), [(5, 50)]);
    assert_eq!(
        t.pop(5),
        [
            (3, 5, 5),
            (0, 10, 5),
            (3, 15, 5),
            (1, 20, 5),
            (3, 25, 5),
            (2, 30, 5),
            (3, 35, 15)
        ]
    );
}

#[test]
fn only_the_front_is_ready() {
    let mut t = Trace::new();
    assert_eq!(t.insert(10, 20), NEW);
    assert_eq!(t.insert(30, 40), NEW);
    assert_eq!(t.pop(10), [(0, 10, 10)]);
    assert_eq!(t.pop(20), []);
    assert_eq!(t.ranges(), [(30, 40)]);
    assert_eq!(t.reassembly.len(), 10);
}

#[test]
fn sack_reports_the_latest_range_first_and_each_once() {
    let mut t = Trace::new();
    for from in [10, 30, 50, 70, 90] {
        assert_eq!(t.insert(from, from + 5), NEW);
    }
    assert_eq!(t.sack(), [(90, 95), (70, 75), (50, 55), (30, 35)]);
    assert_eq!(t.insert(35, 36), NEW);
    assert_eq!(t.sack(), [(30, 36), (90, 95), (70, 75), (50, 55)]);
    assert_eq!(t.insert(10, 12), duplicate(false, 10, 12));
    assert_eq!(t.sack()[0], (10, 15));
    assert_eq!(t.insert(55, 70), NEW);
    assert_eq!(t.sack(), [(50, 75), (10, 15), (30, 36), (90, 95)]);
}

#[test]
fn ranges_are_bounded_and_their_edges_still_grow() {
    let mut t = Trace {
        reassembly: Reassembly::new(usize::MAX),
        stream: 0,
    };
    for i in 0..MAX_RANGES {
        assert_eq!(
            t.reassembly
                .insert(BASE + 10 + 2 * i, Bytes::pattern(BASE, 1)),
            NEW
        );
    }
    let beyond = 10 + 2 * MAX_RANGES;
    assert_eq!(t.insert(beyond, beyond + 1), Err(Full));
    assert_eq!(t.insert(beyond - 1, beyond), NEW);
    assert_eq!(t.reassembly.len(), MAX_RANGES + 1);
}

#[test]
fn payloads_are_bounded() {
    let mut t = Trace {
        reassembly: Reassembly::new(2),
        stream: 0,
    };
    assert_eq!(t.insert(10, 11), NEW);
    assert_eq!(t.insert(11, 12), NEW);
    assert_eq!(t.insert(12, 13), Err(Full));
    assert_eq!(t.pop(10).len(), 2);
    assert_eq!(t.insert(12, 13), NEW);
}

#[test]
fn an_empty_payload_changes_nothing() {
    let mut t = Trace::new();
    assert_eq!(
        t.insert(10, 10),
        Ok(Inserted {
            stored: false,
            duplicate: None
        })
    );
    assert!(t.reassembly.is_empty());
}
