//! The error queue: which zero-copy sends are over, in their order, and times of sends.
//!
//! A send is over when nobody can read its memory any more: the peer has acknowledged every byte of it, so that the
//! send queue let go, and the NIC has let go of every packet that names it, repeated ones included. Both hold frags of
//! the send, so the one question is whether any frag of it is left ([`TxSend::is_over`]).

use std::collections::VecDeque;

use devmem_uapi::{
    CmsgSink, NoSpace, OffenderFamily, SockExtendedErr, TxStamp, ZerocopyId, ZerocopyRange,
};
use netmem::TxSend;
use wire::Instant;

use super::timestamps::Stamps;

/// Most zero-copy sends of a socket that are not over or not reported (linux bounds them by `optmem_max`).
pub const MAX_ZEROCOPY_SENDS: usize = 16_384;

/// The zero-copy sends of one socket.
#[derive(Debug)]
pub(crate) struct ErrQueue {
    /// Id of the next send.
    next: ZerocopyId,
    /// Sends that are not over, in the order of their ids.
    pending: VecDeque<Pending>,
    /// What is to be reported.
    done: VecDeque<News>,
    /// Counts what was ever put there to be reported.
    noted: u64,
    /// Sends whose times are waited for.
    pub(crate) stamps: Stamps,
    /// Stands in the list of sockets whose acknowledged sends the NIC still holds.
    pub(crate) is_draining: bool,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// Zero-copy sends are over.
    Over(ZerocopyRange),
    /// A time of a send.
    Time(TxStamp),
}

/// A send that is not over, or follows one that is not.
#[derive(Debug)]
struct Pending {
    id: ZerocopyId,
    /// Stream offset behind its last byte.
    end: u64,
    memory: Memory,
    /// Its call has not returned: more of it may follow.
    is_open: bool,
}

/// Where the bytes of a zero-copy send lie.
#[derive(Debug)]
pub(crate) enum Memory {
    /// In device memory.
    Device(TxSend),
    /// In device memory, whose [`TxSend`] the call that goes on has: it was taken by [`ErrQueue::lend`] and comes back by
    /// [`ErrQueue::go_on`]. The send is not over before.
    Lent,
    /// In host memory of the stack, to which they were copied. That is told when the peer has them, as Linux tells it:
    /// a program learns from these entries how far the peer is, too.
    Copied,
}

impl Default for ErrQueue {
    fn default() -> Self {
        Self {
            next: ZerocopyId(0),
            pending: VecDeque::new(),
            done: VecDeque::new(),
            noted: 0,
            stamps: Stamps::default(),
            is_draining: false,
        }
    }
}

