//! Which bytes of targets must not be written: those that the NIC will write, and received ones that the program has not
//! taken yet.
//!
//! A connection knows its unread bytes and its lent frags exactly. [`GivenPlaces`] says which connections to ask: those with
//! a place in the same memory of which frags are left. Without direct placement there are none, and nothing is asked.

use std::fmt;
use std::ops::Range;

use devmem_uapi::{DmabufId, DmabufToken, Errno};
use netmem::{Dmabuf, Frag, GeometryError, UseObserver};
use thiserror::Error;

use crate::socket::connection::ConnectionSocket;
use crate::socket::error::{BadSocket, UnknownBinding};
use crate::socket::id::SocketId;
use crate::socket::kind::SocketKind;
use crate::socket::place::range_of;
use crate::socket::sockets::Sockets;

/// Why [`bind_target`](crate::Stack::bind_target) refused a memory; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BindTargetError {
    /// The NIC has no access to the memory: a device copies it.
    #[error("the CPU cannot write to the memory")]
    NotMapped,
    /// The memory is bound for receiving: the NIC writes any payload there.
    #[error("the memory is bound for receiving, and a NIC writes any packets there")]
    Receives,
    /// The size of the memory is not a multiple of the page size.
    #[error("the dma-buf is not made of whole pages: {0}")]
    Geometry(GeometryError),
    /// Every id is in use.
    #[error("every dma-buf id is in use")]
    NoId,
}

impl BindTargetError {
    /// Returns the errno that the kernel uses for such a refusal of a binding.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotMapped => Errno::EOPNOTSUPP,
            Self::Receives => Errno::EBUSY,
            Self::Geometry(_) => Errno::EINVAL,
            Self::NoId => Errno::ENOSPC,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotMapped => Some("receive into bound memory and let the device gather"),
            Self::Receives => Some("bind other memory as a target"),
            Self::NoId => Some("unbind some"),
            Self::Geometry(error) => Some(error.remedy()),
        }
    }
}

impl From<GeometryError> for BindTargetError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

/// Why [`place_next`](crate::Stack::place_next) failed; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The socket is closed, or is a listener.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// The connection is not established, or has ended.
    #[error("the connection is not established, or has ended")]
    NotConnected,
    /// The memory is not bound as a target.
    #[error(transparent)]
    UnknownBinding(#[from] UnknownBinding),
    /// The range is not inside the memory.
    #[error("bytes {start} to {end} are not inside the bound memory of {size} bytes")]
    OutOfBounds {
        /// Start of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Bytes of the memory.
        size: usize,
    },
    /// Two of the ranges have the same bytes.
    #[error(
        "bytes {start} to {end} are in two of the ranges, and what is received first would be overwritten"
    )]
    Twice {
        /// Start of the bytes.
        start: usize,
        /// End of the bytes.
        end: usize,
    },
    /// Part of the range must not be written yet.
    #[error("{0}")]
    InUse(PlaceInUse),
}

impl PlaceError {
    /// Returns the errno of the same refusal of a socket option.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(_) => Errno::EBADF,
            Self::NotConnected => Errno::ENOTCONN,
            Self::UnknownBinding(_) | Self::Twice { .. } => Errno::EINVAL,
            Self::OutOfBounds { .. } => Errno::EFAULT,
            Self::InUse(_) => Errno::EBUSY,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotConnected => Some("name the place when it is established"),
            Self::OutOfBounds { .. } => Some("name a range that is inside"),
            Self::Twice { .. } => Some("name each byte once"),
            Self::InUse(found) => Some(found.used.remedy()),
            Self::BadSocket(_) | Self::UnknownBinding(_) => None,
        }
    }
}

/// What bytes of a target are needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceUse {
    /// A connection has received them there, and they were not read.
    Unread,
    /// They are lent: neither gathered nor released.
    Lent,
    /// A connection will receive bytes there.
    Named,
}

impl PlaceUse {
    /// Returns what to do first.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Unread => "receive and gather them first",
            Self::Lent => "gather or release them first",
            Self::Named => "receive them first, or end that place",
        }
    }
}

impl fmt::Display for PlaceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unread => "hold received bytes that were not read",
            Self::Lent => "hold received bytes that were neither gathered nor released",
            Self::Named => "are the place of bytes that a stream will receive",
        })
    }
}

/// Bytes of a target that must not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceInUse {
    /// The bytes.
    pub range: Range<usize>,
    /// What they are needed for.
    pub used: PlaceUse,
}

impl fmt::Display for PlaceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, used } = self;
        let Range { start, end } = range;
        write!(f, "bytes {start} to {end} of the memory {used}")
    }
}

/// The places that connections were given, as long as frags of them may be left.
#[derive(Debug, Default)]
pub(crate) struct GivenPlaces(Vec<GivenPlace>);

#[derive(Debug)]
pub(crate) struct GivenPlace {
    socket: SocketId,
    target: DmabufId,
    frags: UseObserver,
    ranges: Vec<Range<usize>>,
}

