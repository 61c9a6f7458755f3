//! The operations of an endpoint: what was posted, and what of it is done. No I/O.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::data::Owner;
use crate::error::{Cause, Violation};
use crate::in_flight::InFlight;
use crate::limits::{MAX_NOTIFIES, MAX_PARTS, MAX_RECEIVES, MAX_SENDS};
use crate::matching::{Matcher, Room};
use crate::region::{Place, Span};

/// Most parts that a peer may have posted.
const MAX_ROOMS: usize = MAX_RECEIVES * MAX_PARTS;

/// An outcome, in the order in which operations end. `user` is the number that was given with the operation.
#[derive(Clone, Debug)]
pub enum Event {
    /// A send is done: its bytes may be changed. They need not have arrived.
    Sent {
        /// The operation.
        user: u64,
    },
    /// A receive is done: each part is in place.
    Received {
        /// The operation.
        user: u64,
        /// Bytes that arrived in each part.
        sizes: Sizes,
    },
    /// A put is done: its bytes may be changed.
    Put {
        /// The operation.
        user: u64,
    },
    /// A get is done: its bytes are in place.
    Got {
        /// The operation.
        user: u64,
    },
    /// A notification of the peer, whose earlier puts are in place. When about a thousand of them, or 1 MiB, were not taken, nothing more is
    /// read from the peer, neither records nor what they announce, until half of them were.
    Notified {
        /// What the peer has sent.
        bytes: Vec<u8>,
    },
    /// An operation will not be done, because the endpoint broke.
    Failed {
        /// The operation.
        user: u64,
    },
    /// The endpoint broke. Comes once, before the operations that fail.
    Broken(Arc<Cause>),
}

/// Bytes that arrived in each part of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    sizes: [u64; MAX_PARTS],
    parts: usize,
}

impl Deref for Sizes {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.sizes[..self.parts]
    }
}

/// What an outgoing message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Send {
        user: u64,
    },
    Put {
        user: u64,
    },
    /// The answer to a get of the peer.
    Answer,
}

/// Where an outgoing message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    /// A part that the peer has posted; or its get, part 0.
    Part { op: u64, part: u8 },
    /// A region that the peer has published.
    Region { key: u64, offset: u64 },
}

/// An outgoing message.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) purpose: Purpose,
    pub(crate) span: Span,
    /// `None`: a send without room.
    pub(crate) destination: Option<Destination>,
    /// Bytes that are cut into chunks.
    pub(crate) cut: usize,
    /// Bytes that are not done.
    left: usize,
}

/// What waits to be cut into chunks and announced, in order.
#[derive(Debug)]
pub(crate) enum Active {
    Message(u64),
    Notify(Vec<u8>),
}

/// A part of a receive, or the only one of a get.
#[derive(Debug)]
pub(crate) struct Incoming {
    span: Span,
    /// Length of the message, known from its first chunk.
    total: Option<u64>,
    announced: u64,
    placed: u64,
}

impl Incoming {
    pub(crate) fn new(span: Span) -> Self {
        Self {
            span,
            total: None,
            announced: 0,
            placed: 0,
        }
    }

    /// Returns the length of the longest message that fits.
    pub(crate) fn room(&self) -> u64 {
        self.span.len() as u64
    }
}

/// The parts of a receive. Most have one, which needs no allocation.
#[derive(Debug)]
pub(crate) enum Parts {
    One([Incoming; 1]),
    Several(Vec<Incoming>),
}

impl Deref for Parts {
    type Target = [Incoming];

    fn deref(&self) -> &[Incoming] {
        match self {
            Self::One(part) => part,
            Self::Several(parts) => parts,
        }
    }
}

impl DerefMut for Parts {
    fn deref_mut(&mut self) -> &mut [Incoming] {
        match self {
            Self::One(part) => part,
            Self::Several(parts) => parts,
        }
    }
}

/// What a receive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Receive,
    Get,
}

#[derive(Debug)]
struct Receive {
    user: u64,
    wanted: Wanted,
    parts: Parts,
    /// Parts that are not done.
    left: usize,
}

/// A chunk that the peer announces, as its record says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) op: u64,
    pub(crate) part: u8,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) total: u64,
}