impl ErrQueue {
    /// Returns whether one more send may be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() + self.done.len() < MAX_ZEROCOPY_SENDS
    }

    /// Notes a send whose last byte so far stands before the stream offset `end`. It takes the next id, and is not over
    /// before [`ErrQueue::finish`] says that this was all of it.
    pub(crate) fn begin(&mut self, memory: Memory, end: u64) -> ZerocopyId {
        let id = self.next;
        self.next = id.next();
        self.pending.push_back(Pending {
            id,
            end,
            memory,
            is_open: true,
        });
        id
    }

    /// Notes that a send goes on to `end`, in the same memory.
    pub(crate) fn go_on(&mut self, id: ZerocopyId, memory: Memory, end: u64) {
        if let Some(send) = self.entry(id) {
            (send.memory, send.end) = (memory, end);
        }
    }

    /// Lends the device memory of a send that goes on, to make frags of it; `None` if there is none.
    pub(crate) fn lend(&mut self, id: ZerocopyId) -> Option<TxSend> {
        let send = self.entry(id)?;
        match std::mem::replace(&mut send.memory, Memory::Lent) {
            Memory::Device(memory) => Some(memory),
            other => {
                send.memory = other;
                None
            }
        }
    }

    /// Nothing more belongs to this send.
    pub(crate) fn finish(&mut self, id: ZerocopyId) {
        if let Some(send) = self.entry(id) {
            send.is_open = false;
        }
    }

    fn entry(&mut self, id: ZerocopyId) -> Option<&mut Pending> {
        // Ids are given in order, and an entry leaves at the front only.
        let first = self.pending.front()?.id;
        let at = usize::try_from(id.0.wrapping_sub(first.0)).ok()?;
        self.pending.get_mut(at)
    }

    /// Moves sends that are over to the ranges to be reported; returns whether there were any. The peer has all bytes
    /// before `acked`.
    pub(crate) fn collect(&mut self, acked: u64) -> bool {
        let mut found = false;
        while let Some(send) = self.pending.front_mut() {
            let (is_over, copied) = match &mut send.memory {
                Memory::Device(memory) => (memory.is_over(), false),
                Memory::Lent => (false, false),
                Memory::Copied => (send.end <= acked, true),
            };
            if send.is_open || !is_over {
                break;
            }
            let range = ZerocopyRange {
                copied,
                ..ZerocopyRange::one(send.id)
            };
            self.pending.pop_front();
            let merged = match self.done.back_mut() {
                Some(News::Over(last)) => last.try_merge(range),
                _ => false,
            };
            if !merged {
                self.done.push_back(News::Over(range));
            }
            self.noted += 1;
            found = true;
        }
        found
    }

    /// Returns whether the oldest send is not over although the peer has all bytes before `acked`: the NIC, or a
    /// neighbour's queue, still holds packets of it.
    pub(crate) fn is_held_below(&self, acked: u64) -> bool {
        self.pending
            .front()
            .is_some_and(|oldest| !oldest.is_open && oldest.end <= acked)
    }

    /// Counts what was ever there to be reported: while it grows, there is news even if something is there already.
    pub(crate) fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns whether there is anything to be reported.
    pub(crate) fn has_news(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns whether the oldest entry is a time of a send.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.done.front(), Some(News::Time(_)))
    }

    /// Reports the oldest entry to `sink`; `None` if there is none.
    ///
    /// # Errors
    /// [`NoSpace`], and the entry stays.
    pub(crate) fn report(
        &mut self,
        family: OffenderFamily,
        sink: &mut dyn CmsgSink,
    ) -> Option<Result<(), NoSpace>> {
        let pushed = match *self.done.front()? {
            News::Over(range) => sink.push_error(SockExtendedErr::from(range), family),
            News::Time(stamp) => sink.push_stamp(stamp, family),
        };
        if pushed.is_ok() {
            self.done.pop_front();
        }
        Some(pushed)
    }

    /// Takes the oldest range of zero-copy sends to be reported; times stay.
    pub(crate) fn pop(&mut self) -> Option<ZerocopyRange> {
        let range = self
            .done
            .iter()
            .enumerate()
            .find_map(|(at, news)| match news {
                News::Over(range) => Some((at, *range)),
                News::Time(_) => None,
            });
        let (at, range) = range?;
        self.done.remove(at);
        Some(range)
    }

    /// Puts times of sends into the queue: the peer has all bytes before `acked`, and those before `sent` left. A time
    /// that finds no room is not told.
    pub(crate) fn note_times(&mut self, sent: u64, acked: u64, now: Instant) {
        let Self {
            pending,
            done,
            noted,
            stamps,
            ..
        } = self;
        stamps.advance(sent, acked, now, |stamp| {
            if pending.len() + done.len() < MAX_ZEROCOPY_SENDS {
                done.push_back(News::Time(stamp));
                *noted += 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::DmabufId;
    use netmem::{Dmabuf, FragList, TxMemory};

    use super::*;

    fn memory() -> TxMemory {
        TxMemory::new(&Dmabuf::anonymous(8192).unwrap(), DmabufId(1)).unwrap()
    }

    fn send(queue: &mut ErrQueue, memory: &TxMemory, end: u64) -> FragList {
        let send = memory.begin();
        let frags = send.frags(0, 100).unwrap();
        let id = queue.begin(Memory::Device(send), end);
        queue.finish(id);
        frags
    }

    fn copied(queue: &mut ErrQueue, end: u64) {
        let id = queue.begin(Memory::Copied, end);
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
        assert!(queue.has_news());
        assert_eq!(queue.pop(), Some(range(0, 2, false)));
        frags[3] = None;
        assert!(queue.collect(0));
        assert_eq!((queue.pop(), queue.pop()), (Some(range(3, 3, false)), None));
    }

    #[test]
    fn copied_sends_are_told_apart_and_keep_their_place() {
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
    fn a_send_is_not_over_while_its_call_goes_on() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        let id = queue.begin(Memory::Device(memory.begin()), 100);
        copied(&mut queue, 200);
        assert!(!queue.collect(200) && !queue.is_held_below(200));
        let send = queue.lend(id).expect("it was sent from device memory");
        assert!(queue.lend(id).is_none(), "it is lent");
        let more = send.frags(0, 100).unwrap();
        queue.go_on(id, Memory::Device(send), 300);
        queue.finish(id);
        assert!(!queue.collect(300) && queue.is_held_below(300));
        drop(more);
        assert!(queue.collect(300));
        assert_eq!(queue.pop(), Some(range(0, 0, false)));
        assert_eq!(queue.pop(), Some(range(1, 1, true)));
    }

    #[test]
    fn a_send_whose_memory_is_lent_is_not_over_and_a_copied_one_has_none_to_lend() {
        let (memory, mut queue) = (memory(), ErrQueue::default());
        let device = queue.begin(Memory::Device(memory.begin()), 100);
        let host = queue.begin(Memory::Copied, 200);
        let send = queue.lend(device).expect("it was sent from device memory");
        assert!(queue.lend(host).is_none());
        queue.finish(device);
        queue.finish(host);
        assert!(!queue.collect(200), "its frags may still be made");
        queue.go_on(device, Memory::Device(send), 100);
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
        assert!(queue.has_news());
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
