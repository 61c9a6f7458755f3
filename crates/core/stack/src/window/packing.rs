//! The memory that the packets of a connection take, relative to their payload.

/// Bytes of payload at which a packet takes no more memory than `nic::RxSpace::bytes` assumes.
const GOOD_PAYLOAD: u64 = 1050;

/// Bytes that a smaller packet takes in addition to its payload: headroom and alignment to a cache line.
const PLACEMENT_LOSS: u64 = 75;

/// Payload bytes over which the memory per byte is averaged.
const PACKING_BYTES: u64 = 128 << 10;

/// Packets over which the memory per byte is averaged.
const PACKING_PACKETS: u32 = 64;

/// Average memory per payload byte of a connection: 1 for large packets, more for small ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packing {
    payload: u64,
    memory: u64,
    packets: u32,
}

/// The value for large packets, until packets have been noted.
impl Default for Packing {
    fn default() -> Self {
        Self {
            payload: PACKING_BYTES / 4,
            memory: PACKING_BYTES / 4,
            packets: 0,
        }
    }
}

impl Packing {
    /// Notes a packet with `len` bytes of payload.
    pub(super) fn note(&mut self, len: usize) {
        let len = len as u64;
        self.payload += len;
        self.memory += packet_cost(len);
        self.packets += 1;
        if self.payload > PACKING_BYTES || self.packets > PACKING_PACKETS {
            self.payload = (self.payload / 2).max(1);
            self.memory = (self.memory / 2).max(1);
            self.packets /= 2;
        }
    }

    /// Returns the memory that `payload` bytes will take.
    pub(super) fn memory_for(&self, payload: u64) -> u64 {
        scale(payload, self.memory, self.payload)
    }

    /// Returns the payload that fits into `memory` bytes.
    pub(super) fn payload_for(&self, memory: u64) -> u64 {
        scale(memory, self.payload, self.memory)
    }
}

/// Returns the memory that a packet with `len` bytes of payload takes, in bytes of `nic::RxSpace::bytes`.
fn packet_cost(len: u64) -> u64 {
    len.max((len + PLACEMENT_LOSS) * GOOD_PAYLOAD / (GOOD_PAYLOAD + PLACEMENT_LOSS))
}

/// Returns `value * numerator / denominator`, saturating.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    if numerator == denominator {
        return value;
    }
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
