// UNSAFETY: reads and writes the structures that NCCL has made for its kernels, as those do.

//! A kernel of NCCL, played by threads: one for each channel, as a GPU has a block for each.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use super::layout::*;
use super::rings;

/// Marks the arguments of a kernel (CU_LAUNCH_PARAM_BUFFER_POINTER).
const ARGUMENTS_FOLLOW: usize = 1;

/// NCCL has set the flag that ends its kernels.
#[derive(Debug)]
pub struct Aborted;

/// What is known of the loaded version: its layout, and the device functions that are played, by their numbers.
#[derive(Debug)]
pub struct Version {
    pub layout: Layout,
    pub functions: BTreeMap<u32, Function>,
}

/// The address of a structure of NCCL, whose fields are at the offsets of `layout`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address(pub usize);

impl Address {
    pub fn u8(self, offset: usize) -> usize {
        // SAFETY: a field of a structure that lives as long as the kernel: the addresses are those that NCCL gives its kernels.
        usize::from(unsafe { at::<u8>(self.0 + offset).read() })
    }

    pub fn u32(self, offset: usize) -> usize {
        // SAFETY: as above.
        (unsafe { at::<u32>(self.0 + offset).read_volatile() }) as usize
    }

    pub fn u64(self, offset: usize) -> usize {
        // SAFETY: as above.
        (unsafe { at::<u64>(self.0 + offset).read_volatile() }) as usize
    }

    pub fn to(self, offset: usize) -> Self {
        Self(self.u64(offset))
    }

    pub fn plus(self, offset: usize) -> Self {
        Self(self.0 + offset)
    }

    pub fn set(self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { at_mut::<u64>(self.0 + offset).write_volatile(value) };
    }

    /// Returns the counter that a field points to, which a proxy changes at the same time.
    pub fn counter(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: as above; it is aligned, and everybody accesses it as a whole.
        unsafe { AtomicU64::from_ptr(at_mut(self.u64(offset))) }
    }
}

/// A launch: a copy of the arguments, as CUDA makes one.
pub struct Kernel {
    arguments: Vec<u64>,
    version: &'static Version,
}

impl Kernel {
    /// Takes the arguments from the parameters of a launch.
    ///
    /// # Safety
    ///
    /// These are parameters with which NCCL launches its kernels.
    pub unsafe fn new(parameters: *const [usize; 4], version: &'static Version) -> Self {
        // SAFETY: a mark, a pointer to the arguments, another mark, and a pointer to their size.
        let [mark, from, _, size] = unsafe { parameters.read() };
        assert_eq!(mark, ARGUMENTS_FOLLOW, "the arguments are in one buffer");
        let (from, size) = (Address(from), Address(size).u64(0));
        let arguments = (0..size).step_by(8).map(|offset| from.u64(offset) as u64);
        Self {
            arguments: arguments.collect(),
            version,
        }
    }

    /// Runs to the end, or until NCCL aborts it.
    pub fn run(self) {
        let arguments = Address(self.arguments.as_ptr().expose_provenance());
        let channels = arguments.u64(ARGUMENTS_CHANNELS);
        let channels = (0..64).filter(|channel| channels >> channel & 1 == 1);
        thread::scope(|scope| {
            for (batch, number) in channels.enumerate() {
                let comm = arguments.to(ARGUMENTS_COMM);
                let block = Block {
                    arguments,
                    comm,
                    channel: comm.to(COMM_CHANNELS).plus(number * CHANNEL_BYTES),
                    number,
                    layout: &self.version.layout,
                    functions: &self.version.functions,
                };
                scope.spawn(move || block.run(batch));
            }
        });
    }
}

/// Work of a channel, copied.
pub type Item = [u64; ITEM_WORDS];

pub fn fields(item: &Item) -> Address {
    Address(item.as_ptr().expose_provenance())
}

/// What runs one channel.
#[derive(Clone, Copy)]
pub struct Block {
    arguments: Address,
    pub comm: Address,
    pub channel: Address,
    pub number: usize,
    pub layout: &'static Layout,
    functions: &'static BTreeMap<u32, Function>,
}

impl Block {
    /// Runs the channel's list of batches.
    fn run(self, mut index: usize) {
        let mut items = Vec::new();
        loop {
            let batch = self.arguments.plus(ARGUMENTS_BATCHES + index * BATCH_BYTES);
            let flags = batch.u32(0) as u32;
            let (next, goes_on) = (flags & 0x3fff, flags & 0x4000 != 0);
            let (kind, function) = (
                flags >> 15 & 3,
                flags >> 17 & ((1 << self.layout.function_bits) - 1),
            );
            self.collect(batch, kind, &mut items);
            index += next as usize;
            if goes_on {
                continue;
            }
            // Another algorithm, protocol or type: the settings of the test are not those that it needs.
            let other = || panic!("device function {function} is none of {:?}", self.functions);
            let function = *self.functions.get(&function).unwrap_or_else(other);
            let ended = match function {
                Function::SendReceive => rings::messages(&self, &items),
                _ => items
                    .iter()
                    .try_for_each(|item| rings::collective(&self, function, item)),
            };
            if ended.is_err() || next == 0 {
                return;
            }
            items.clear();
        }
    }

    /// Copies the items of a batch. In a ring they may begin at the end and go on at the start.
    fn collect(&self, batch: Address, kind: u32, items: &mut Vec<Item>) {
        let bytes = match kind {
            P2P => P2P_BYTES,
            COLLECTIVE => self.layout.collective[0],
            kind => panic!("work of kind {kind} has registered buffers"),
        };
        let (from, mask) = match self.arguments.u8(ARGUMENTS_STORAGE) {
            0 => (self.arguments, usize::MAX),
            _ => (
                self.arguments.to(ARGUMENTS_RING),
                self.arguments.u32(ARGUMENTS_MASK),
            ),
        };
        let wanted = batch.u64(BATCH_ITEMS);
        for number in (0..64).filter(|number| wanted >> number & 1 == 1) {
            let begin = batch.u32(BATCH_BEGIN) + number * bytes;
            let mut item = Item::default();
            for (word, to) in item.iter_mut().take(bytes / 8).enumerate() {
                *to = from.u64((begin + word * 8) & mask) as u64;
            }
            items.push(item);
        }
    }

    /// Whether NCCL has asked its kernels to end.
    pub fn is_aborted(&self) -> bool {
        // SAFETY: the flag is aligned, and lives as long as the communicator.
        let flag = unsafe { AtomicU32::from_ptr(at_mut(self.comm.u64(COMM_ABORT))) };
        flag.load(Ordering::Acquire) != 0
    }
}
