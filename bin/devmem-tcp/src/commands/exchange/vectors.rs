//! The memory of a rank: its vector, and room for a block that is to be added to it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use devmem_tcp::cuda::{self, Adder, Allocation, Floats};
use devmem_tcp::{Dmabuf, memory::CopyError};
use exchange::{Buffer, Memory};
use pattern::floats::{FLOAT_BYTES, add};
use tool::memory::{MemoryKind, PAGE_BYTES};
use tool::output::Failure;

use crate::report::Reduction;

/// Most bytes that are copied between device memory and the CPU at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The vector of a rank, and a block that was received to be added to it.
pub enum Vectors {
    /// In memory of the process.
    Host {
        vector: Arc<Buffer>,
        block: Arc<Buffer>,
    },
    /// In device memory. Without an adder, the CPU adds by copies of both.
    Device {
        vector: Dmabuf,
        block: Dmabuf,
        adder: Option<GpuAdder>,
    },
}

/// A GPU that adds, and the memory that it adds.
pub struct GpuAdder {
    adder: Adder,
    vector: Arc<Allocation>,
    block: Arc<Allocation>,
}

impl Vectors {
    /// Allocates a vector of `floats` zeros, and a block of `longest`.
    ///
    /// # Errors
    ///
    /// There is no such device, or not enough memory; or the GPU takes no code that adds.
    pub fn open(kind: MemoryKind, floats: usize, longest: usize) -> Result<Self, Failure> {
        let [vector, block] = [floats, longest].map(|floats| floats * FLOAT_BYTES);
        match kind {
            MemoryKind::Anonymous => Ok(Self::Host {
                vector: Buffer::new(vec![0; vector]),
                block: Buffer::new(vec![0; block]),
            }),
            MemoryKind::Cuda(ordinal) => Ok(on_gpu(ordinal, vector, block)?),
            MemoryKind::Udmabuf | MemoryKind::Hip(_) | MemoryKind::Vulkan(_) => Ok(Self::Device {
                vector: kind
                    .allocate(vector.next_multiple_of(PAGE_BYTES), "the vector (--bytes)")?,
                block: kind.allocate(
                    block.next_multiple_of(PAGE_BYTES),
                    "a block of the vector (--bytes)",
                )?,
                adder: None,
            }),
        }
    }

    /// Returns who adds.
    pub fn reduction(&self) -> Reduction {
        match self {
            Self::Device { adder: Some(_), .. } => Reduction::Gpu,
            Self::Device { adder: None, .. } | Self::Host { .. } => Reduction::Cpu,
        }
    }

    /// Returns the memory of the vector, to be registered.
    pub fn vector(&self) -> Memory<'_> {
        match self {
            Self::Host { vector, .. } => Memory::Host(vector.clone()),
            Self::Device { vector, .. } => Memory::Device(vector),
        }
    }

    /// Returns the memory of the block, to be registered.
    pub fn block(&self) -> Memory<'_> {
        match self {
            Self::Host { block, .. } => Memory::Host(block.clone()),
            Self::Device { block, .. } => Memory::Device(block),
        }
    }

    /// Has `write` write the bytes of a range of the vector, piece by piece; it is told which range a piece is.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn write(
        &self,
        bytes: Range<usize>,
        mut write: impl FnMut(Range<usize>, &mut [u8]),
    ) -> Result<()> {
        match self {
            Self::Host { vector, .. } => vector.with(|all| write(bytes.clone(), &mut all[bytes])),
            Self::Device { vector, .. } => {
                for piece in pieces(bytes) {
                    let mut copy = vec![0; piece.len()];
                    write(piece.clone(), &mut copy);
                    vector
                        .copy_in(piece.start, &copy)
                        .context("write the vector")?;
                }
            }
        }
        Ok(())
    }

    /// Hands the bytes of a range of the vector to `look`, piece by piece, with the range of each.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn read(
        &self,
        bytes: Range<usize>,
        mut look: impl FnMut(Range<usize>, &[u8]),
    ) -> Result<()> {
        match self {
            Self::Host { vector, .. } => vector.with(|all| look(bytes.clone(), &all[bytes])),
            Self::Device { vector, .. } => {
                for piece in pieces(bytes) {
                    let copy = copied(vector, &piece).context("read the vector")?;
                    look(piece, &copy);
                }
            }
        }
        Ok(())
    }

    /// Adds the first floats of the block to those of a range of the vector. Afterwards the sums can be sent.
    ///
    /// # Errors
    ///
    /// The device refuses, or is lost.
    pub fn add(&self, bytes: Range<usize>) -> Result<()> {
        match self {
            Self::Host { vector, block } => {
                block.with(|block| vector.with(|vector| add(&mut vector[bytes], block)));
            }
            Self::Device {
                adder: Some(gpu), ..
            } => {
                let at = |memory, offset| Floats { memory, offset };
                let (sums, summands) = (at(&gpu.vector, bytes.start), at(&gpu.block, 0));
                let added = gpu.adder.add(sums, summands, bytes.len() / FLOAT_BYTES);
                added.context("add on the GPU")?;
            }
            Self::Device { vector, block, .. } => {
                let start = bytes.start;
                for piece in pieces(bytes) {
                    let mut sums = copied(vector, &piece).context("read the vector")?;
                    let from = piece.start - start..piece.end - start;
                    let summands = copied(block, &from).context("read a block")?;
                    add(&mut sums, &summands);
                    vector
                        .copy_in(piece.start, &sums)
                        .context("write the vector")?;
                }
            }
        }
        Ok(())
    }
}

