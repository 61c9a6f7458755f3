//! Sending from memory that the CPU cannot access: the payload is copied to host memory first, in batches.

use std::collections::VecDeque;
use std::sync::Arc;

use netmem::{CopyEngine, Lane, NiovSize, Payload};

use crate::conveyor::{Conveyed, Conveyor};
use crate::packet::{TxPacket, is_remote};
use crate::restart_error::RestartError;
use crate::staging::Ring;

/// Packets on their way to the transmit queue: those with payload in a device, and all packets behind them.
#[derive(Debug)]
pub(crate) struct TxStage {
    /// One per device.
    rings: Vec<Ring>,
    /// Packets for whose payload there was no room yet, and those behind them.
    waiting: VecDeque<TxPacket>,
    pub(crate) conveyor: Conveyor<TxPacket>,
}

impl TxStage {
    pub(crate) fn new() -> Self {
        Self {
            rings: Vec::new(),
            waiting: VecDeque::new(),
            conveyor: Conveyor::new(Lane::Out),
        }
    }

    /// Allocates the host memory that is needed to send from memory of the device of `engine`, if there is none.
    pub(crate) fn prepare(&mut self, engine: &Arc<dyn CopyEngine>) -> Result<(), RestartError> {
        if !self
            .rings
            .iter()
            .any(|ring| Arc::ptr_eq(&ring.engine, engine))
        {
            self.rings.push(Ring::new(engine, NiovSize::DEFAULT)?);
        }
        Ok(())
    }

    /// Returns the number of packets.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.conveyor.len()
    }

    /// Returns whether `packet` has to pass here: its payload is in a device, or packets before it are here.
    pub(crate) fn takes(&self, packet: &TxPacket) -> bool {
        // No ring, no device: the usual case, checked first.
        !self.rings.is_empty() && (self.len() > 0 || is_remote(&packet.payload))
    }

    pub(crate) fn push(&mut self, packet: TxPacket) {
        self.waiting.push_back(packet);
        self.load();
    }

    /// Moves waiting packets on while there is room for their payload.
    fn load(&mut self) {
        while let Some(packet) = self.waiting.pop_front() {
            let Some(engine) = packet.payload.copy_engine() else {
                self.conveyor.push(packet);
                continue;
            };
            let ring = self
                .rings
                .iter_mut()
                .find(|ring| Arc::ptr_eq(&ring.engine, engine));
            let room = ring.and_then(|ring| {
                let host = ring.fill.reserve(packet.payload.len(), 0)?;
                Some((host, &*ring))
            });
            let Some((host, ring)) = room else {
                self.waiting.push_front(packet);
                return;
            };
            let port = ring.fill.port();
            self.conveyor
                .add_copies(&ring.engine, port, &host, &packet.payload);
            self.conveyor.push_staged(TxPacket {
                payload: host,
                ..packet
            });
        }
    }

    /// Submits copies, and returns the next packet for the transmit queue.
    pub(crate) fn pop(&mut self) -> Option<Conveyed<TxPacket>> {
        self.load();
        self.conveyor.submit();
        self.conveyor.pop()
    }
}
