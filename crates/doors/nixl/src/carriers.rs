//! What carries payload between two agents: connections for it, and the memory of the peer's process.

use crate::awaited::Placed;
use crate::broken::Broken;
use crate::data::DataStream;
use crate::near::NearMemory;
use crate::record::{NEAR, Violation};

/// Bytes that one turn moves at most in each direction. Other peers and calls of the program wait for it.
const TURN_BYTES: usize = 2 << 20;

/// What has been moved, for people.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Payload bytes that a connection took from registered memory.
    pub(crate) sent: u64,
    /// Payload bytes that a connection brought to registered memory.
    pub(crate) received: u64,
    /// Payload bytes of short pieces, which were copied once more on each side.
    pub(crate) inline: u64,
    /// Payload bytes that were copied from the memory of a peer's process.
    pub(crate) near: u64,
    /// Payload bytes that were copied within the process.
    pub(crate) own: u64,
    /// Payload bytes that the NIC has moved from or to memory of a GPU.
    pub(crate) by_nic: u64,
    /// Payload bytes of connections that went through host memory, from or to memory of a GPU.
    pub(crate) staged: u64,
}

/// What carries the bytes of a piece.
pub(crate) enum Carrier<'a> {
    /// They follow their record.
    Record,
    Stream(&'a mut DataStream),
    /// The side that needs them copies them from the memory of the other process; this side can do so if it has that memory.
    Memory(Option<&'a mut NearMemory>),
}

/// All carriers of the connections with a peer, in one direction of calling.
#[derive(Debug)]
pub(crate) struct Carriers {
    pub(crate) streams: Vec<DataStream>,
    /// The memory of the peer's process, if it can be read.
    pub(crate) near: Option<NearMemory>,
}

impl Carriers {
    /// Returns the carrier that a record names.
    pub(crate) fn get(&mut self, stream: u16) -> Result<Carrier<'_>, Violation> {
        match stream.checked_sub(1) {
            None => Ok(Carrier::Record),
            Some(_) if stream == NEAR => Ok(Carrier::Memory(self.near.as_mut())),
            Some(index) => {
                let stream = self.streams.get_mut(usize::from(index));
                stream.map(Carrier::Stream).ok_or(Violation::Stream)
            }
        }
    }

    /// Pieces that are to be sent or received.
    pub(crate) fn pieces(&self) -> usize {
        let of = |stream: &DataStream| stream.owed().1 + stream.queued().1;
        let near = self.near.as_ref().map_or(0, |near| near.owed().1);
        self.streams.iter().map(of).sum::<usize>() + near
    }

    /// Bytes of a transfer that are to come go nowhere.
    pub(crate) fn discard(&mut self, transfer: u64) {
        let streams = self.streams.iter_mut();
        streams.for_each(|stream| stream.discard(transfer));
        if let Some(near) = &mut self.near {
            near.discard(transfer);
        }
    }

    /// Returns whether a turn would move something at once: the last one has used up its budget.
    pub(crate) fn can_go_on(&self) -> bool {
        let near = self.near.as_ref();
        near.is_some_and(NearMemory::can_go_on) || self.streams.iter().any(DataStream::can_go_on)
    }

    /// Receives and copies what has come. What is in place is in `placed` afterwards, also after an error.
    pub(crate) fn pull(
        &mut self,
        placed: &mut Vec<Placed>,
        counts: &mut Counts,
    ) -> Result<bool, Broken> {
        placed.clear();
        let mut budget = TURN_BYTES;
        let streams = self.streams.iter_mut();
        let pulled = each(streams, |stream| stream.pull(&mut budget, placed));
        counts.received += (TURN_BYTES - budget) as u64;
        self.count_gpu_bytes(counts);
        let worked = pulled?;
        let mut budget = TURN_BYTES;
        let pulled = each(self.near.iter_mut(), |near| near.pull(&mut budget, placed));
        counts.near += (TURN_BYTES - budget) as u64;
        Ok(worked | pulled?)
    }

    /// Sends what the connections take.
    pub(crate) fn push(&mut self, counts: &mut Counts) -> Result<bool, Broken> {
        let mut budget = TURN_BYTES;
        let pushed = each(self.streams.iter_mut(), |stream| stream.push(&mut budget));
        counts.sent += (TURN_BYTES - budget) as u64;
        self.count_gpu_bytes(counts);
        pushed
    }

    fn count_gpu_bytes(&mut self, counts: &mut Counts) {
        for stream in &mut self.streams {
            let bytes = stream.take_gpu_bytes();
            counts.by_nic += bytes.by_nic;
            counts.staged += bytes.staged;
        }
    }
}

/// Returns whether one of them did something.
fn each<T>(
    mut all: impl Iterator<Item = T>,
    mut turn: impl FnMut(T) -> Result<bool, Broken>,
) -> Result<bool, Broken> {
    all.try_fold(false, |worked, it| Ok(worked | turn(it)?))
}
