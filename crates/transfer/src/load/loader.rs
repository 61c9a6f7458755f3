//! The loader: what is loaded, and by which rules.

mod run;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use client::dial::CancelCheck;
use client::http::{Client, HttpFile};
use client::{LoadError, Notice, Pool};
use devmem_tcp::{Netdev, memory::check_room};

use super::http::stored_sum;
use super::landing::{Landed, Landing, Places, Take, Watch};
use super::loaded::Loaded;
use super::origin::Origin;
use super::part::{Layout, Part};
use super::source::{PieceLengths, Source};
use crate::checksum::{NoSum, StoredSum};
use crate::parallel::ranges::{piece_bytes, sorted_apart, unaligned};
use crate::parallel::{Pieces, Progress, Settings, settable};
use run::{Job, Run};

/// Loads parts of a source over several connections.
///
/// Memory must be bound to the NIC for receiving, and the NIC set up to steer these connections there
/// ([`Netdev::plan_receive`] with port 0); otherwise the payload passes through host memory.
#[derive(Clone, Debug)]
pub struct Loader {
    nic: Netdev,
    pub(super) settings: Settings,
    notice: Notice,
}

settable!(Loader);

impl Loader {
    /// Returns a loader with up to 4 connections, pieces of 16 MiB, or 1 MiB from NBD servers and NVMe controllers, and 2 requests at a time on each
    /// connection, or more if they are short, and 32 to an NVMe controller. A load begins with one connection if one thread serves all of them and the round trip is shorter than a millisecond.
    /// While it waits for bytes, it tries twice as many, and uses them if they are faster.
    pub fn new(nic: &Netdev) -> Self {
        Self {
            nic: nic.clone(),
            settings: Settings::new(),
            notice: Notice::default(),
        }
    }

    /// Tells `hear` why a load waits, when that takes seconds: the server is busy, or does not answer; and that an https URL redirects to plain HTTP. Other
    /// threads may call it.
    #[must_use]
    pub fn on_notice(mut self, hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notice = Notice::to(hear);
        self
    }