/// Allocates a vector and a block of these lengths in bytes in the memory of a GPU, and loads the code that adds.
///
/// # Errors
///
/// As [`Vectors::open`].
pub fn on_gpu(ordinal: u32, vector: usize, block: usize) -> Result<Vectors> {
    let device = cuda::open(ordinal).context("open the GPU")?;
    let adder = device
        .adder()
        .context("load the addition on the GPU (--memory anonymous adds on the CPU)")?;
    let alloc = |bytes: usize| {
        let memory = device.alloc(bytes.next_multiple_of(PAGE_BYTES));
        memory.map(Arc::new).context("get memory of the GPU")
    };
    let (vector, block) = (alloc(vector)?, alloc(block)?);
    Ok(Vectors::Device {
        vector: vector.dmabuf(),
        block: block.dmabuf(),
        adder: Some(GpuAdder {
            adder,
            vector,
            block,
        }),
    })
}

/// Returns pieces of a range that are short enough to be copied, each of whole floats if the range is.
fn pieces(bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = bytes.end;
    bytes
        .step_by(PIECE_BYTES)
        .map(move |start| start..end.min(start + PIECE_BYTES))
}

fn copied(memory: &Dmabuf, bytes: &Range<usize>) -> Result<Vec<u8>, CopyError> {
    let mut copy = vec![0; bytes.len()];
    memory.copy_out(bytes.start, &mut copy)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pattern::floats;

    #[test]
    fn pieces_cover_a_range_in_order() {
        let all: Vec<_> = pieces(8..PIECE_BYTES * 2 + 12).collect();
        assert_eq!(
            all,
            [
                8..PIECE_BYTES + 8,
                PIECE_BYTES + 8..PIECE_BYTES * 2 + 8,
                PIECE_BYTES * 2 + 8..PIECE_BYTES * 2 + 12
            ]
        );
        assert_eq!(pieces(4..4).count(), 0);
    }

    #[test]
    fn sums_in_device_memory_are_those_of_host_memory() {
        let (floats, longest) = (PIECE_BYTES / FLOAT_BYTES * 2 + 100, PIECE_BYTES / 2);
        let host = Vectors::open(MemoryKind::Anonymous, floats, longest).expect("memory");
        let memory = |floats: usize| {
            Dmabuf::anonymous((floats * FLOAT_BYTES).next_multiple_of(PAGE_BYTES)).expect("memory")
        };
        let device = Vectors::Device {
            vector: memory(floats),
            block: memory(longest),
            adder: None,
        };
        let mut block = vec![0; longest * FLOAT_BYTES];
        floats::fill(&mut block, 7, 1);
        let mut sums = Vec::new();
        for vectors in [&host, &device] {
            match vectors {
                Vectors::Host { block: room, .. } => room.with(|room| room.copy_from_slice(&block)),
                Vectors::Device { block: room, .. } => room.copy_in(0, &block).expect("copied"),
            }
            let all = 0..floats * FLOAT_BYTES;
            let filled = vectors.write(all.clone(), |range, bytes| {
                floats::fill(bytes, range.start / FLOAT_BYTES, 0);
            });
            filled.expect("written");
            let added = vectors.add(400..400 + longest * FLOAT_BYTES);
            added.expect("added");
            let mut result = vec![0; all.end];
            let read = vectors.read(all, |range, bytes| result[range].copy_from_slice(bytes));
            read.expect("read");
            sums.push(result);
        }
        assert!(sums[0] == sums[1]);
        // The block begins with element 7 of the vector of rank 1, which is element 14 of that of rank 0.
        assert_eq!(sums[0][400..404], (100_f32 + 14.0).to_le_bytes());
        assert_eq!(sums[0][396..400], 99_f32.to_le_bytes());
    }
}
