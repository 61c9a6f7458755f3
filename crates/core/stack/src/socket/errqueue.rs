//! The error queue: completed zero-copy sends, in order, and timestamps of sends.
//!
//! A send is complete when its memory will not be read any more: the peer has acknowledged all bytes, so that the send
//! queue has dropped them, and the NIC has finished all packets with them, including retransmissions. Both hold frags
//! of the send, so it is complete when no frag is left ([`FragUse::is_over`]).

use std::collections::VecDeque;

use devmem_uapi::{
    CmsgSink, NoSpace, OffenderFamily, SockExtendedErr, TxStamp, ZerocopyId, ZerocopyRange,
};
use netmem::FragUse;
use wire::Instant;

use super::limits::MAX_ZEROCOPY_SENDS;
use super::timestamps::Stamps;

/// The error queue of one socket.
#[derive(Debug, Default)]
pub(crate) struct ErrQueue {
    /// Id of the next zero-copy send.
    next: ZerocopyId,
    /// Sends that are not complete, or follow one that is not, in the order of their ids.
    unfinished: VecDeque<UnfinishedSend>,
    /// Entries to be reported.
    done: VecDeque<ErrEntry>,
    /// Total number of entries so far.
    noted: u64,
    /// Sends with timestamps to be taken.
    pub(crate) stamps: Stamps,
}

/// One entry of the error queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrEntry {
    /// Completed zero-copy sends.
    Over(ZerocopyRange),
    /// A timestamp of a send.
    Time(TxStamp),
}

/// A zero-copy send that is not complete, or follows one that is not.
#[derive(Debug)]
struct UnfinishedSend {
    id: ZerocopyId,
    /// Stream offset after its last byte.
    end: u64,
    memory: SendMemory,
    /// More bytes may follow, before [`ErrQueue::finish`].
    is_open: bool,
}

/// The memory of a zero-copy send.
#[derive(Debug)]
pub(crate) enum SendMemory {
    /// Device memory.
    Device(FragUse),
    /// Device memory; the sendmsg that continues the send has its [`FragUse`] at the moment, from [`ErrQueue::take_memory`] to
    /// [`ErrQueue::extend`].
    InCall,
    /// A copy in the stack's host memory. As in Linux, it is complete when the peer has acknowledged it: programs also
    /// use these entries to follow the progress of the peer.
    Copied,
}

impl ErrQueue {
    /// Returns whether there is room for one more send.
    pub(crate) fn has_room(&self) -> bool {
        self.unfinished.len() + self.done.len() < MAX_ZEROCOPY_SENDS
    }

    /// Adds a send that so far ends at the stream offset `end`; returns its id. It cannot complete before
    /// [`ErrQueue::finish`].
    pub(crate) fn begin(&mut self, memory: SendMemory, end: u64) -> ZerocopyId {
        let id = self.next;
        self.next = id.next();
        self.unfinished.push_back(UnfinishedSend {
            id,
            end,
            memory,
            is_open: true,
        });
        id
    }

    /// Extends a send to `end`, in the same memory.
    pub(crate) fn extend(&mut self, id: ZerocopyId, memory: SendMemory, end: u64) {
        if let Some(send) = self.entry(id) {
            (send.memory, send.end) = (memory, end);
        }
    }

    /// Takes the device memory of a send that continues, to make more frags; `None` if it has none.
    pub(crate) fn take_memory(&mut self, id: ZerocopyId) -> Option<FragUse> {
        let send = self.entry(id)?;
        match std::mem::replace(&mut send.memory, SendMemory::InCall) {
            SendMemory::Device(memory) => Some(memory),
            other => {
                send.memory = other;
                None
            }
        }
    }

    /// Ends a send: no more bytes follow.
    pub(crate) fn finish(&mut self, id: ZerocopyId) {
        if let Some(send) = self.entry(id) {
            send.is_open = false;
        }
    }

    fn entry(&mut self, id: ZerocopyId) -> Option<&mut UnfinishedSend> {
        // Ids are consecutive, and entries are removed at the front only.
        let first = self.unfinished.front()?.id;
        let at = usize::try_from(id.0.wrapping_sub(first.0)).ok()?;
        self.unfinished.get_mut(at)
    }

    /// Moves completed sends to the entries to be reported; returns whether there were any. The peer has acknowledged all
    /// bytes before `acked`.
    pub(crate) fn collect(&mut self, acked: u64) -> bool {
        let mut found = false;
        while let Some(send) = self.unfinished.front_mut() {
            let (is_over, copied) = match &mut send.memory {
                SendMemory::Device(memory) => (memory.is_over(), false),
                SendMemory::InCall => (false, false),
                SendMemory::Copied => (send.end <= acked, true),
            };
            if send.is_open || !is_over {
                break;
            }
            let range = ZerocopyRange {
                copied,
                ..ZerocopyRange::one(send.id)
            };
            self.unfinished.pop_front();
            let merged = match self.done.back_mut() {
                Some(ErrEntry::Over(last)) => last.try_merge(range),
                _ => false,
            };
            if !merged {
                self.done.push_back(ErrEntry::Over(range));
            }
            self.noted += 1;
            found = true;
        }
        found
    }

