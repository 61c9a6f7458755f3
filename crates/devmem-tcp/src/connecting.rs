//! A connection attempt that does not wait.

use std::io;
use std::net::SocketAddr;

use crate::error::Error;
use crate::send_signal::SendSignal;
use crate::stream::Stream;

/// A connection attempt in progress, from [`Netdev::begin_connect`](crate::Netdev::begin_connect). Dropping it gives up.
///
/// ```
/// use devmem_tcp::{ConnectOptions, Netdev};
///
/// let (a, b) = Netdev::pair("seed=1".parse()?)?;
/// let listener = b.listen("10.77.0.2:5201")?;
/// let mut connecting = a.begin_connect("10.77.0.2:5201".parse()?, &ConnectOptions::new())?;
/// let stream = loop {
///     if let Some(stream) = connecting.try_finish()? {
///         break stream;
///     }
/// };
/// assert_eq!(listener.accept()?.1, stream.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Connecting {
    /// `None` once it was returned, or has failed.
    stream: Option<Stream>,
}

impl Connecting {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream: Some(stream),
        }
    }

    /// Returns the stream, unless it was returned or the attempt has failed.
    pub(crate) fn stream(&self) -> io::Result<&Stream> {
        let stream = self.stream.as_ref();
        Ok(stream.ok_or(io::ErrorKind::NotConnected)?)
    }

    /// Returns the stream once the connection is established; `None` while it is not, and after it was returned. Never waits.
    ///
    /// # Errors
    /// The peer refused, reset or did not answer. The attempt is over then.
    pub fn try_finish(&mut self) -> Result<Option<Stream>, Error> {
        let Some(stream) = &self.stream else {
            return Ok(None);
        };
        match stream.socket().connected() {
            None => Ok(None),
            Some(Ok(())) => Ok(self.stream.take()),
            Some(Err(error)) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    /// Returns an fd that tells when [`try_finish`](Self::try_finish) may have an outcome: see [`SendSignal`]. In virtual time
    /// only calls advance the clock: there, repeat `try_finish`.
    ///
    /// # Errors
    /// The stream was returned or the attempt has failed; the process has no free file descriptor, or is a fork of the one
    /// that opened the NIC.
    pub fn signal(&self) -> io::Result<SendSignal> {
        self.stream()?.send_signal()
    }

    /// Returns the local address, which the attempt has from its beginning.
    ///
    /// # Errors
    /// The stream was returned or the attempt has failed; the NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream()?.local_addr()
    }
}
