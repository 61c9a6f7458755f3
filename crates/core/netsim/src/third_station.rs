//! A third station on the wire between two stacks, and the link that delivers its frames.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nic::{Link, LinkCaps, LinkReceived, LinkSent, LinkState, Posted, TxFrame, VnetMeta};
use wire::{EthernetHeader, Instant, MacAddr, RxHeaders};

/// Hardware address of the third station.
pub(crate) const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xe]);

/// The third station: a test writes its frames and reads the headers of the frames sent to [`MAC`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ThirdStation(Arc<Mutex<StationQueues>>);

#[derive(Debug, Default)]
struct StationQueues {
    to_stack: VecDeque<Vec<u8>>,
    from_stack: VecDeque<RxHeaders>,
}

/// Order in which a stack receives the frames of the third station and those of its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameOrder {
    /// All waiting frames of the third station first.
    ThirdStationFirst,
    /// One frame of each in turn while both have any: the stations share the rate of the wire.
    Alternating,
}

impl ThirdStation {
    /// Puts a frame on the wire to the stack.
    pub(crate) fn send(&self, frame: Vec<u8>) {
        self.queues().to_stack.push_back(frame);
    }

    /// Returns how many frames the stack has not received yet.
    pub(crate) fn unreceived(&self) -> usize {
        self.queues().to_stack.len()
    }

    /// Takes the headers of all frames that the stack sent to the station.
    pub(crate) fn take_all(&self) -> Vec<RxHeaders> {
        self.queues().from_stack.drain(..).collect()
    }

    /// Takes the headers of the first frame to the station that `matches`.
    pub(crate) fn take_first(&self, matches: impl FnMut(&RxHeaders) -> bool) -> Option<RxHeaders> {
        let mut queues = self.queues();
        let at = queues.from_stack.iter().position(matches)?;
        queues.from_stack.remove(at)
    }

    /// Returns `link`, the stack's end of the wire, with the station on it.
    pub(crate) fn on(&self, link: Box<dyn Link>, order: FrameOrder) -> SharedLink {
        SharedLink {
            link,
            station: self.clone(),
            order,
            is_peers_turn: false,
        }
    }

    fn queues(&self) -> MutexGuard<'_, StationQueues> {
        // Each lock holder leaves the queues consistent, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stack's end of a wire to which its peer and a third station send.
pub(crate) struct SharedLink {
    link: Box<dyn Link>,
    station: ThirdStation,
    order: FrameOrder,
    /// The next frame comes from the peer, if the peer has sent one.
    is_peers_turn: bool,
}

impl SharedLink {
    fn receive_from_station(&self, posted: &mut Posted<'_>) -> Option<LinkReceived> {
        *posted.frame = self.station.queues().to_stack.pop_front()?;
        let meta = VnetMeta::default();
        Some(LinkReceived::Frame { meta })
    }
}

impl Link for SharedLink {
    fn caps(&self) -> LinkCaps {
        self.link.caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        if self.order == FrameOrder::Alternating {
            self.is_peers_turn = !self.is_peers_turn;
        }
        if !self.is_peers_turn
            && let Some(received) = self.receive_from_station(posted)
        {
            return Ok(received);
        }
        match self.link.receive(posted, now)? {
            LinkReceived::None => Ok(self
                .receive_from_station(posted)
                .unwrap_or(LinkReceived::None)),
            received => Ok(received),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        let to = EthernetHeader::parse(frame.head).map(|ethernet| ethernet.dst);
        if to != Ok(MAC) {
            return self.link.send(frame, now);
        }
        let mut bytes = Vec::new();
        frame.copy_to(&mut bytes);
        if let Ok(headers) = RxHeaders::parse(&bytes, bytes.len()) {
            self.station.queues().from_stack.push_back(headers);
        }
        Ok(LinkSent::Done)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn room_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.room_fd()
    }

    fn tells_of_room(&self) -> bool {
        self.link.tells_of_room()
    }

    fn next_due(&self) -> Option<Instant> {
        match self.station.unreceived() {
            0 => self.link.next_due(),
            _ => Some(Instant::ZERO),
        }
    }

    fn state(&self) -> LinkState {
        self.link.state()
    }

    fn impairment_stats(&self) -> Option<nic::ImpairedStats> {
        self.link.impairment_stats()
    }
}
