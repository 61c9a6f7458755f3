//! Direct placement: a program says where the next bytes of a connection belong, and the NIC receives them there.
//!
//! The NIC keeps the ranges (`nic::Nic::ddp_add`), by sequence number. A connection keeps the position in its stream at which its
//! range ends. After each segment, [`Placing::follow`] tells the NIC where the next byte in order belongs: only TCP knows
//! which segments count.

mod in_use;

use std::ops::Range;

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, GeometryError, RxClaim, TxMemory};
use nic::Nic;
use thiserror::Error;

use crate::Stack;
use crate::binding::Bindings;
use crate::socket::error::{BadSocket, UnknownBinding};
use crate::socket::{ConnectionSocket, SocketId};

pub(crate) use in_use::{LentPlaces, Placements};
pub use in_use::{PlaceInUse, PlaceUse};

/// Why [`Stack::bind_target`] refused a memory; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BindTargetError {
    /// The NIC has no access to the memory: a device copies it.
    #[error(
        "the CPU cannot write to the memory; receive into bound memory and let the device gather"
    )]
    NotMapped,
    /// The memory is bound for receiving: the NIC writes any payload there.
    #[error(
        "the memory is bound for receiving, and a NIC writes any packets there; bind other memory as a target"
    )]
    Receives,
    /// The size of the memory is not a multiple of the page size.
    #[error("the dma-buf is not made of whole pages: {0}")]
    Geometry(#[from] GeometryError),
    /// Every id is in use.
    #[error("every dma-buf id is in use; unbind some")]
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
}

/// Why [`Stack::place_next`] failed; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The socket is closed, or is a listener.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// The connection is not established, or has ended.
    #[error(
        "the connection is not established, or has ended; name the place when it is established"
    )]
    NotConnected,
    /// The memory is not bound as a target.
    #[error(transparent)]
    UnknownBinding(#[from] UnknownBinding),
    /// The range is not inside the memory.
    #[error(
        "bytes {start} to {end} are not inside the bound memory of {size} bytes; name a range that is inside"
    )]
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
        "bytes {start} to {end} are in two of the ranges, and what is received first would be overwritten; name each byte once"
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
}

/// The place of a connection: its rest is at the NIC.
#[derive(Debug)]
pub(crate) struct Placing {
    target: DmabufId,
    ranges: Vec<Range<usize>>,
    /// Position in the stream of the first byte behind the range. Once that is reached, the NIC has forgotten the range.
    end: u64,
}

/// Whether a poll receives more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum AfterPlacing {
    /// Yes.
    GoOn,
    /// No: the first bytes behind a range have arrived, and the program may tell from them where the next ones belong. What the
    /// poll received before the program reads them would have to be copied.
    Pause,
}

impl Placing {
    /// Returns the ranges without the bytes that TCP has delivered, up to position `delivered` of the stream.
    fn rest(&self, delivered: u64) -> impl Iterator<Item = Range<usize>> {
        let total = self
            .ranges
            .iter()
            .map(ExactSizeIterator::len)
            .sum::<usize>();
        let left = usize::try_from(self.end.saturating_sub(delivered)).unwrap_or(usize::MAX);
        behind(&self.ranges, total.saturating_sub(left))
    }

    /// Tells the NIC where the next byte of the connection belongs, or that its range is full.
    pub(crate) fn follow(connection: &mut ConnectionSocket, nic: &mut Nic) -> AfterPlacing {
        let Some(end) = connection.placing.as_ref().map(|placing| placing.end) else {
            return AfterPlacing::GoOn;
        };
        let delivered = connection.delivered();
        let left = end.saturating_sub(delivered);
        match (connection.conn.rcv_nxt(), usize::try_from(left)) {
            (Some(seq), Ok(left)) if left > 0 => nic.ddp_resync(&connection.tuple, seq.0, left),
            (Some(_), _) if delivered == end => nic.ddp_del(&connection.tuple),
            _ => {
                Self::end(connection, nic);
                return AfterPlacing::Pause;
            }
        }
        AfterPlacing::GoOn
    }

    /// Ends the placement of a connection, if there is one: no later packet changes the bytes of the range.
    pub(crate) fn end(connection: &mut ConnectionSocket, nic: &mut Nic) {
        if connection.placing.take().is_some() {
            nic.ddp_del(&connection.tuple);
        }
    }
}

impl Stack {
    /// Binds a dma-buf as a target: [`Stack::place_next`] may name ranges of it.
    ///
    /// # Errors
    /// [`BindTargetError`]. Nothing has changed then.
    pub fn bind_target(&mut self, dmabuf: &Dmabuf) -> Result<DmabufId, BindTargetError> {
        if dmabuf.copy_engine().is_some() {
            return Err(BindTargetError::NotMapped);
        }
        if RxClaim::is_bound(dmabuf) {
            return Err(BindTargetError::Receives);
        }
        let bindings = &mut self.memory.bindings;
        let id = bindings.next_id().ok_or(BindTargetError::NoId)?;
        bindings.insert_target(id, TxMemory::new(dmabuf, id)?);
        Ok(id)
    }