impl GivenPlaces {
    /// Notes a new place, and forgets those of which nothing is left.
    pub(crate) fn add(
        &mut self,
        socket: SocketId,
        target: DmabufId,
        frags: UseObserver,
        ranges: &[Range<usize>],
    ) {
        self.0.retain(|placement| !placement.frags.is_over());
        self.0.push(GivenPlace {
            socket,
            target,
            frags,
            ranges: ranges.to_vec(),
        });
    }

    /// Returns the places in `memory` that overlap `ranges`.
    pub(crate) fn overlapping<'a>(
        &'a self,
        memory: &'a Dmabuf,
        ranges: &'a [Range<usize>],
    ) -> impl Iterator<Item = &'a GivenPlace> {
        let meets = |placement: &&GivenPlace| {
            let mut placed = placement.ranges.iter();
            placed.any(|range| overlap(ranges, range).is_some())
        };
        let candidates = self.0.iter().filter(meets);
        candidates.filter(|placement| placement.frags.is_in(memory))
    }
}

/// What is going to be written, and what may be overwritten.
#[derive(Clone, Copy, Default)]
pub(crate) struct Writing<'a> {
    pub(crate) ranges: &'a [Range<usize>],
    /// The connection for which it is written, if that is one of this stack.
    pub(crate) by: Option<SocketId>,
    /// Lent frags of `by` whose bytes may be overwritten: those that are gathered.
    pub(crate) gathered: &'a [DmabufToken],
    /// The place of `by` is replaced: its unread bytes may stay where the new place has them.
    pub(crate) replaces: bool,
}

impl Writing<'_> {
    /// Returns bytes of a place that its connection still needs.
    pub(crate) fn conflict(&self, at: &GivenPlace, sockets: &Sockets) -> Option<PlaceInUse> {
        // Nothing reads the bytes of a closed socket any more.
        let Ok(SocketKind::Connection(connection)) = sockets.get(at.socket) else {
            return None;
        };
        let found = |used| move |range| PlaceInUse { range, used };
        let named = self.named(at, connection).map(found(PlaceUse::Named));
        named
            .or_else(|| self.unread(at, connection).map(found(PlaceUse::Unread)))
            .or_else(|| self.lent(at, connection).map(found(PlaceUse::Lent)))
    }

    fn is_replaced(&self, at: &GivenPlace) -> bool {
        self.replaces && self.by == Some(at.socket)
    }

    fn named(&self, at: &GivenPlace, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let place = connection.reader.place();
        let place = place.filter(|it| it.target == at.target && !self.is_replaced(at))?;
        let mut rest = place.rest(connection.delivered());
        rest.find_map(|range| overlap(self.ranges, &range))
    }

    fn unread(&self, at: &GivenPlace, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let mut position = 0;
        let mut frags = connection.conn.unread().flat_map(|payload| payload.iter());
        frags.find_map(|frag: &Frag| {
            let before = position;
            position += frag.len();
            if frag.dmabuf_id() != Some(at.target) {
                return None;
            }
            let range = range_of(frag.dmabuf_offset(), frag.len());
            let stays = self.is_replaced(at) && is_at(self.ranges, before, &range);
            overlap(self.ranges, &range).filter(|_| !stays)
        })
    }

    fn lent(&self, at: &GivenPlace, connection: &ConnectionSocket) -> Option<Range<usize>> {
        let except = match self.by == Some(at.socket) {
            true => self.gathered,
            false => &[],
        };
        let mut lent = connection.reader.lent_of(at.target, except);
        lent.find_map(|range| overlap(self.ranges, range))
    }
}

/// Returns the first bytes of `range` that are in `ranges`, too.
fn overlap(ranges: &[Range<usize>], range: &Range<usize>) -> Option<Range<usize>> {
    ranges.iter().find_map(|other| {
        let both = range.start.max(other.start)..range.end.min(other.end);
        (!both.is_empty()).then_some(both)
    })
}

/// Returns whether `found` is where the byte at `position` of `ranges`, and those behind it, belong.
fn is_at(ranges: &[Range<usize>], position: usize, found: &Range<usize>) -> bool {
    let (mut skip, mut at) = (position, found.start);
    for range in ranges {
        if at >= found.end {
            break;
        }
        if skip >= range.len() {
            skip -= range.len();
            continue;
        }
        if range.start + skip != at {
            return false;
        }
        at = found.end.min(range.end);
        skip = 0;
    }
    at == found.end
}

#[cfg(test)]
mod tests {
    use super::is_at;

    #[test]
    fn bytes_are_at_their_place_across_ranges() {
        let ranges = [10..20, 20..30, 100..110];
        assert!(is_at(&ranges, 0, &(10..30)));
        assert!(is_at(&ranges, 5, &(15..25)));
        assert!(is_at(&ranges, 20, &(100..110)));
        assert!(!is_at(&ranges, 5, &(14..25)));
        assert!(
            !is_at(&ranges, 15, &(25..35)),
            "the third range is elsewhere"
        );
        assert!(!is_at(&ranges, 25, &(105..111)), "behind the last range");
        assert!(!is_at(&[], 0, &(0..1)));
    }
}
