//! Packets that wait, in order, for the copies of their payload between host memory and a device.

use std::collections::VecDeque;

use netmem::{CopiesInFlight, CopyEngine, DeviceError, DmaPort, FragList, Lane, StagedCopies};

/// Bytes of copies that are submitted without waiting for more: a call of a device's library costs some microseconds, which
/// is little compared with the copy of so many bytes.
const BATCH_BYTES: usize = 256 << 10;

/// A queue of packets, in batches: the copies of a batch are submitted together, and its packets leave together.
#[derive(Debug)]
pub(crate) struct Conveyor<T> {
    lane: Lane,
    /// Submitted batches, oldest first.
    submitted: VecDeque<Batch<T>>,
    open: Batch<T>,
    /// Whether [`pop`](Self::pop) asks the device about the oldest batch, which costs a call of its library.
    asks: bool,
}

/// Packets, and the copies that they wait for.
#[derive(Debug)]
struct Batch<T> {
    packets: VecDeque<(T, Payload)>,
    copies: Copies,
}

/// Where the payload of a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Payload {
    /// Among the copies of the batch.
    Staged,
    /// Not in a device: the packet only keeps its place in the queue.
    Elsewhere,
}

/// Progress of the copies of a batch.
#[derive(Debug)]
enum Copies {
    /// Of packets without copies.
    None,
    Collected(StagedCopies),
    InFlight(CopiesInFlight),
    Done,
    Failed(DeviceError),
}

/// A packet that leaves the queue.
#[derive(Debug)]
pub(crate) struct Conveyed<T> {
    pub(crate) packet: T,
    /// Why its payload has not been copied.
    pub(crate) failed: Option<DeviceError>,
}

impl<T> Batch<T> {
    const fn new() -> Self {
        Batch {
            packets: VecDeque::new(),
            copies: Copies::None,
        }
    }
}

impl<T> Conveyor<T> {
    pub(crate) fn new(lane: Lane) -> Self {
        Self {
            lane,
            submitted: VecDeque::new(),
            open: Batch::new(),
            asks: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.submitted.is_empty() && self.open.packets.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        let submitted: usize = self.submitted.iter().map(|batch| batch.packets.len()).sum();
        submitted + self.open.packets.len()
    }

    /// Adds the copies between `host` and `device`, for the packet that is pushed next.
    pub(crate) fn add_copies(
        &mut self,
        engine: &std::sync::Arc<dyn CopyEngine>,
        port: &DmaPort,
        host: &FragList,
        device: &FragList,
    ) {
        // The copies of a batch are by one device, so that the failure of one does not concern packets of another.
        if matches!(&self.open.copies, Copies::Collected(copies) if !copies.is_by(engine)) {
            self.submit();
        }
        if matches!(self.open.copies, Copies::None) {
            self.open.copies = Copies::Collected(port.staged_copies(engine, self.lane));
        }
        if let Copies::Collected(copies) = &mut self.open.copies {
            copies.add(host, device);
        }
    }

    /// Appends a packet that waits for the copies that were added last.
    pub(crate) fn push_staged(&mut self, packet: T) {
        self.open.packets.push_back((packet, Payload::Staged));
        if matches!(&self.open.copies, Copies::Collected(copies) if copies.bytes() >= BATCH_BYTES) {
            self.submit();
        }
    }

    /// Appends a packet that waits for those before it.
    pub(crate) fn push(&mut self, packet: T) {
        self.open.packets.push_back((packet, Payload::Elsewhere));
    }

    /// Submits the copies that were added. The next [`pop`](Self::pop) asks the device.
    pub(crate) fn submit(&mut self) {
        self.asks = true;
        if self.open.packets.is_empty() {
            return;
        }
        let mut batch = std::mem::replace(&mut self.open, Batch::new());
        if let Copies::Collected(copies) = batch.copies {
            batch.copies = match copies.submit() {
                Ok(flight) => Copies::InFlight(flight),
                Err(error) => Copies::Failed(error),
            };
        }
        self.submitted.push_back(batch);
    }

    /// Removes the oldest packet if its copies are done, or have failed. The device is asked once after each [`submit`](Self::submit): it is
    /// not done sooner by being asked before each frame.
    pub(crate) fn pop(&mut self) -> Option<Conveyed<T>> {
        // A batch is submitted with at least one packet, and removed with its last one.
        let batch = self.submitted.front_mut()?;
        if let Copies::InFlight(flight) = &mut batch.copies {
            if !std::mem::take(&mut self.asks) {
                return None;
            }
            match flight.is_done() {
                Ok(false) => return None,
                Ok(true) => batch.copies = Copies::Done,
                Err(error) => batch.copies = Copies::Failed(error),
            }
        }
        let (packet, payload) = batch.packets.pop_front()?;
        let failed = match batch.copies {
            Copies::Failed(error) if payload == Payload::Staged => Some(error),
            _ => None,
        };
        if batch.packets.is_empty() {
            self.submitted.pop_front();
        }
        Some(Conveyed { packet, failed })
    }
}