    /// Removes a binding as a target. Ranges that are being filled stay in use, until they are full or
    /// [`Stack::stop_placing`] ends them; frags of the memory keep it mapped.
    ///
    /// # Errors
    /// [`UnknownBinding`].
    pub fn unbind_target(&mut self, id: DmabufId) -> Result<(), UnknownBinding> {
        let removed = self.memory.bindings.targets.remove(&id);
        removed.map(drop).ok_or(UnknownBinding(id))
    }

    /// Says where the next unread bytes of a connection belong: in `ranges` of a target, one after another. Bytes that arrive
    /// from now on are received there, in order, and delivered as frags of that memory. Those that were received already stay where they
    /// are: in the memory of the queue, or in an earlier place. Those that arrive out of order, and those behind the last range, go to the
    /// memory of the queue, as without this call. Replaces earlier ranges; no range only ends those.
    ///
    /// Until it is full or replaced, or the socket is closed, the NIC may write any bytes to the part of the range that was
    /// not delivered yet. So the ranges must not have bytes that are still needed: unread ones of an earlier place, except where
    /// these ranges have them at the same place; lent ones that were neither gathered ([`Stack::gathered`]) nor released; those of the
    /// place of another connection. Nor may one byte be in two of the ranges.
    ///
    /// # Errors
    /// [`PlaceError`]. Nothing has changed then.
    pub fn place_next(
        &mut self,
        id: SocketId,
        target: DmabufId,
        ranges: &[Range<usize>],
    ) -> Result<(), PlaceError> {
        check_distinct(ranges)?;
        self.check_place(id, target, ranges)?;
        let Self {
            nic,
            sockets,
            memory,
            ..
        } = self;
        let Bindings {
            targets,
            placements,
            ..
        } = &mut memory.bindings;
        let target_memory = targets.get(&target).ok_or(UnknownBinding(target))?;
        let len = total_len(target_memory, ranges)?;
        let mut connection = sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        let seq = connection.conn.rcv_nxt().ok_or(PlaceError::NotConnected)?;
        Placing::end(&mut connection, nic);
        let unread = connection.conn.readable_len();
        if unread < len {
            connection.placing = Some(Placing {
                target,
                ranges: ranges.to_vec(),
                end: connection.read + len as u64,
            });
            let lent = connection.lent_places.get_or_insert_default();
            lent.watch(target);
            let (flow, rest) = (connection.tuple, behind(ranges, unread).collect());
            let frags = target_memory.begin();
            placements.add(id, target, frags.observer(), ranges);
            let added = nic.ddp_add(flow, seq.0, frags, rest);
            debug_assert!(added.is_ok(), "the ranges were checked: {added:?}");
        }
        Ok(())
    }

    /// Ends the placement of a connection: from now on no packet changes the bytes of its range that were not delivered.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn stop_placing(&mut self, id: SocketId) -> Result<(), BadSocket> {
        let Self { nic, sockets, .. } = self;
        let mut connection = sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        Placing::end(&mut connection, nic);
        Ok(())
    }
}

/// Returns the number of bytes of ranges, all of which are inside of the memory.
fn total_len(target: &TxMemory, ranges: &[Range<usize>]) -> Result<usize, PlaceError> {
    ranges.iter().try_fold(0_usize, |sum, range| {
        let len = range.end.checked_sub(range.start);
        let len = len.filter(|&len| target.check(range.start, len).is_ok());
        let sum = len.and_then(|len| sum.checked_add(len));
        sum.ok_or(PlaceError::OutOfBounds {
            start: range.start,
            end: range.end,
            size: target.size(),
        })
    })
}

/// Checks that no byte is in two ranges.
fn check_distinct(ranges: &[Range<usize>]) -> Result<(), PlaceError> {
    let is_sorted = |pair: &[Range<usize>]| pair[0].end <= pair[1].start;
    if ranges.windows(2).all(is_sorted) {
        return Ok(());
    }
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_by_key(|range| range.start);
    let twice = sorted.windows(2).find(|pair| pair[0].end > pair[1].start);
    twice.map_or(Ok(()), |pair| {
        Err(PlaceError::Twice {
            start: pair[1].start,
            end: pair[0].end.min(pair[1].end),
        })
    })
}

/// Returns the ranges without their first `skip` bytes.
fn behind(ranges: &[Range<usize>], mut skip: usize) -> impl Iterator<Item = Range<usize>> {
    let rest = ranges.iter().map(move |range| {
        let passed = skip.min(range.len());
        skip -= passed;
        range.start + passed..range.end
    });
    rest.filter(|range| !range.is_empty())
}