/// All operations of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    outgoing: InFlight<Outgoing>,
    receives: InFlight<Receive>,
    matcher: Matcher,
    pub(crate) active: VecDeque<Active>,
    /// Notifications among `active`: a peer that takes nothing keeps them there.
    notifies: usize,
    /// Answers to gets among `outgoing`.
    answers: usize,
    /// Name of the next operation. Never used again: 2^64 operations take centuries.
    next: u64,
    pub(crate) events: VecDeque<Event>,
}

impl Operations {
    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn has_room_to_send(&self) -> bool {
        self.outgoing.len() < MAX_SENDS
    }

    pub(crate) fn has_room_to_receive(&self) -> bool {
        self.receives.len() < MAX_RECEIVES
    }

    pub(crate) fn has_room_to_notify(&self) -> bool {
        self.notifies < MAX_NOTIFIES
    }

    /// Adds a notification behind what is active.
    pub(crate) fn notify(&mut self, bytes: Vec<u8>) {
        self.notifies += 1;
        self.active.push_back(Active::Notify(bytes));
    }

    /// Takes out the first active one, which is announced.
    pub(crate) fn finish_active(&mut self) {
        if let Some(Active::Notify(_)) = self.active.pop_front() {
            self.notifies -= 1;
        }
    }

    /// Returns how many gets of the peer are not answered.
    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    /// Returns whether an operation is not done.
    pub(crate) fn is_busy(&self) -> bool {
        !self.outgoing.is_empty() || !self.receives.is_empty() || !self.active.is_empty()
    }

    /// Adds a receive, and returns the name under which to announce its parts.
    pub(crate) fn receive(&mut self, user: u64, parts: Parts) -> u64 {
        self.add_receive(user, Wanted::Receive, parts)
    }

    /// Adds a get, and returns the name under which to ask for it.
    pub(crate) fn get(&mut self, user: u64, span: Span) -> u64 {
        self.add_receive(user, Wanted::Get, Parts::One([Incoming::new(span)]))
    }

    fn add_receive(&mut self, user: u64, wanted: Wanted, parts: Parts) -> u64 {
        let op = self.name();
        let receive = Receive {
            user,
            wanted,
            left: parts.len(),
            parts,
        };
        self.receives.add(op, receive);
        op
    }

    /// Adds a send. It becomes active when the peer has posted room for its tag.
    pub(crate) fn send(&mut self, user: u64, span: Span, tag: u32) -> Result<(), Cause> {
        let op = self.add_outgoing(Purpose::Send { user }, span, None);
        match self.matcher.on_send(op, tag) {
            Some(room) => self.begin(op, room),
            None => Ok(()),
        }
    }

    /// Adds a message that needs no room: a put, or the answer to a get.
    pub(crate) fn message(&mut self, purpose: Purpose, span: Span, destination: Destination) {
        self.answers += usize::from(purpose == Purpose::Answer);
        let op = self.add_outgoing(purpose, span, Some(destination));
        self.active.push_back(Active::Message(op));
    }

    fn add_outgoing(
        &mut self,
        purpose: Purpose,
        span: Span,
        destination: Option<Destination>,
    ) -> u64 {
        let op = self.name();
        let outgoing = Outgoing {
            purpose,
            left: span.len(),
            span,
            destination,
            cut: 0,
        };
        self.outgoing.add(op, outgoing);
        op
    }

    /// The peer has posted a part.
    pub(crate) fn on_posted(&mut self, room: Room) -> Result<(), Cause> {
        if self.matcher.rooms() >= MAX_ROOMS {
            return Err(Violation::TooManyPosted.into());
        }
        match self.matcher.on_posted(room) {
            Some(send) => self.begin(send, room),
            None => Ok(()),
        }
    }

    /// A send has met its room.
    fn begin(&mut self, op: u64, room: Room) -> Result<(), Cause> {
        let Some(outgoing) = self.outgoing.get_mut(op) else {
            return Ok(());
        };
        let sent = outgoing.span.len() as u64;
        if sent > room.len {
            return Err(Cause::TooLong {
                sent,
                posted: room.len,
                tag: room.tag,
                is_ours: true,
            });
        }
        outgoing.destination = Some(Destination::Part {
            op: room.op,
            part: room.part,
        });
        self.active.push_back(Active::Message(op));
        Ok(())
    }

    pub(crate) fn outgoing_mut(&mut self, op: u64) -> Option<&mut Outgoing> {
        self.outgoing.get_mut(op)
    }

