//! What NCCL's kernels are given: the offsets of fields in bytes, on x86-64, and other numbers. Facts of src/include/device.h and collectives.h,
//! measured in the debug information of the released libraries.

/// What differs between versions.
#[derive(Debug)]
pub struct Layout {
    /// Bits that the number of a function has in a batch.
    pub function_bits: u32,
    /// Work of a collective: bytes; where it receives, and from where it sends; counts; grains.
    pub collective: [usize; 5],
    /// What a kernel and a proxy tell each other of a step: bytes, offset of the step, bytes in it.
    pub fifo: [usize; 3],
}

const fn layout(function_bits: u32, collective: [usize; 5], fifo: [usize; 3]) -> Layout {
    Layout {
        function_bits,
        collective,
        fifo,
    }
}

/// The versions whose kernels are played, as `ncclGetVersion` says them.
pub const LAYOUTS: [(i32, Layout); 3] = [
    (22907, layout(15, [96, 8, 16, 56, 80], [24, 4, 8])),
    (23007, layout(15, [128, 24, 32, 80, 104], [24, 4, 8])),
    (23203, layout(11, [96, 8, 16, 56, 80], [32, 8, 16])),
];

/// Steps that a connection has room for.
pub const STEPS: u64 = 8;

macro_rules! offsets {
    ($($name:ident $offset:literal)*) => { $(pub const $name: usize = $offset;)* };
}

// The arguments of a kernel: where the work is (in them, or in a ring), and batches of it. A batch: the distance to the next one (14 bits),
// whether that belongs to it, the kind of work (2 bits) and the function; where the work begins; a bit for each item.
offsets! {
    ARGUMENTS_COMM 0  ARGUMENTS_CHANNELS 8  ARGUMENTS_STORAGE 16  ARGUMENTS_MASK 20  ARGUMENTS_RING 24  ARGUMENTS_BATCHES 32
    BATCH_HEAD 0  BATCH_BEGIN 4  BATCH_ITEMS 8  BATCH_BYTES 16
}

// The communicator; its channels, each with a ring; their peers, with two connections for sending and then two for receiving; the
// connections; and what a kernel and a proxy tell each other of a step: in mode 1, the proxy says where that is.
offsets! {
    COMM_RANK 0  COMM_RANKS 4  COMM_BUFFER_BYTES 24  COMM_P2P_BYTES 28  COMM_ABORT 48  COMM_CHANNELS 56
    CHANNEL_PEERS 0  CHANNEL_PREVIOUS 8  CHANNEL_NEXT 12  CHANNEL_RANKS 16  CHANNEL_INDEX 32  CHANNEL_BYTES 368
    PEER_SEND 0  PEER_RECEIVE 304
    CONNECTION_BUFFER 16  CONNECTION_TAIL 48  CONNECTION_HEAD 56  CONNECTION_STEP_BYTES 72  CONNECTION_FIFO 96  CONNECTION_STEP 104
    CONNECTION_BYTES 152
    FIFO_MODE 0
}

/// Kinds of work, and the bytes of a message.
pub const P2P: usize = 0;
pub const P2P_BYTES: usize = 48;
pub const COLLECTIVE: usize = 1;

// A collective: its first and last channel and flags; what the first channel has, each in between, and the last one, in elements, and the
// chunks of these, in grains, 21 bits each.
offsets! { COLLECTIVE_CHANNELS 0  COLLECTIVE_ROOT 4 }
/// Flags of buffers that are registered with the network or with a peer.
pub const COLLECTIVE_REGISTERED: usize = 6 << 24;
pub const GRAIN_BYTES: usize = 512;

// Messages: one that goes out and one that comes in. A chunk is a floating-point number: five bits of exponent, three of mantissa.
offsets! { P2P_CHANNELS 40  P2P_FIRST_CHANNEL 41  P2P_FLAGS 46 }
pub const P2P_ADDRESS: [usize; 2] = [0, 8];
pub const P2P_LEN: [usize; 2] = [16, 24];
pub const P2P_PEER: [usize; 2] = [32, 36];
pub const P2P_PARTS: [usize; 2] = [42, 43];
pub const P2P_CHUNK: [usize; 2] = [44, 45];
pub const PART_BYTES: usize = 4096;

/// What a device function does, with the algorithm Ring and the protocol Simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    SendReceive,
    AllGather,
    Broadcast,
    /// Sums of floats.
    AllReduce,
    Reduce,
    ReduceScatter,
}

/// ncclFloat32.
pub const FLOAT: usize = 7;

/// Rows of NCCL's table of device functions (`ncclDevFuncRowToId`), with a terminator; and those of the functions that are played.
pub const ROWS: usize = 2000;
pub const PLAYED: [(usize, Function); 6] = [
    (0, Function::SendReceive),
    (3, Function::AllGather),
    (15, Function::Broadcast),
    (19 + (FLOAT * 6 + 1) * 3 + 2, Function::AllReduce),
    (1099 + FLOAT * 3 + 2, Function::Reduce),
    (1279 + FLOAT * 4 * 3 + 2, Function::ReduceScatter),
];
