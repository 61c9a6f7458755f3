//! Receives that take frags over instead of having them copied.

use std::sync::{Arc, Mutex};

use devmem_exchange::{Access, Cause, Event, Landing, Memory, MemoryGone, Options, Pool, Region};
use devmem_tcp::{Dmabuf, Frag, RxBatch};

use crate::world::{connect, device, host, options, pair_of, part, pattern, run};

/// What a landing has taken: frags with their places, and bytes.
#[derive(Default)]
struct Taken {
    batches: Vec<(usize, RxBatch)>,
    bytes: Vec<(usize, Vec<u8>)>,
}

/// Takes everything, until it is closed.
struct Place {
    size: usize,
    taken: Mutex<Option<Taken>>,
}

impl Place {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            taken: Mutex::new(Some(Taken::default())),
        })
    }

    fn with(&self, with: impl FnOnce(&mut Taken)) -> Result<(), MemoryGone> {
        self.taken
            .lock()
            .unwrap()
            .as_mut()
            .map(with)
            .ok_or(MemoryGone)
    }

    /// Returns the message, read where it lies.
    fn message(&self, pool: &Dmabuf, len: usize) -> Vec<u8> {
        let mut message = vec![0xee; len];
        self.with(|taken| {
            for (at, batch) in &taken.batches {
                let mut at = *at;
                for frag in batch {
                    let bytes = match frag {
                        Frag::Device { range, .. } => pool.slice(range).to_vec(),
                        Frag::Linear(bytes) => bytes.to_vec(),
                    };
                    message[at..at + bytes.len()].copy_from_slice(&bytes);
                    at += bytes.len();
                }
            }
            for (at, bytes) in &taken.bytes {
                message[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        })
        .unwrap();
        message
    }
}

impl Landing for Place {
    fn size(&self) -> usize {
        self.size
    }

    fn land(&self, at: usize, batch: RxBatch) -> Result<(), MemoryGone> {
        self.with(|taken| taken.batches.push((at, batch)))
    }

    fn land_bytes(&self, at: usize, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.with(|taken| taken.bytes.push((at, bytes.to_vec())))
    }
}

fn with_pool(bytes: usize) -> (Dmabuf, Options) {
    let memory = Dmabuf::anonymous(bytes).unwrap();
    let mut options = options();
    let queues = 2;
    options.pool = Some(Pool {
        memory: memory.clone(),
        queues,
    });
    (memory, options)
}

fn region(fabric: &devmem_exchange::Fabric, place: &Arc<Place>) -> Region {
    let memory = Memory::Landing(Arc::clone(place) as Arc<dyn Landing>);
    fabric.register(memory, Access::PRIVATE).unwrap()
}

#[test]
fn a_landing_takes_frags_and_keeps_them_until_it_is_dropped() {
    let (pool, theirs) = with_pool(4 << 20);
    let (a, b) = pair_of("loss=2%,reorder=2%,seed=31", options(), theirs);
    let (ours, theirs) = connect(&a, &b);
    let mut kept = Vec::new();
    // From memory that is sent where it is, and short ones from host memory, which come with their record.
    for (tag, len) in (0..).zip([0, 1, 127, 5000, 16_385, 200_000]) {
        let bytes = pattern(len as u64 + 1, len);
        let (_memory, source) = match tag % 2 {
            0 => (None, host(&a, bytes.clone()).1),
            _ => {
                let (memory, region) = device(&a, &bytes);
                (Some(memory), region)
            }
        };
        let place = Place::new(len + 10);
        let target = region(&b, &place);
        let room = part(&target, 0..len + 10, tag);
        theirs.receive(&[room], 1).unwrap();
        ours.send(&source, 0..len, tag, 2).unwrap();
        let (_, of_b) = run(&ours, &theirs, 1, 1);
        let [Event::Received { user: 1, sizes }] = &of_b[..] else {
            panic!("{of_b:?}");
        };
        assert_eq!(**sizes, [len as u64]);
        kept.push((place, bytes));
    }
    // Later messages have changed none of them.
    for (place, bytes) in &kept {
        assert!(place.message(&pool, bytes.len()) == *bytes);
    }
    let lent: usize = kept
        .iter()
        .map(|(place, _)| {
            let taken = place.taken.lock().unwrap();
            let batches = &taken.as_ref().unwrap().batches;
            let lent = batches.iter().map(|(_, batch)| batch.device_bytes());
            lent.sum::<usize>()
        })
        .sum();
    assert!(lent > 200_000, "{lent} bytes are lent");
    assert!(lent as u64 == theirs.stats().received_by_device);
}

#[test]
fn a_landing_that_is_gone_breaks_the_endpoint_and_nothing_is_sent_from_one() {
    let (_pool, options_of_b) = with_pool(4 << 20);
    let (a, b) = pair_of("seed=32", options(), options_of_b);
    let (ours, theirs) = connect(&a, &b);
    let place = Place::new(100_000);
    let target = region(&b, &place);
    theirs.receive(&[part(&target, 0..100_000, 1)], 1).unwrap();
    *place.taken.lock().unwrap() = None;
    let (_buffer, source) = host(&a, vec![1; 100_000]);
    ours.send(&source, 0..100_000, 1, 2).unwrap();
    let (_, of_b) = run(&ours, &theirs, 0, 2);
    assert!(
        of_b.iter()
            .any(|event| matches!(event, Event::Failed { user: 1 })),
        "{of_b:?}"
    );
    assert!(matches!(theirs.cause().as_deref(), Some(Cause::MemoryGone)));

    let (ours, theirs) = connect(&a, &b);
    let place = Place::new(50);
    let source = region(&a, &place);
    let (_buffer, target) = host(&b, vec![0; 50]);
    theirs.receive(&[part(&target, 0..50, 1)], 1).unwrap();
    ours.send(&source, 0..50, 1, 2).unwrap();
    let (of_a, _) = run(&ours, &theirs, 2, 0);
    assert!(
        of_a.iter()
            .any(|event| matches!(event, Event::Failed { user: 2 })),
        "{of_a:?}"
    );
    assert!(matches!(ours.cause().as_deref(), Some(Cause::MemoryGone)));
}
