//! How much memory the packets of a connection take for the payload that they bring.

/// Bytes of payload from which on a packet uses memory no worse than the NIC's figure assumes
/// (`nic::RxSpace::bytes`).
const GOOD_PAYLOAD: u64 = 1050;

/// Bytes that a smaller packet takes beside its payload: headroom and alignment to a cache line.
const PLACEMENT_LOSS: u64 = 75;

/// Payload bytes over which the cost of a connection's packets is averaged.
const PACKING_BYTES: u64 = 128 << 10;

/// Packets over which it is averaged.
const PACKING_PACKETS: u32 = 64;

/// How much of the memory a connection's packets take for the payload they bring: 1 for large ones,
/// more for small.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packing {
    payload: u64,
    memory: u64,
    packets: u32,
}

impl Packing {
    /// Assumes large packets until they tell otherwise.
    pub(super) const fn new() -> Self {
        Self {
            payload: PACKING_BYTES / 4,
            memory: PACKING_BYTES / 4,
            packets: 0,
        }
    }

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

    /// Returns the memory that `payload` more bytes will take.
    pub(super) fn memory_for(&self, payload: u64) -> u64 {
        scale(payload, self.memory, self.payload)
    }

    /// Returns the payload that fits into `memory` bytes.
    pub(super) fn payload_for(&self, memory: u64) -> u64 {
        scale(memory, self.payload, self.memory)
    }
}

/// Memory that a packet with `len` bytes of payload keeps from others, in bytes of the NIC's
/// figure.
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