    /// Returns whether the oldest send is not complete although all of it is before `acked`: the NIC, or the queue of
    /// a neighbour, still holds packets of it.
    pub(crate) fn is_held_below(&self, acked: u64) -> bool {
        self.unfinished
            .front()
            .is_some_and(|oldest| !oldest.is_open && oldest.end <= acked)
    }

    /// Returns whether a send is incomplete, or has timestamps to be taken.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || !self.stamps.is_empty()
    }

    /// Returns the total number of entries so far: if it grows, there is a new entry, even if the queue was not empty.
    pub(crate) fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns whether there are entries to be reported.
    pub(crate) fn has_entries(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns whether the oldest entry is a timestamp.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.done.front(), Some(ErrEntry::Time(_)))
    }

    /// Reports the oldest entry to `sink`; `None` if there is none.
    ///
    /// # Errors
    /// [`NoSpace`]; the entry stays.
    pub(crate) fn report(
        &mut self,
        family: OffenderFamily,
        sink: &mut dyn CmsgSink,
    ) -> Option<Result<(), NoSpace>> {
        let pushed = match *self.done.front()? {
            ErrEntry::Over(range) => sink.push_error(SockExtendedErr::from(range), family),
            ErrEntry::Time(stamp) => sink.push_stamp(stamp, family),
        };
        if pushed.is_ok() {
            self.done.pop_front();
        }
        Some(pushed)
    }

    /// Takes the oldest range of completed zero-copy sends; timestamps stay.
    pub(crate) fn pop(&mut self) -> Option<ZerocopyRange> {
        let range = self
            .done
            .iter()
            .enumerate()
            .find_map(|(at, entry)| match entry {
                ErrEntry::Over(range) => Some((at, *range)),
                ErrEntry::Time(_) => None,
            });
        let (at, range) = range?;
        self.done.remove(at);
        Some(range)
    }

    /// Adds the timestamps that are due: bytes before `sent` have been sent, and bytes before `acked` acknowledged. A
    /// timestamp without room is dropped.
    pub(crate) fn note_times(&mut self, sent: u64, acked: u64, now: Instant) {
        let Self {
            unfinished,
            done,
            noted,
            stamps,
            ..
        } = self;
        stamps.advance(sent, acked, now, |stamp| {
            if unfinished.len() + done.len() < MAX_ZEROCOPY_SENDS {
                done.push_back(ErrEntry::Time(stamp));
                *noted += 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::DmabufId;
    use netmem::{Dmabuf, FragList, FragSource};

    use super::*;

    fn memory() -> FragSource {
        FragSource::new(&Dmabuf::anonymous(8192).unwrap(), DmabufId(1)).unwrap()
    }

    fn send(queue: &mut ErrQueue, memory: &FragSource, end: u64) -> FragList {
        let send = memory.begin();
        let frags = send.frags(0, 100).unwrap();
        let id = queue.begin(SendMemory::Device(send), end);
        queue.finish(id);
        frags
    }

    fn copied(queue: &mut ErrQueue, end: u64) {
        let id = queue.begin(SendMemory::Copied, end);
        queue.finish(id);
    }

    fn range(lo: u32, hi: u32, copied: bool) -> ZerocopyRange {
        ZerocopyRange {
            lo: ZerocopyId(lo),
            hi: ZerocopyId(hi),
            copied,
        }
    }

    #[test]
    fn sends_are_reported_in_order_and_merged() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        let mut frags: Vec<_> = (1..=4)
            .map(|i| Some(send(&mut queue, &memory, i * 100)))
            .collect();
        assert!(!queue.collect(0));
        frags[1] = None;
        frags[2] = None;
        assert!(!queue.collect(0), "the first is not over");
        assert!(queue.is_held_below(100) && !queue.is_held_below(99));
        frags[0] = None;
        assert!(queue.collect(0));
        assert!(queue.has_entries());
        assert_eq!(queue.pop(), Some(range(0, 2, false)));
        frags[3] = None;
        assert!(queue.collect(0));
        assert_eq!((queue.pop(), queue.pop()), (Some(range(3, 3, false)), None));
    }

    #[test]
    fn copied_sends_are_reported_separately_and_in_order() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        copied(&mut queue, 10);
        copied(&mut queue, 20);
        let device = send(&mut queue, &memory, 30);
        copied(&mut queue, 40);
        assert!(!queue.collect(9), "the peer has none of them");
        assert!(queue.collect(10) && queue.collect(40));
        assert_eq!((queue.pop(), queue.pop()), (Some(range(0, 1, true)), None));
        drop(device);
        assert!(queue.collect(40));
        assert_eq!(queue.pop(), Some(range(2, 2, false)));
        assert_eq!(queue.pop(), Some(range(3, 3, true)));
        assert_eq!(queue.noted(), 4);
    }

    #[test]
    fn a_send_is_not_over_before_its_call_returns() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        let id = queue.begin(SendMemory::Device(memory.begin()), 100);
        copied(&mut queue, 200);
        assert!(!queue.collect(200) && !queue.is_held_below(200));
        let send = queue
            .take_memory(id)
            .expect("it was sent from device memory");
        assert!(queue.take_memory(id).is_none(), "it is taken");
        let more = send.frags(0, 100).unwrap();
        queue.extend(id, SendMemory::Device(send), 300);
        queue.finish(id);
        assert!(!queue.collect(300) && queue.is_held_below(300));
        drop(more);
        assert!(queue.collect(300));
        assert_eq!(queue.pop(), Some(range(0, 0, false)));
        assert_eq!(queue.pop(), Some(range(1, 1, true)));
    }

    #[test]
    fn a_send_whose_memory_is_taken_is_not_over_and_a_copied_one_has_none() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        let device = queue.begin(SendMemory::Device(memory.begin()), 100);
        let host = queue.begin(SendMemory::Copied, 200);
        let send = queue
            .take_memory(device)
            .expect("it was sent from device memory");
        assert!(queue.take_memory(host).is_none());
        queue.finish(device);
        queue.finish(host);
        assert!(!queue.collect(200), "its frags may still be made");
        queue.extend(device, SendMemory::Device(send), 100);
        assert!(queue.collect(200));
        assert_eq!(queue.pop(), Some(range(0, 0, false)));
        assert_eq!(queue.pop(), Some(range(1, 1, true)));
    }

    #[test]
    fn times_keep_their_place_among_completions_and_part_them() {
        use super::super::timestamps::{StampIds, Timestamping};
        let mut queue = ErrQueue::default();
        let wanted = Timestamping {
            sent: true,
            ids: StampIds::FromAcked,
            ..Timestamping::default()
        };
        queue.stamps.number(wanted.ids, 0, 0);
        for end in [10, 20] {
            copied(&mut queue, end);
            queue.collect(u64::MAX);
            queue.stamps.push(end, wanted);
            queue.note_times(end, 0, Instant::from_millis(1));
        }
        assert_eq!(queue.pop(), Some(range(0, 0, true)));
        let mut room = [0; 128];
        let mut writer = devmem_uapi::CmsgWriter::new(&mut room);
        let told = queue.report(OffenderFamily::Ip, &mut writer);
        assert!(matches!(told, Some(Ok(()))));
        let written = writer.written();
        let messages: Vec<_> = devmem_uapi::CmsgIter::new(&room[..written]).collect();
        assert_eq!(
            (messages[0].ty, messages[0].data[..16].to_vec()),
            (37, {
                let nanos: [u64; 2] = [0, 1_000_000];
                nanos.map(u64::to_ne_bytes).concat()
            })
        );
        let entry = SockExtendedErr::parse(&messages[1]).unwrap();
        assert_eq!(
            (entry.errno, entry.origin, entry.info, entry.data),
            (42, 4, 0, 9)
        );
        assert_eq!(queue.pop(), Some(range(1, 1, true)));
        let mut short = [0; 100];
        let mut writer = devmem_uapi::CmsgWriter::new(&mut short);
        let told = queue.report(OffenderFamily::Ip, &mut writer);
        assert!(matches!(told, Some(Err(NoSpace))) && writer.written() == 0);
        assert!(queue.has_entries());
    }

    #[test]
    fn a_range_that_does_not_fit_the_control_buffer_stays() {
        let mut queue = ErrQueue::default();
        copied(&mut queue, 10);
        queue.collect(u64::MAX);
        let mut short = [0; 47];
        let mut writer = devmem_uapi::CmsgWriter::new(&mut short);
        assert!(matches!(
            queue.report(OffenderFamily::Ip, &mut writer),
            Some(Err(NoSpace))
        ));
        let mut room = [0; 64];
        let mut writer = devmem_uapi::CmsgWriter::new(&mut room);
        assert!(matches!(
            queue.report(OffenderFamily::Ip, &mut writer),
            Some(Ok(()))
        ));
        assert!(queue.report(OffenderFamily::Ip, &mut writer).is_none());
    }
}
