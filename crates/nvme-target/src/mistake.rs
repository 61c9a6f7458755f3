//! What a target does wrong on demand.

use std::sync::{Mutex, PoisonError};

use nvme::Status;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// The handshake is answered with another version of the PDU format.
    OtherVersion,
    /// The handshake wants data to be aligned.
    Alignment,
    /// The handshake takes fewer bytes in one PDU than is allowed.
    LittleData,
    /// The handshake is answered with a response.
    NoHandshake,
    /// The controller is not ready when the host looks for the first time.
    NotReady,
    /// The controller is never ready.
    NeverReady,
    /// The controller has failed when the host looks whether it is ready.
    Failed,
    /// A page of the admin queue ends in its middle, and its command succeeds.
    ShortPage,
    /// Data of a read name no command.
    DataForNobody,
    /// Data of a read go on behind its end.
    DataBeyond,
    /// Data of a read begin before their place.
    DataBefore,
    /// The first data of a read come twice.
    DataTwice,
    /// The second half of the data of a read begins before the end of the first.
    DataOverlaps,
    /// The PDU of data is shorter than its data.
    ShortLength,
    /// The digest of data is wrong.
    DataDigest,
    /// The digest of a header is wrong.
    HeaderDigest,
    /// A read succeeds without its data.
    NoData,
    /// The response comes twice.
    ResponseTwice,
    /// A response names no command.
    ResponseForNobody,
    /// A request for data names no command.
    TransferForNobody,
    /// A request for data goes on behind the end of the write.
    TransferBeyond,
    /// The same data of a write are requested twice.
    TransferTwice,
    /// A request for data has another tag than the target remembers.
    TransferTag,
    /// A write succeeds when its data have just been requested, and again when they have come.
    EarlyResponse,
    /// A write succeeds and its data were not requested.
    NoTransfer,
    /// The connection is ended with a reason.
    Terminates,
    /// Nothing is answered any more on this queue.
    Silence,
    /// The connection is closed.
    Closes,
    /// The connection is closed in the middle of data.
    ClosesInData,
    /// The command fails.
    Fails(Status),
}

/// Mistakes to make, each at one command of the I/O queues, counted over all of them from 0; those of handshakes at one
/// connection, and those of admin queues at their first occasion.
#[derive(Debug, Default)]
pub struct Mistakes {
    planned: Mutex<Vec<(u64, Mistake)>>,
}

impl Mistakes {
    /// Returns mistakes to make once each.
    pub fn once(planned: impl IntoIterator<Item = (u64, Mistake)>) -> Self {
        let planned = Mutex::new(planned.into_iter().collect());
        Self { planned }
    }

    /// Plans a mistake for later.
    pub fn plan(&self, at: u64, mistake: Mistake) {
        self.lock().push((at, mistake));
    }

    /// Takes the mistake of a command or a connection whose number is `number`: one that is planned for it, or for one before
    /// it, and that `fits`.
    pub(crate) fn take(&self, number: u64, fits: impl Fn(Mistake) -> bool) -> Option<Mistake> {
        let mut planned = self.lock();
        let is_due = |(at, mistake): &(u64, Mistake)| *at <= number && fits(*mistake);
        let index = planned.iter().position(is_due)?;
        Some(planned.swap_remove(index).1)
    }

    /// Returns whether this mistake of an admin queue is to be made now.
    pub(crate) fn take_of_admin(&self, mistake: Mistake) -> bool {
        self.take(u64::MAX, |planned| planned == mistake).is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Mistake)>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mistake {
    /// Returns whether it is made in the handshake of a connection.
    pub(crate) fn is_of_handshake(self) -> bool {
        matches!(
            self,
            Self::OtherVersion | Self::Alignment | Self::LittleData | Self::NoHandshake
        )
    }

    /// Returns whether it is made by an admin queue.
    pub(crate) fn is_of_admin(self) -> bool {
        matches!(
            self,
            Self::NotReady | Self::NeverReady | Self::Failed | Self::ShortPage
        )
    }

    /// Returns whether only the answer to a read can have it.
    pub(crate) fn is_of_read(self) -> bool {
        matches!(
            self,
            Self::DataForNobody
                | Self::DataBeyond
                | Self::DataBefore
                | Self::DataTwice
                | Self::DataOverlaps
                | Self::ShortLength
                | Self::DataDigest
                | Self::NoData
                | Self::ClosesInData
        )
    }

    /// Returns whether only the answer to a write can have it.
    pub(crate) fn is_of_write(self) -> bool {
        matches!(
            self,
            Self::TransferForNobody
                | Self::TransferBeyond
                | Self::TransferTwice
                | Self::TransferTag
                | Self::EarlyResponse
                | Self::NoTransfer
        )
    }
}
