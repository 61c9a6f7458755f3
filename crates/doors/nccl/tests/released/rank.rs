//! A rank: a process that runs NCCL, and checks every element that it receives.

use std::path::PathBuf;
use std::process;
use std::sync::atomic::Ordering;

use crate::nccl::{Collective, Comm, Nccl, UniqueId};
use crate::play::{FOLDER, RANK, RANKS, UNSUITED, given};
use crate::runtime::{SLICES_LEFT, allocations};
use crate::wires::wait_for;

/// Bytes of the messages, separated by commas.
const SIZES: &str = "NCCL_RELEASED_SIZES";

/// What a buffer for results is filled with.
const UNWRITTEN: u8 = 0xee;

/// Communicators that are used at the same time.
const COMMUNICATORS: usize = 3;
/// Of an all-reduce in which a rank ends, and of what it passes on before.
const LONG_BYTES: usize = 8 << 20;
const SOME_SLICES: u32 = 5;

struct Rank {
    nccl: Nccl,
    number: usize,
    ranks: usize,
    folder: PathBuf,
}

fn number(name: &str) -> usize {
    given(name).parse().expect("a number")
}

/// Plays a rank of a case.
pub fn play(case: &str) {
    // A panic of a thread that plays a kernel would leave the others waiting.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        process::abort();
    }));
    let folder = PathBuf::from(given(FOLDER));
    let nccl = Nccl::load(&folder.join("libnccl.so.2")).unwrap_or_else(|reason| {
        println!("{reason}");
        process::exit(UNSUITED);
    });
    let rank = Rank {
        nccl,
        number: number(RANK),
        ranks: number(RANKS),
        folder,
    };
    match case {
        "start" => rank.start(),
        "collectives" => rank.collectives(&every_collective(rank.ranks)),
        "all_reduce" => rank.collectives(&[Collective::AllReduce]),
        "several" => rank.several(),
        "killed" => rank.killed(0),
        "killed_in_transfer" => rank.killed(SOME_SLICES),
        "refused" => rank.refused(),
        case => panic!("there is no case {case}"),
    }
}

impl Rank {
    /// Gets the identifier of a communicator, which the first rank makes.
    fn id(&self, name: &str) -> UniqueId {
        let file = self.folder.join(name);
        if self.number == 0 {
            let id = self.nccl.unique_id().expect("ncclGetUniqueId");
            let partial = self.folder.join(format!("{name}.partial"));
            std::fs::write(&partial, id.0).expect("the folder is writable");
            std::fs::rename(&partial, &file).expect("the folder is writable");
        }
        wait_for(&file);
        let bytes = std::fs::read(&file).expect("it is there");
        UniqueId(bytes.try_into().expect("128 bytes"))
    }

    fn comm(&self, name: &str) -> Comm<'_> {
        let comm = Comm::new(&self.nccl, self.id(name), self.number, self.ranks);
        comm.unwrap_or_else(|code| panic!("init: code {code}"))
    }

    /// Makes a communicator with all its connections, and leaves it: nothing of it is left.
    fn start(&self) {
        self.comm("id").destroy().expect("destroy");
        assert_eq!(allocations(), 0, "device and pinned memory are freed");
    }

    /// Runs collectives with every size.
    fn collectives(&self, all: &[Collective]) {
        let mut comm = self.comm("id");
        for size in given(SIZES).split(',') {
            let count = size.parse::<usize>().expect("a number") / 4;
            for collective in all {
                check(&mut comm, *collective, count);
            }
        }
        comm.destroy().expect("destroy");
    }

    /// Uses communicators at the same time, each in a thread and on a stream of its own.
    fn several(&self) {
        std::thread::scope(|scope| {
            for number in 0..COMMUNICATORS {
                scope.spawn(move || {
                    let mut comm = self.comm(&format!("id{number}"));
                    for count in [1, 1000, 100_000 + number] {
                        for collective in every_collective(self.ranks) {
                            check(&mut comm, collective, count);
                        }
                    }
                    comm.destroy().expect("destroy");
                });
            }
        });
    }

    /// The last rank ends when it has passed on this much of an all-reduce; NCCL reports that to the others, which abort.
    fn killed(&self, slices: u32) {
        let mut comm = self.comm("id");
        check(&mut comm, Collective::AllReduce, LONG_BYTES / 4);
        // What is on its way when a rank ends may be lost to the others.
        let here = |rank: usize| self.folder.join(format!("here.{rank}"));
        std::fs::write(here(self.number), b"").expect("the folder is writable");
        (0..self.ranks).for_each(|rank| wait_for(&here(rank)));
        if self.number == self.ranks - 1 {
            SLICES_LEFT.store(slices, Ordering::Relaxed);
        }
        let send = vec![0; LONG_BYTES];
        let mut receive = vec![0; LONG_BYTES];
        let ended = comm.run(Collective::AllReduce, &send, &mut receive);
        ended.expect_err("a rank is gone");
    }

    /// A communicator that cannot be made.
    fn refused(&self) {
        let made = Comm::new(&self.nccl, self.id("id"), self.number, self.ranks);
        assert!(made.is_err(), "the ranks use different networks");
    }
}

fn every_collective(ranks: usize) -> [Collective; 7] {
    [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root: 0 },
        Collective::Broadcast { root: ranks - 1 },
        Collective::Reduce { root: ranks - 1 },
        Collective::AllToAll,
    ]
}

/// After this number of elements, what a rank sends begins anew.
const PERIOD: usize = 1021;

/// Element `index` of what rank `rank` sends: a whole number, so that sums are exact.
fn sent(rank: usize, index: usize) -> f32 {
    ((index * 31 + rank * 7 + 1) % PERIOD) as f32
}

/// Returns elements from the index `first` on.
fn elements(first: usize, count: usize, value: impl Fn(usize) -> f32) -> Vec<u8> {
    let period = (first..first + PERIOD).flat_map(|index| value(index).to_ne_bytes());
    let mut bytes = period.collect::<Vec<_>>().repeat(count / PERIOD + 1);
    bytes.truncate(count * 4);
    bytes
}

/// Runs a collective, and compares each element with what it must be. `count` elements are in the smaller buffer of a rank.
fn check(comm: &mut Comm<'_>, collective: Collective, count: usize) {
    let (me, ranks) = (comm.rank, comm.ranks);
    let sum = |index| (0..ranks).map(|rank| sent(rank, index)).sum::<f32>();
    let of_all = |first| {
        let of = |rank| elements(first, count, move |index| sent(rank, index));
        (0..ranks).flat_map(of).collect::<Vec<_>>()
    };
    let (sends, expected) = match collective {
        Collective::AllReduce => (count, elements(0, count, sum)),
        Collective::AllGather => (count, of_all(0)),
        Collective::ReduceScatter => (count * ranks, elements(me * count, count, sum)),
        Collective::Broadcast { root } => (count, elements(0, count, |index| sent(root, index))),
        Collective::Reduce { root } if root == me => (count, elements(0, count, sum)),
        Collective::Reduce { .. } => (count, vec![UNWRITTEN; count * 4]),
        Collective::AllToAll => (count * ranks, of_all(me * count)),
    };
    let send = elements(0, sends, |index| sent(me, index));
    let mut received = vec![UNWRITTEN; expected.len()];
    let ended = comm.run(collective, &send, &mut received);
    let what = format!("rank {me} of {ranks}: {collective:?} of {count}");
    assert_eq!(ended, Ok(()), "{what}");
    if received != expected {
        let mut bytes = received.iter().zip(&expected);
        panic!(
            "{what}: wrong from byte {:?} on",
            bytes.position(|(is, must)| is != must)
        );
    }
}
