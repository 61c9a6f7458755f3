//! A file of an HTTP server: found, and asked for its size.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_tcp::Netdev;
use devmem_tcp::text::printable;

use super::client::{Client, FirstBytes};
use super::fields::{FileSum, Validators};
use super::head::Head;
use super::location::Location;
use super::request::HttpRequest;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::notice::Notice;
use crate::pool::Pool;

/// How long to wait for the whole head of the response, if no other limit is set.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A file of an HTTP server, as it was when it was opened. Cloning it is cheap.
///
/// The connection that has asked stays open, for the first load, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct HttpFile {
    found: Arc<Found>,
}

#[derive(Debug)]
struct Found {
    /// The user's request.
    origin: HttpRequest,
    /// Where it leads now. A signed place expires, and another one is found.
    location: Mutex<Arc<Location>>,
    /// Addresses of the first place.
    addresses: Vec<SocketAddr>,
    pool: Arc<Pool>,
    size: Option<u64>,
    serves_ranges: bool,
    validators: Validators,
    sum: Option<FileSum>,
}

impl HttpFile {
    /// Finds the file: resolves the name, follows redirects, and asks for the first byte, which tells the size and whether
    /// the server serves ranges.
    ///
    /// # Errors
    /// The host is not found or does not answer, or the server refuses.
    pub fn open(nic: &Netdev, request: HttpRequest) -> Result<Self, LoadError> {
        Self::open_cancellable(nic, request, &mut dial::never_cancelled)
    }

    /// As [`open`](Self::open), unless `cancel_check` cancels it: called at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_cancellable(
        nic: &Netdev,
        request: HttpRequest,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, LoadError> {
        let client = Client {
            nic,
            pool: &Arc::default(),
            limit: ANSWER_LIMIT,
            notice: &Notice::default(),
        };
        let (file, _) = Self::open_with(client, &request, 1, cancel_check)?;
        Ok(file)
    }

    /// Opens a file with a client. Also returns its first `wanted` bytes, if it has so many and the server sends them.
    ///
    /// # Errors
    /// Those of [`open_cancellable`](Self::open_cancellable).
    pub fn open_with(
        client: Client<'_>,
        request: &HttpRequest,
        wanted: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(Self, Vec<u8>), LoadError> {
        let FirstBytes {
            origin,
            location,
            head,
            size,
            serves_ranges,
            bytes,
        } = client.find(request, wanted, cancel_check)?;
        let found = Found {
            origin,
            addresses: location.addresses.clone(),
            location: Mutex::new(Arc::new(location)),
            pool: Arc::clone(client.pool),
            size,
            serves_ranges,
            sum: head.sum_of_file(),
            validators: head.validators,
        };
        Ok((found.into(), bytes))
    }

    /// Returns a file that no server has, for the fuzz targets.
    #[cfg(feature = "test-util")]
    pub fn of_size(size: u64, serves_ranges: bool) -> Self {
        let origin = HttpRequest::new("http://host/file".parse().expect("a URL"));
        let location = Location {
            request: origin.clone(),
            addresses: Vec::new(),
            from: None,
        };
        Self::from(Found {
            origin,
            location: Mutex::new(Arc::new(location)),
            addresses: Vec::new(),
            pool: Arc::default(),
            size: Some(size),
            serves_ranges,
            validators: Validators::default(),
            sum: None,
        })
    }

    /// Returns the number of bytes, if the server tells.
    #[inline]
    pub fn size(&self) -> Option<u64> {
        self.found.size
    }

    /// Returns whether the bytes come by https, and the CPU decrypts them in host memory. A redirect may have led there.
    pub fn is_encrypted(&self) -> bool {
        self.location().request.url().is_https()
    }

    /// Returns whether the server serves ranges. If not, it sends the whole file over one connection, and after a broken
    /// connection again from the start.
    #[inline]
    pub fn serves_ranges(&self) -> bool {
        self.found.serves_ranges
    }

    /// Returns the checksum of the whole file, if the server has sent one.
    pub fn sent_sum(&self) -> Option<FileSum> {
        self.found.sum.clone()
    }

    /// Returns the user's request.
    pub fn request(&self) -> &HttpRequest {
        &self.found.origin
    }

    /// Returns the URL of the place that the server redirects to, without user and password, for messages.
    pub fn place(&self) -> String {
        self.location().request.url().to_string()
    }

    /// Returns the addresses of the server, or of the proxy, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.found.addresses
    }

    /// Returns the name for messages: the user's URL.
    pub fn name(&self) -> String {
        self.found.origin.url().to_string()
    }

    /// Returns the connections that wait for another request to its server.
    #[inline]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.found.pool
    }

    #[inline]
    fn locked_location(&self) -> MutexGuard<'_, Arc<Location>> {
        self.found
            .location
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where the file is now.
    #[inline]
    pub fn location(&self) -> Arc<Location> {
        Arc::clone(&self.locked_location())
    }

    /// Finds the file again, from the user's URL, after the place that `old` leads to did not have it any more. Returns whether anything was
    /// asked: not if another way was found meanwhile.
    ///
    /// # Errors
    /// Those of [`open_cancellable`](Self::open_cancellable); [`LoadError::Changed`].
    pub fn find_again(
        &self,
        client: Client<'_>,
        old: &Arc<Location>,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<bool, LoadError> {
        if !Arc::ptr_eq(&self.locked_location(), old) {
            return Ok(false);
        }
        let now = client.find(&self.found.origin, 1, cancel_check)?;
        self.check_version(now.size, &now.head)?;
        *self.locked_location() = Arc::new(now.location);
        Ok(true)
    }

    /// Checks that a response, which tells `size`, is of the file that was opened.
    ///
    /// # Errors
    /// Size or validators are different.
    #[inline]
    pub fn check_version(&self, size: Option<u64>, head: &Head) -> Result<(), LoadError> {
        let changed = |problem| {
            let url = self.name();
            Err(LoadError::Changed { url, problem })
        };
        if let (Some(then), Some(now)) = (self.found.size, size)
            && then != now
        {
            return changed(format!("it had {then} bytes and has {now}"));
        }
        match self.found.validators.change(&head.validators) {
            Some((then, now)) => {
                let (then, now) = (printable(then), printable(now));
                changed(format!("its version was {then} and is {now}"))
            }
            None => Ok(()),
        }
    }

    /// Returns what the file is recognised by: its size, and its ETag or the time of its last change.
    pub fn version(&self) -> Option<&str> {
        let Validators { etag, modified } = &self.found.validators;
        etag.as_deref().or(modified.as_deref())
    }
}

impl From<Found> for HttpFile {
    fn from(found: Found) -> Self {
        Self {
            found: Arc::new(found),
        }
    }
}