    /// Opens what a URL names, unless `cancel_check` cancels it: called at least every 100 ms. The limit of this loader holds for each answer of the server.
    ///
    /// # Errors
    /// Those of [`Origin::open_cancellable`].
    pub fn open(
        &self,
        origin: &Origin,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Source, LoadError> {
        match origin {
            Origin::Http(request) => {
                let pool = Arc::default();
                let opened = HttpFile::open_with(self.client(&pool), request, 1, cancel_check);
                opened.map(|(file, _)| Source::Http(file))
            }
            other => other.open_cancellable(&self.nic, cancel_check),
        }
    }

    /// Returns the checksum that the server of a source has of all its bytes. An S3-compatible store is asked for it, and where it has one of the checksums
    /// of parts, also for the place of each part: one request for each.
    ///
    /// # Errors
    /// The server does not answer, or the file has changed; [`LoadError::Cancelled`].
    pub fn stored_sum(
        &self,
        source: &Source,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Result<StoredSum, NoSum>, LoadError> {
        match source {
            Source::Http(file) => stored_sum(file, self.client(file.pool()), cancel_check),
            Source::Files(_) => Ok(Err(NoSum::NotAll)),
            Source::Nbd(_) | Source::Nvme(_) => Ok(Err(NoSum::None)),
        }
    }

    /// Returns a client for requests on connections of `pool`.
    pub(crate) fn client<'a>(&'a self, pool: &'a Arc<Pool>) -> Client<'a> {
        Client {
            nic: &self.nic,
            pool,
            limit: self.settings.idle_limit(),
            notice: &self.notice,
        }
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &Netdev {
        &self.nic
    }

    /// Sets how many requests one connection may have open, at least 1. More than 1 hides the round trip between pieces; of many,
    /// a quarter are sent together. By default as many as ask for 4 MiB, from 2 to 64.
    #[must_use]
    pub fn pipeline(mut self, requests: usize) -> Self {
        self.settings.set_window(requests);
        self
    }

    /// Loads `parts` of `source` to their places, device to device. `progress` is called at least every 100 ms, and may end
    /// the load.
    ///
    /// # Errors
    /// The parts do not fit, the server refuses or fails too often, or `progress` ended the load. Some parts may have been
    /// written.
    pub fn load(
        &self,
        source: impl Into<Source>,
        parts: &[Part],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        self.load_watched(&source.into(), parts, None, progress)
    }

    /// As [`load`](Self::load); `watch` is told of the bytes that are in their place.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_watched(
        &self,
        source: &Source,
        parts: &[Part],
        watch: Option<&mut Watch<'_>>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let layout = Layout::new(parts)?;
        let ranges = layout.ranges();
        let watch = watch.map(|watch| -> &mut Watch<'_> { watch });
        let places = Places::new(&self.nic, &layout, watch);
        self.run(source, ranges, Landing::Memory(places), progress)
    }

    /// Loads `ranges` of `source` and hands every batch to `take`, where it lies in the bound memory. Pieces of different
    /// connections are interleaved, and after a broken connection bytes of its pieces may come again.
    ///
    /// # Errors
    /// As [`load`](Self::load), and those of `take`.
    pub fn deliver(
        &self,
        source: impl Into<Source>,
        ranges: &[Range<u64>],
        take: &mut dyn FnMut(Landed<'_>) -> std::io::Result<()>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let ranges = sorted_apart(ranges.iter().cloned()).map_err(super::PartError::from)?;
        let take: &mut Take<'_> = take;
        self.run(&source.into(), ranges, Landing::Caller(take), progress)
    }

    /// Loads `len` bytes of `source` from `start` on into host memory, for what the CPU must read.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn read(
        &self,
        source: &Source,
        start: u64,
        len: u32,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<u8>, LoadError> {
        check_room(len as usize)?;
        let mut bytes = vec![0; len as usize];
        let mut take = |landed: Landed<'_>| {
            let (Landed::Frags { at, .. } | Landed::Bytes { at, .. }) = landed else {
                // Zeros are there already.
                return Ok(());
            };
            let place = usize::try_from(at - start).map_err(std::io::Error::other)?;
            let out = bytes.get_mut(place..).unwrap_or_default();
            landed.copy_to(out).map(|_| ())
        };
        let end = start.saturating_add(u64::from(len));
        let ranges = [start..end];
        self.deliver(source.clone(), &ranges, &mut take, &mut |_| cancel_check())?;
        Ok(bytes)
    }

    /// Loads the bytes of `source` that are missing to the first `len` ones in `bytes`, or cuts those that are too many off.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn read_on(
        &self,
        source: &Source,
        bytes: &mut Vec<u8>,
        len: u32,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(), LoadError> {
        bytes.truncate(len as usize);
        // Fits: there are at most `len`.
        let missing = len - u32::try_from(bytes.len()).unwrap_or(len);
        if missing > 0 {
            bytes.append(&mut self.read(source, bytes.len() as u64, missing, cancel_check)?);
        }
        Ok(())
    }

    fn run<'a>(
        &'a self,
        source: &'a Source,
        ranges: Vec<Range<u64>>,
        landing: Landing<'a>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        if let (Some(size), Some(last)) = (source.size(), ranges.last())
            && last.end > size
        {
            let end = last.end;
            return Err(LoadError::PastEnd { end, size });
        }
        let PieceLengths {
            longest,
            block,
            usual,
            first,
            window,
        } = source.piece_lengths();
        if let Some((range, blocks)) = unaligned(&ranges, block, source.size()) {
            return Err(LoadError::Unaligned {
                range,
                block,
                blocks,
            });
        }
        let wanted = self.settings.piece_bytes(usual);
        let connections = source.usable_connections(self.settings.connections());
        let pieces = Pieces::new(ranges, piece_bytes(wanted, block, longest))
            .with_long_piece(piece_bytes(first, block, longest));
        let window = self.settings.window(window);
        let job = Job {
            nic: &self.nic,
            settings: &self.settings,
            notice: &self.notice,
            source,
        };
        Run::new(job, pieces, landing, connections, window)?.run(progress)
    }
}
