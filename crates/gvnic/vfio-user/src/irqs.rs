//! Interrupts: one eventfd for each MSI-X vector that the client has enabled.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::closing::ClientFds;
use crate::eventfd::Signaller;

/// Error of a range of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IrqsError {
    /// The range reaches past the last vector.
    #[error("{count} vectors from {start}: the device has {limit}")]
    NoSuchVector {
        /// The first vector.
        start: u32,
        /// Number of vectors.
        count: u32,
        /// Number of vectors of the device.
        limit: usize,
    },
    /// The number of descriptors differs from that of vectors.
    #[error("{fds} descriptors for {count} vectors")]
    Descriptors {
        /// Number of descriptors.
        fds: usize,
        /// Number of vectors.
        count: u32,
    },
    /// The descriptor is not an eventfd; signalling another kind of file might block.
    #[error("the descriptor for vector {vector} is not an eventfd")]
    NoEventfd {
        /// The vector.
        vector: u32,
    },
    /// The descriptor cannot be used.
    #[error("descriptor for a vector: {0}")]
    System(Errno),
}

/// The MSI-X vectors of a device with their eventfds.
#[derive(Debug)]
pub struct Irqs {
    /// Eventfds only: `assign` has checked that.
    vectors: Vec<Option<OwnedFd>>,
    signaller: &'static Signaller,
    raised: Cell<u64>,
    unheard: Cell<u64>,
}

impl Irqs {
    /// Returns `count` vectors without eventfds.
    ///
    /// # Errors
    /// Those of [`Signaller::of_process`].
    pub(crate) fn new(count: u16) -> Result<Self, Errno> {
        let mut vectors = Vec::new();
        vectors.resize_with(usize::from(count), || None);
        Ok(Self {
            vectors,
            signaller: Signaller::of_process()?,
            raised: Cell::new(0),
            unheard: Cell::new(0),
        })
    }

    /// Returns the number of vectors.
    pub fn count(&self) -> u16 {
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    /// Raises one vector; returns false if it has no eventfd.
    ///
    /// Never blocks, whatever the client does with its eventfd. A full counter is not changed: the client is notified
    /// already.
    pub fn raise(&self, vector: u16) -> bool {
        let fd = self.vectors.get(usize::from(vector));
        let Some(fd) = fd.and_then(Option::as_ref) else {
            count_one(&self.unheard);
            return false;
        };
        count_one(&self.raised);
        match self.signaller.signal(fd.as_fd()) {
            Ok(()) => true,
            Err(_) => {
                count_one(&self.unheard);
                false
            }
        }
    }

    /// Returns how many times vectors were raised.
    pub fn raised(&self) -> u64 {
        self.raised.get()
    }

    /// Returns how many times a vector was raised that had no eventfd or could not be signalled.
    pub fn unheard(&self) -> u64 {
        self.unheard.get()
    }

    /// Assigns one eventfd to each vector from `start` on, and closes the previous ones.
    ///
    /// # Errors
    /// See [`IrqsError`]; nothing has changed then.
    pub(crate) fn assign(&mut self, start: u32, fds: ClientFds) -> Result<(), IrqsError> {
        let count = u32::try_from(fds.len()).unwrap_or(u32::MAX);
        self.range(start, count)?;
        for (vector, fd) in (start..).zip(&*fds) {
            let is_eventfd = self.signaller.is_eventfd(fd.as_fd());
            if !is_eventfd.map_err(IrqsError::System)? {
                return Err(IrqsError::NoEventfd { vector });
            }
        }
        let eventfds = fds.into_checked();
        for (vector, fd) in self.range(start, count)?.iter_mut().zip(eventfds) {
            *vector = Some(fd);
        }
        Ok(())
    }

    /// Removes the eventfds of these vectors.
    ///
    /// # Errors
    /// [`IrqsError::NoSuchVector`].
    pub(crate) fn detach(&mut self, start: u32, count: u32) -> Result<(), IrqsError> {
        self.range(start, count)?.fill_with(|| None);
        Ok(())
    }

    /// Removes the eventfds of all vectors.
    pub(crate) fn detach_all(&mut self) {
        self.vectors.fill_with(|| None);
    }

    /// Raises vectors at the request of the client, which does so for tests.
    ///
    /// # Errors
    /// [`IrqsError::NoSuchVector`].
    pub(crate) fn raise_for_client(
        &mut self,
        start: u32,
        wanted: impl ExactSizeIterator<Item = bool>,
    ) -> Result<(), IrqsError> {
        let count = u32::try_from(wanted.len()).unwrap_or(u32::MAX);
        self.range(start, count)?;
        for (vector, wanted) in (start..).zip(wanted) {
            // In range: checked by `range`.
            if let (true, Ok(vector)) = (wanted, u16::try_from(vector)) {
                self.raise(vector);
            }
        }
        Ok(())
    }

    fn range(&mut self, start: u32, count: u32) -> Result<&mut [Option<OwnedFd>], IrqsError> {
        let limit = self.vectors.len();
        let wrong = IrqsError::NoSuchVector {
            start,
            count,
            limit,
        };
        let first = usize::try_from(start).map_err(|_| wrong)?;
        let len = usize::try_from(count).map_err(|_| wrong)?;
        let end = first.checked_add(len).ok_or(wrong)?;
        self.vectors.get_mut(first..end).ok_or(wrong)
    }
}

fn count_one(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