    /// `bytes` of an outgoing message are done. A message without bytes is done when it is announced: `bytes` 0.
    pub(crate) fn on_sent(&mut self, op: u64, bytes: usize) {
        let Some(outgoing) = self.outgoing.get_mut(op) else {
            return;
        };
        outgoing.left -= bytes;
        if outgoing.left > 0 {
            return;
        }
        let purpose = outgoing.purpose;
        self.outgoing.remove(op);
        match purpose {
            Purpose::Send { user } => self.events.push_back(Event::Sent { user }),
            Purpose::Put { user } => self.events.push_back(Event::Put { user }),
            Purpose::Answer => self.answers -= 1,
        }
    }

    /// The peer announces a chunk of at most `chunk` bytes. Returns where its bytes go; `None` for a message without bytes.
    pub(crate) fn on_chunk(
        &mut self,
        it: Announced,
        chunk: u64,
    ) -> Result<Option<Place<'_>>, Cause> {
        let receive = self.receives.get_mut(it.op);
        let part = receive.and_then(|receive| receive.parts.get_mut(usize::from(it.part)));
        let part = part.ok_or(Violation::UnknownReceive)?;
        let room = part.room();
        if it.total > room {
            return Err(Cause::TooLong {
                sent: it.total,
                posted: room,
                tag: 0,
                is_ours: false,
            });
        }
        let continues = match part.total {
            // A message without bytes has one chunk.
            Some(total) => it.total == total && it.len > 0,
            None => true,
        };
        // Every chunk but the last one has the agreed length, so that the peer cannot announce a byte at a time.
        let rest = it.total.saturating_sub(part.announced);
        if !continues || it.offset != part.announced || it.len != rest.min(chunk) {
            return Err(Violation::Chunk.into());
        }
        part.total = Some(it.total);
        part.announced += it.len;
        if it.total == 0 {
            self.on_placed(
                Owner::Part {
                    op: it.op,
                    part: it.part,
                },
                0,
            );
            return Ok(None);
        }
        let part = self.receives.get(it.op);
        let part = part.and_then(|receive| receive.parts.get(usize::from(it.part)));
        // Both fit, because `total` is at most the length of the span.
        let place = part
            .zip(usize::try_from(it.offset).ok())
            .zip(usize::try_from(it.len).ok())
            .and_then(|((part, offset), len)| part.span.place_of(offset, len));
        Ok(Some(place.ok_or(Violation::Chunk)?))
    }

    /// `bytes` of a part are in place.
    pub(crate) fn on_placed(&mut self, owner: Owner, bytes: usize) {
        let Owner::Part { op, part } = owner else {
            return;
        };
        let Some(receive) = self.receives.get_mut(op) else {
            return;
        };
        let Some(part) = receive.parts.get_mut(usize::from(part)) else {
            return;
        };
        part.placed += bytes as u64;
        if part.total != Some(part.placed) {
            return;
        }
        receive.left -= 1;
        if receive.left > 0 {
            return;
        }
        let mut sizes = Sizes {
            sizes: [0; MAX_PARTS],
            parts: receive.parts.len(),
        };
        for (size, part) in sizes.sizes.iter_mut().zip(&*receive.parts) {
            *size = part.placed;
        }
        let user = receive.user;
        let event = match receive.wanted {
            Wanted::Receive => Event::Received { user, sizes },
            Wanted::Get => Event::Got { user },
        };
        self.receives.remove(op);
        self.events.push_back(event);
    }

    /// Ends every operation.
    pub(crate) fn fail_all(&mut self) {
        let mut failed: Vec<(u64, u64)> = Vec::new();
        for (op, outgoing) in self.outgoing.take() {
            match outgoing.purpose {
                Purpose::Send { user } | Purpose::Put { user } => failed.push((op, user)),
                Purpose::Answer => {}
            }
        }
        let receives = self.receives.take();
        failed.extend(receives.map(|(op, receive)| (op, receive.user)));
        failed.sort_unstable();
        let events = failed.into_iter().map(|(_, user)| Event::Failed { user });
        self.events.extend(events);
        self.matcher = Matcher::default();
        self.active.clear();
        self.notifies = 0;
        self.answers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{Access, Buffer, Kind, NewRegion, Region};

    const CHUNK: u64 = 4096;

    fn span(len: usize) -> Span {
        let new = NewRegion {
            access: Access::PRIVATE,
            fabric: 1,
        };
        let kind = Kind::Host(Buffer::new(vec![0; len]));
        let region = Region::new(kind, None, new).unwrap();
        region.span(1, 0..len).unwrap()
    }

    fn announced(op: u64, offset: u64, len: u64, total: u64) -> Announced {
        Announced {
            op,
            part: 0,
            offset,
            len,
            total,
        }
    }

    #[test]
    fn a_receive_is_done_when_every_byte_is_placed() {
        let mut ops = Operations::default();
        let op = ops.receive(77, Parts::Several(vec![Incoming::new(span(10_000))]));
        for (offset, len) in [(0, 4096), (4096, 4)] {
            let place = ops.on_chunk(announced(op, offset, len, 4100), CHUNK);
            let span = place.unwrap().unwrap().to_span().unwrap();
            assert_eq!(span.len() as u64, len);
        }
        let owner = Owner::Part { op, part: 0 };
        ops.on_placed(owner, 4);
        assert!(ops.events.is_empty());
        ops.on_placed(owner, 4096);
        assert!(
            matches!(ops.events.pop_front(), Some(Event::Received { user: 77, sizes }) if *sizes == [4100])
        );
        assert!(!ops.is_busy());
    }

    #[test]
    fn an_empty_message_has_one_chunk() {
        let mut ops = Operations::default();
        let op = ops.receive(
            1,
            Parts::Several(vec![Incoming::new(span(8)), Incoming::new(span(8))]),
        );
        assert!(
            ops.on_chunk(announced(op, 0, 0, 0), CHUNK)
                .unwrap()
                .is_none()
        );
        assert!(matches!(
            ops.on_chunk(announced(op, 0, 0, 0), CHUNK),
            Err(Cause::Protocol(Violation::Chunk))
        ));
    }

    #[test]
    fn a_lying_peer_is_refused() {
        let bad = [
            (announced(9, 0, 8, 8), Violation::UnknownReceive),
            (announced(1, 8, 8, 16), Violation::Chunk),
            (announced(1, 0, 8, 16), Violation::Chunk),
            (announced(1, 0, 5000, 6000), Violation::Chunk),
        ];
        for (chunk, expected) in bad {
            let mut ops = Operations::default();
            ops.receive(1, Parts::Several(vec![Incoming::new(span(8192))]));
            let refused = ops.on_chunk(chunk, CHUNK);
            assert!(matches!(refused, Err(Cause::Protocol(violation)) if violation == expected));
        }
        let mut ops = Operations::default();
        let op = ops.receive(1, Parts::Several(vec![Incoming::new(span(8))]));
        let other = Announced {
            part: 1,
            ..announced(op, 0, 8, 8)
        };
        assert!(matches!(
            ops.on_chunk(other, CHUNK),
            Err(Cause::Protocol(Violation::UnknownReceive))
        ));
        assert!(matches!(
            ops.on_chunk(announced(op, 0, 9, 9), CHUNK),
            Err(Cause::TooLong {
                sent: 9,
                posted: 8,
                ..
            })
        ));
    }

    #[test]
    fn posted_parts_are_bounded() {
        let mut ops = Operations::default();
        let room = Room {
            op: 1,
            part: 0,
            len: 8,
            tag: 0,
        };
        for _ in 0..MAX_ROOMS {
            ops.on_posted(room).unwrap();
        }
        assert!(matches!(
            ops.on_posted(room),
            Err(Cause::Protocol(Violation::TooManyPosted))
        ));
    }

    #[test]
    fn a_send_longer_than_its_room_names_both_lengths() {
        let mut ops = Operations::default();
        ops.send(1, span(9), 3).unwrap();
        let room = Room {
            op: 1,
            part: 0,
            len: 8,
            tag: 3,
        };
        let refused = ops.on_posted(room).unwrap_err();
        assert!(matches!(
            refused,
            Cause::TooLong {
                sent: 9,
                posted: 8,
                tag: 3,
                is_ours: true
            }
        ));
    }

    #[test]
    fn each_operation_fails_once_in_the_order_of_posting() {
        let mut ops = Operations::default();
        ops.send(5, span(9), 3).unwrap();
        ops.receive(4, Parts::Several(vec![Incoming::new(span(1))]));
        ops.get(6, span(1));
        ops.fail_all();
        ops.fail_all();
        let failed: Vec<_> = ops
            .events
            .iter()
            .map(|event| match event {
                Event::Failed { user } => *user,
                event => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(failed, [5, 4, 6]);
    }
}
