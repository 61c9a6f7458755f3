//! An export of an NBD server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use devmem_tcp::{Netdev, RecvError, Stream};

use super::flags::{CAN_MULTI_CONN, READ_ONLY};
use super::handshake::{MAX_NAME_BYTES, Negotiated, Negotiation};
use super::url::NbdUrl;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;

/// An export of an NBD server, as it was when it was opened. Cloning it is cheap.
///
/// The connection that has asked stays open, for the first load or store, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct NbdExport {
    found: Arc<Found>,
}

#[derive(Debug)]
struct Found {
    url: NbdUrl,
    addresses: Vec<SocketAddr>,
    negotiated: Negotiated,
    first: FirstConnection,
}

/// The connection that [`NbdExport::open`] has made, until it is used.
struct FirstConnection(Mutex<Option<(Netdev, Stream)>>);

impl FirstConnection {
    /// Takes it, if it is one of `nic` and the server has not ended it.
    fn take(&self, nic: &Netdev) -> Option<Stream> {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, mut stream) = first.take_if(|(home, _)| home.is_same(nic))?;
        stream.set_nonblocking(true);
        // A server sends nothing before the first request.
        let is_open = matches!(stream.peek(&mut [0]), Err(RecvError::WouldBlock));
        stream.set_nonblocking(false);
        is_open.then_some(stream)
    }
}

impl fmt::Debug for FirstConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstConnection").finish_non_exhaustive()
    }
}

impl NbdExport {
    /// Opens an export, and asks for its size and rules.
    ///
    /// # Errors
    /// The host is not found or does not answer, or has no such export.
    pub fn open(nic: &Netdev, url: NbdUrl) -> Result<Self, LoadError> {
        Self::open_cancellable(nic, url, &mut dial::never_cancelled)
    }

    /// As [`open`](Self::open), unless `cancel_check` cancels it: called at least every 100 ms.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`LoadError::Cancelled`].
    pub fn open_cancellable(
        nic: &Netdev,
        url: NbdUrl,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, LoadError> {
        let addresses = dial::resolve(nic, &url.host, url.port, cancel_check)?;
        let (stream, negotiated) = negotiate(nic, &url, &addresses, cancel_check)?;
        let found = Arc::new(Found {
            url,
            addresses,
            negotiated,
            first: FirstConnection(Mutex::new(Some((nic.clone(), stream)))),
        });
        Ok(Self { found })
    }

    /// Lists the exports of the server that `url` names.
    ///
    /// # Errors
    /// The server does not answer, or lists none.
    pub fn list(nic: &Netdev, url: &NbdUrl) -> Result<Vec<String>, LoadError> {
        let cancel_check = &mut dial::never_cancelled;
        let addresses = dial::resolve(nic, &url.host, url.port, cancel_check)?;
        let mut stream = dial::connect(nic, &addresses, cancel_check)?;
        Negotiation::begin(&mut stream, &url.host, cancel_check)?.list()
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        self.found.negotiated.size
    }

    /// Returns the size of a block: every range must start and end at a multiple of it, or end with all bytes.
    pub fn block_bytes(&self) -> u64 {
        self.found.negotiated.min_block.into()
    }

    /// Returns whether several connections see the same data, so that a loader may use them.
    pub fn takes_many_connections(&self) -> bool {
        self.has(CAN_MULTI_CONN)
    }

    /// Returns the URL.
    pub fn url(&self) -> &NbdUrl {
        &self.found.url
    }

    /// Returns the addresses of the server, in the order in which they are tried.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.found.addresses
    }

    /// Returns whether the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.has(READ_ONLY)
    }

    /// Returns whether all of these transmission flags are set.
    #[inline]
    pub fn has(&self, flags: u16) -> bool {
        self.found.negotiated.flags & flags == flags
    }

    /// Returns the size whose multiples the server serves fastest.
    pub fn preferred_bytes(&self) -> u64 {
        self.found.negotiated.preferred_block.into()
    }

    /// Returns the longest payload, a multiple of the block.
    #[inline]
    pub fn max_bytes(&self) -> u64 {
        let Negotiated {
            max_bytes,
            min_block,
            ..
        } = self.found.negotiated;
        // Both are positive, and the block is not longer.
        u64::from(max_bytes / min_block * min_block)
    }

    /// Makes a connection that takes requests; the second value tells whether its replies are structured.
    pub fn dial(
        &self,
        nic: &Netdev,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(Stream, bool), LoadError> {
        let Found {
            url,
            addresses,
            negotiated,
            first,
        } = &*self.found;
        if let Some(stream) = first.take(nic) {
            return Ok((stream, negotiated.is_structured));
        }
        let (stream, now) = negotiate(nic, url, addresses, cancel_check)?;
        let is_structured = now.is_structured;
        let comparable = Negotiated {
            is_structured: negotiated.is_structured,
            ..now
        };
        if comparable != *negotiated {
            let problem = match now.size == negotiated.size {
                true => "its rules are not those of before".to_owned(),
                false => format!("it had {} bytes and has {}", negotiated.size, now.size),
            };
            let url = url.to_string();
            return Err(LoadError::Changed { url, problem });
        }
        Ok((stream, is_structured))
    }
}

fn negotiate(
    nic: &Netdev,
    url: &NbdUrl,
    addresses: &[SocketAddr],
    cancel_check: &mut CancelCheck<'_>,
) -> Result<(Stream, Negotiated), LoadError> {
    if url.export.len() > MAX_NAME_BYTES {
        return Err(LoadError::NbdRefused {
            host: url.host.clone(),
            problem: "the name of an export has at most 4096 bytes".into(),
        });
    }
    let mut stream = dial::connect(nic, addresses, cancel_check)?;
    let negotiated =
        Negotiation::begin(&mut stream, &url.host, cancel_check)?.choose(&url.export)?;
    Ok((stream, negotiated))
}
