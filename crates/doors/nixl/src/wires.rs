//! The connections between two agents, in one direction of calling: one for records, the others for payload.
//!
//! The agent that connects is the *initiator*: it posts transfers and sends notifications. The other one is the *target*. Two agents that
//! post transfers to each other have such connections in either direction, which do not know of each other.

use std::time::{Duration, Instant};

use zerocopy::byteorder::little_endian::U64;

use crate::awaited::Placed;
use crate::broken::Broken;
use crate::carriers::{Carriers, Counts};
use crate::control::Control;
use crate::inbox::Inbox;
use crate::record::Entry;
use crate::regions::Regions;
use crate::wire::Ready;

/// Records that one turn handles at most.
pub(crate) const TURN_RECORDS: usize = 256;

/// After a failure of another connection, the time in which the control connection brings the peer's last records and its own end: a few
/// retransmissions.
const LAST_RECORDS: Duration = Duration::from_secs(2);

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
    pub(crate) carriers: Carriers,
    /// Why nothing is moved any more, and until when records are still read.
    failed: Option<(Broken, Instant)>,
}

impl Wires {
    pub(crate) fn new(control: Control, carriers: Carriers) -> Self {
        Self {
            control,
            carriers,
            failed: None,
        }
    }

    /// Returns whether a connection has failed, so that only records are read; the failure, when time is up.
    pub(crate) fn has_failed(&mut self) -> Result<bool, Broken> {
        match self.failed.take_if(|(_, until)| Instant::now() > *until) {
            Some((broken, _)) => Err(broken),
            None => Ok(self.failed.is_some()),
        }
    }

    /// Returns whether a turn would move something without a report of the network.
    pub(crate) fn can_go_on(&self) -> bool {
        self.failed.is_none() && self.carriers.can_go_on()
    }

    /// Looks at what sending, or receiving payload, has come to. Connections end in any order, and why the peer has ended them is what its last record says: a
    /// failure of another connection counts only if the control connection brings neither that nor its own end in time.
    pub(crate) fn moved(&mut self, moved: Result<bool, Broken>) -> Result<bool, Broken> {
        match moved {
            Err(broken @ (Broken::Ended | Broken::Connection(_))) => {
                self.failed = Some((broken, Instant::now() + LAST_RECORDS));
                // Records may have come since they were looked for.
                Ok(true)
            }
            moved => moved,
        }
    }

    /// Notes that the connection for control, or that with the number `stream`, is ready.
    pub(crate) fn on_ready(&mut self, stream: usize, ready: Ready) {
        match stream.checked_sub(1) {
            None => self.control.wire.on_ready(ready),
            Some(index) => {
                if let Some(data) = self.carriers.streams.get_mut(index) {
                    data.wire.on_ready(ready);
                }
            }
        }
    }

    /// Receives payload. What is in place is in `context.placed` afterwards, also after an error.
    pub(crate) fn pull(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        self.carriers.pull(context.placed, context.counts)
    }

    /// Sends payload.
    pub(crate) fn push(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        self.carriers.push(context.counts)
    }

    /// Ends the connections after what was queued for control, as far as that goes without waiting.
    pub(crate) fn end(&mut self) {
        // Nobody is left to be told.
        let _ = self.control.flush();
        self.control.wire.end();
    }
}
