//! Interrupts: an eventfd for each MSI-X vector that the client listens to.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::closing::ClientFds;
use crate::eventfd::Signaller;

/// What is wrong with a range of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IrqsError {
    /// There are fewer vectors.
    #[error("vectors {start} and on, {count} of them: there are {limit}")]
    NoSuchVector {
        /// The first vector.
        start: u32,
        /// How many.
        count: u32,
        /// How many the device has.
        limit: usize,
    },
    /// Not one descriptor for each vector.
    #[error("{fds} descriptors for {count} vectors")]
    Descriptors {
        /// Descriptors that came.
        fds: usize,
        /// Vectors.
        count: u32,
    },
    /// The descriptor is of another kind of file, which signalling might wait for.
    #[error("the descriptor for vector {vector} is no eventfd")]
    NoEventfd {
        /// The vector.
        vector: u32,
    },
    /// The descriptor cannot be used.
    #[error("descriptor for a vector: {0}")]
    System(Errno),
}

/// The MSI-X vectors of a device, as far as the client listens to them.
#[derive(Debug)]
pub struct Irqs {
    /// Eventfds, and nothing else: `assign` has asked.
    vectors: Vec<Option<OwnedFd>>,
    signaller: &'static Signaller,
    raised: Cell<u64>,
    unheard: Cell<u64>,
}

impl Irqs {
    /// Returns `count` vectors to which nobody listens.
    ///
    /// # Errors
    /// What the kernel said to being asked for a way of signalling eventfds: see [`Signaller::of_process`].
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

    /// Returns how many vectors there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    /// Raises one vector; false if nobody listens to it.
    ///
    /// Never waits, whatever the client does with its eventfd meanwhile: a counter that is full stays full, which is as
    /// good as raised.
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

    /// Returns how often a vector was raised.
    pub fn raised(&self) -> u64 {
        self.raised.get()
    }

    /// Returns how often a vector was raised that nobody listened to, or whose descriptor refused.
    pub fn unheard(&self) -> u64 {
        self.unheard.get()
    }

    /// Listens to vectors by these descriptors, one each. Those that were there are closed.
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

    /// Listens to these vectors no more.
    ///
    /// # Errors
    /// [`IrqsError::NoSuchVector`].
    pub(crate) fn detach(&mut self, start: u32, count: u32) -> Result<(), IrqsError> {
        self.range(start, count)?.fill_with(|| None);
        Ok(())
    }

    /// Listens to no vector.
    pub(crate) fn detach_all(&mut self) {
        self.vectors.fill_with(|| None);
    }

    /// Raises vectors because the client wants them raised: to test its own wiring.
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
            // In range: `range` said that there are so many.
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
