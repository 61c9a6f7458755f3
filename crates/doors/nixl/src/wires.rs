//! The connections between two agents, in one direction of calling: one for records, the others for payload.
//!
//! The agent that connects is the *initiator*: it posts transfers and sends notifications. The other one is the *target*. Two agents that
//! post transfers to each other have such connections in either direction, which do not know of each other.

use zerocopy::byteorder::little_endian::U64;

use crate::broken::Broken;
use crate::control::Control;
use crate::data::{DataStream, Placed};
use crate::inbox::Inbox;
use crate::near::{NearMemory, Uncopied};
use crate::record::Entry;
use crate::regions::Regions;
use crate::socket::Ready;

/// Bytes that one turn moves at most in each direction. Other peers and calls of the program wait for it.
const TURN_BYTES: usize = 2 << 20;

/// Records that one turn handles at most.
pub(crate) const TURN_RECORDS: usize = 256;

/// What has been moved, for people.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Payload bytes that the kernel took from registered memory.
    pub(crate) sent: u64,
    /// Payload bytes that the kernel wrote to registered memory.
    pub(crate) received: u64,
    /// Payload bytes of short pieces, which were copied once more on each side.
    pub(crate) inline: u64,
    /// Payload bytes that were copied from the memory of a peer's process.
    pub(crate) near: u64,
    /// Payload bytes that were copied within the process.
    pub(crate) own: u64,
}

/// What a turn of one peer's connections needs of the agent.
pub(crate) struct Context<'a> {
    pub(crate) regions: &'a Regions,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) counts: &'a mut Counts,
    /// Longest piece that follows its record.
    pub(crate) inline_bytes: u64,
    /// Used in each turn.
    pub(crate) sources: &'a mut Vec<U64>,
    pub(crate) entries: &'a mut Vec<Entry>,
    pub(crate) placed: &'a mut Vec<Placed>,
}

/// The connections.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) control: Control,
    pub(crate) data: Vec<DataStream>,
    /// The memory of the peer's process, if it can be read.
    pub(crate) near: Option<NearMemory>,
}

impl Wires {
    pub(crate) fn on_ready(&mut self, stream: usize, ready: Ready) {
        match stream.checked_sub(1) {
            None => self.control.socket.on_ready(ready),
            Some(index) => {
                if let Some(data) = self.data.get_mut(index) {
                    data.socket.on_ready(ready);
                }
            }
        }
    }

    /// Receives payload. What is in place is in `context.placed` afterwards.
    pub(crate) fn pull(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        context.placed.clear();
        let (mut worked, mut budget) = (false, TURN_BYTES);
        for data in &mut self.data {
            worked |= data.pull(&mut budget, context.placed)?;
        }
        context.counts.received += context
            .placed
            .iter()
            .map(|placed| placed.bytes)
            .sum::<u64>();
        Ok(worked)
    }

    /// Copies payload from the memory of the peer's process. What is in place is in `context.placed` afterwards.
    pub(crate) fn pull_near(
        &mut self,
        context: &mut Context<'_>,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<bool, Uncopied> {
        context.placed.clear();
        let Some(near) = &mut self.near else {
            return Ok(false);
        };
        let mut budget = TURN_BYTES;
        let worked = near.pull(&mut budget, is_wanted, context.placed);
        context.counts.near += (TURN_BYTES - budget) as u64;
        worked
    }

    /// Sends payload.
    pub(crate) fn push(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let (mut worked, mut budget) = (false, TURN_BYTES);
        for data in &mut self.data {
            worked |= data.push(&mut budget)?;
        }
        context.counts.sent += (TURN_BYTES - budget) as u64;
        Ok(worked)
    }

    /// Ends the connections after what was queued for control, as far as that goes without waiting.
    pub(crate) fn end(&mut self) {
        // Nobody is left to be told.
        let _ = self.control.flush();
        self.control.socket.end();
    }
}
