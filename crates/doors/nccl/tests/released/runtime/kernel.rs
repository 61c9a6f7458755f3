//! A kernel of NCCL, played by threads: one for each channel, as a GPU has a block for each.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::thread;

use super::address::Address;
use super::layout::*;
use super::rings;

/// The loaded NCCL, if its kernels are played.
static VERSION: OnceLock<Version> = OnceLock::new();

/// Marks the arguments of a kernel (CU_LAUNCH_PARAM_BUFFER_POINTER).
const ARGUMENTS_FOLLOW: usize = 1;

/// NCCL has set the flag that ends its kernels.
#[derive(Debug)]
pub struct Aborted;

/// What is known of a version: its layout, and the device functions that are played, by their numbers.
#[derive(Debug)]
pub struct Version {
    pub layout: Layout,
    pub functions: BTreeMap<usize, Function>,
}

/// Prepares to play the kernels of a version, if it is one whose layout is known, by its table of device functions.
pub fn play(version: i32, table: &[u32]) {
    let layout = LAYOUTS.into_iter().find(|layout| layout.0 == version);
    if let Some((_, layout)) = layout.filter(|_| table.len() == ROWS) {
        let functions = PLAYED.map(|(row, function)| (table[row] as usize, function));
        let functions = functions.into();
        VERSION.get_or_init(|| Version { layout, functions });
    }
}

/// What runs one channel.
#[derive(Clone, Copy)]
pub struct Block {
    arguments: Address,
    pub comm: Address,
    pub channel: Address,
    pub number: usize,
    pub version: &'static Version,
}

/// Returns the numbers of the bits that are set.
fn bits(mask: usize) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| mask >> bit & 1 == 1)
}

/// Copies the arguments of a kernel, as CUDA does. They are named by the parameters of a launch: a mark, a pointer to the arguments, another
/// mark, and a pointer to their size. Returns what runs the kernel to its end, or until NCCL aborts it.
pub fn launch(parameters: Address) -> impl FnOnce() {
    let mark = parameters.u64(0);
    assert_eq!(mark, ARGUMENTS_FOLLOW, "the arguments are in one buffer");
    let (from, size) = (parameters.to(8), parameters.to(24).u64(0));
    let words = (0..size).step_by(8);
    let words: Vec<_> = words.map(|at| from.u64(at) as u64).collect();
    let version = VERSION.get();
    let version = version.expect("kernels of this version of NCCL are played");
    move || run(Address::of(&words), version)
}

fn run(arguments: Address, version: &'static Version) {
    let comm = arguments.to(ARGUMENTS_COMM);
    thread::scope(|scope| {
        let channels = bits(arguments.u64(ARGUMENTS_CHANNELS));
        for (batch, number) in channels.enumerate() {
            let channel = comm.to(COMM_CHANNELS).plus(number * CHANNEL_BYTES);
            let block = Block {
                arguments,
                comm,
                channel,
                number,
                version,
            };
            // Aborted, it ends like the others.
            scope.spawn(move || drop(block.run(batch)));
        }
    });
}

impl Block {
    /// Runs the channel's list of batches.
    fn run(&self, mut index: usize) -> Result<(), Aborted> {
        let Version { layout, functions } = self.version;
        let mut items = Vec::new();
        loop {
            let batch = self.arguments.plus(ARGUMENTS_BATCHES + index * BATCH_BYTES);
            let head = batch.u32(BATCH_HEAD);
            let (next, kind) = (head & 0x3fff, head >> 15 & 3);
            items.extend(self.items(batch, kind));
            index += next;
            // The next one belongs to this one.
            if head & 0x4000 != 0 {
                continue;
            }
            let number = head >> 17 & ((1 << layout.function_bits) - 1);
            // Another algorithm, protocol or type: the settings of the test are not those that it needs.
            let other = || panic!("device function {number} is none of {functions:?}");
            match *functions.get(&number).unwrap_or_else(other) {
                Function::SendReceive => rings::messages(self, &items)?,
                function => items
                    .iter()
                    .try_for_each(|item| rings::collective(self, function, Address::of(item)))?,
            }
            if next == 0 {
                return Ok(());
            }
            items.clear();
        }
    }

    /// Copies the items of a batch. In a ring they may begin at the end and go on at the start.
    fn items(&self, batch: Address, kind: usize) -> impl Iterator<Item = Vec<u64>> {
        let bytes = match kind {
            P2P => P2P_BYTES,
            COLLECTIVE => self.version.layout.collective[0],
            kind => panic!("work of kind {kind} has registered buffers"),
        };
        let arguments = self.arguments;
        let (from, mask) = match arguments.u8(ARGUMENTS_STORAGE) {
            0 => (arguments, usize::MAX),
            _ => (arguments.to(ARGUMENTS_RING), arguments.u32(ARGUMENTS_MASK)),
        };
        let begin = batch.u32(BATCH_BEGIN);
        bits(batch.u64(BATCH_ITEMS)).map(move |number| {
            let words = (0..bytes).step_by(8);
            let places = words.map(|at| (begin + number * bytes + at) & mask);
            places.map(|at| from.u64(at) as u64).collect()
        })
    }
}
