//! What carries the bytes of a connection: TCP alone, or TLS over it.

use std::io::{self, Write};

use devmem_tcp::{RecvError, RxBatch, Stream};

use crate::cause::Cause;
use crate::error::LoadError;
use crate::tls::{self, TlsStream};

/// Most bytes of one receive into host memory.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection to a server.
#[derive(Debug)]
pub enum Transport {
    /// Payload can be received where it belongs.
    Tcp(Box<Stream>),
    /// The CPU decrypts into host memory.
    Tls(Box<TlsStream>),
}

/// What a receive into host memory has brought.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Bytes,
    /// Nothing in the time limit of the stream.
    Nothing,
    /// The server has ended the connection.
    End,
    /// It broke, or ended without the announcement that TLS has for that.
    Broken(Cause),
}

impl Transport {
    /// Returns the TCP stream.
    #[inline]
    pub fn stream(&self) -> &Stream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(tls) => tls.stream(),
        }
    }

    /// Sends bytes of host memory.
    ///
    /// # Errors
    /// The connection broke, or there is no room for them within its time limit.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Tls(tls) => {
                tls.send(&mut bytes.to_vec()).map_err(io::Error::other)?;
                match tls.is_flushed() {
                    true => Ok(()),
                    false => Err(io::ErrorKind::TimedOut.into()),
                }
            }
        }
    }

    /// Receives once into host memory, behind the bytes of `text`. `batch` is used for it.
    ///
    /// # Errors
    /// No other connection would do better.
    pub(crate) fn receive(
        &mut self,
        batch: &mut RxBatch,
        text: &mut Vec<u8>,
    ) -> Result<ReadOutcome, LoadError> {
        match self {
            Self::Tcp(stream) => receive(stream, batch, text),
            Self::Tls(tls) => match tls.receive(&mut |bytes| {
                text.extend_from_slice(bytes);
                bytes.len()
            }) {
                Ok(tls::TlsRead::Bytes) => Ok(ReadOutcome::Bytes),
                Ok(tls::TlsRead::Nothing) => Ok(ReadOutcome::Nothing),
                Ok(tls::TlsRead::End) => Ok(ReadOutcome::End),
                Ok(tls::TlsRead::Cut) => Ok(ReadOutcome::Broken(CUT.into())),
                Err(LoadError::Broken { problem, .. }) => Ok(ReadOutcome::Broken(problem)),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns whether the server has neither ended the connection nor sent anything that was not asked for.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.stream().set_nonblocking(true);
        let is_idle = match self {
            Self::Tcp(stream) => matches!(stream.peek(&mut [0]), Err(RecvError::WouldBlock)),
            // Tickets for later sessions come after the handshake.
            Self::Tls(tls) => matches!(tls.receive(&mut |_| 0), Ok(tls::TlsRead::Nothing)),
        };
        self.stream().set_nonblocking(false);
        is_idle
    }
}

/// Why the end of a TLS connection is a fault.
pub const CUT: &str =
    "the connection ended without the end of TLS (close_notify): bytes may be missing";

fn receive(
    stream: &mut Stream,
    batch: &mut RxBatch,
    text: &mut Vec<u8>,
) -> Result<ReadOutcome, LoadError> {
    let received = match stream.recv_at_most(batch, RECEIVE_BYTES) {
        Ok(0) => return Ok(ReadOutcome::End),
        Ok(received) => received,
        Err(RecvError::TimedOut { .. } | RecvError::WouldBlock) => return Ok(ReadOutcome::Nothing),
        Err(RecvError::Failed(error)) => return Ok(ReadOutcome::Broken(Cause::of(&error))),
        Err(error) => return Err(error.into()),
    };
    let before = text.len();
    text.resize(before + received, 0);
    let copied = batch.copy_to(&mut text[before..]);
    copied.map_err(LoadError::Gather)?;
    Ok(ReadOutcome::Bytes)
}
