//! A TLS connection over a stream: records are received into host memory and decrypted there, and their bytes given away one record after
//! the other.

use std::fmt;
use std::io::{Read, Write};
use std::ops::Range;

use devmem_tcp::Stream;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{
    AppDataRecord, ConnectionState, EncodeError, EncryptError, InsufficientSizeError, ReadTraffic,
    UnbufferedStatus,
};

use super::fault::{Phase, error_of};
use super::options::TlsClient;
use crate::cause::Cause;
use crate::error::LoadError;
use crate::retry::is_not_ready;

/// Room for received records: those of one receive, and the beginning of the next one. Each receive is a system call or a lock.
const RECEIVED_BYTES: usize = 256 << 10;
/// Longest record (RFC 8446 5.2): its header, 16 KiB, and what protects them.
const RECORD_BYTES: usize = 5 + (16 << 10) + 256;

/// Takes the first of the decrypted bytes that it is given, and returns how many.
pub(crate) type Take<'a> = dyn FnMut(&[u8]) -> usize + 'a;

/// What a receive has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRead {
    /// Decrypted bytes, which were given away.
    Bytes,
    /// Nothing that is complete, so far.
    Nothing,
    /// The end that the server has announced (close_notify).
    End,
    /// The end of the connection without such an announcement: somebody may have cut it.
    Cut,
}

/// A TLS connection over a stream.
pub struct TlsStream {
    stream: Stream,
    tls: UnbufferedClientConnection,
    /// Name of the server for messages.
    host: String,
    /// Received records.
    received: Vec<u8>,
    /// Those that are not decrypted.
    encrypted: Range<usize>,
    /// Decrypted bytes that nobody has taken so far.
    left: Vec<u8>,
    /// Bytes that wait for the end of the handshake.
    unsent: Vec<u8>,
    /// Records to send.
    outgoing: Vec<u8>,
    is_open: bool,
    is_closed: bool,
    /// The protocol has ended with a fault, and takes nothing any more.
    has_failed: bool,
}

impl TlsStream {
    /// Prepares the handshake with `host` over a stream.
    ///
    /// # Errors
    /// The certificates of the system cannot be read; the name is none that a certificate can have.
    pub(crate) fn new(stream: Stream, client: &TlsClient, host: &str) -> Result<Self, LoadError> {
        let bad_name = |_| LoadError::Tls {
            host: host.to_owned(),
            problem: "this is no name that a certificate can have".to_owned(),
            remedy: "write the server's name in DNS, or its address".into(),
        };
        // The dot at the end of an absolute name is none of the name (RFC 6066 3).
        let name = host.strip_suffix('.').unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(bad_name)?;
        let tls = UnbufferedClientConnection::new(client.config()?, name);
        Ok(Self {
            stream,
            tls: tls.map_err(|error| error_of(host, &error, Phase::Handshake(&[])))?,
            host: host.to_owned(),
            received: vec![0; RECEIVED_BYTES],
            encrypted: 0..0,
            left: Vec::new(),
            unsent: Vec::new(),
            outgoing: Vec::new(),
            is_open: false,
            is_closed: false,
            has_failed: false,
        })
    }

    /// Returns the stream that carries the records.
    #[inline]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the stream that carries the records, to wait for them.
    #[inline]
    pub(crate) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Goes on with the handshake. Returns whether it is complete.
    ///
    /// # Errors
    /// The server does not prove who it is, or does not speak TLS; the connection broke.
    pub(crate) fn poll_handshake(&mut self) -> Result<bool, LoadError> {
        loop {
            self.proceed(&mut nobody)?;
            self.flush()?;
            if self.is_open {
                return Ok(true);
            }
            match self.fill()? {
                Some(0) => {
                    let problem =
                        Cause::from("the server closed the connection in the handshake of TLS");
                    let remedy = "check that it speaks TLS on this port; its log may say more";
                    return Err(self.broken(problem.with_remedy(remedy)));
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Encrypts bytes, and sends as many as there is room for.
    ///
    /// # Errors
    /// The connection broke.
    #[inline]
    pub fn send(&mut self, bytes: &mut Vec<u8>) -> Result<(), LoadError> {
        if !bytes.is_empty() {
            self.unsent.append(bytes);
            self.proceed(&mut nobody)?;
        }
        self.flush()
    }

    /// Returns whether all records are sent.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Receives until decrypted bytes are there, and gives them to `take` where they lie; or until nothing comes. What it does not take is kept
    /// for the next call.
    ///
    /// # Errors
    /// The connection broke, or the records are wrong.
    #[inline]
    pub fn receive(&mut self, take: &mut Take<'_>) -> Result<TlsRead, LoadError> {
        if !self.left.is_empty() {
            let taken = take(&self.left);
            self.left.drain(..taken);
            return Ok(TlsRead::Bytes);
        }
        loop {
            if self.is_closed {
                return Ok(TlsRead::End);
            }
            let has_bytes = match self.fill()? {
                Some(0) => return Ok(TlsRead::Cut),
                Some(_) => self.proceed(take)?,
                None => return Ok(TlsRead::Nothing),
            };
            // The answer to a change of keys, for example.
            self.flush()?;
            if has_bytes {
                return Ok(TlsRead::Bytes);
            }
        }
    }

    /// Returns whether there are decrypted bytes that nobody has taken.
    #[inline]
    pub fn has_bytes_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Returns how many bytes were received and not given away; those of records that are not whole are not decrypted, and a few more than
    /// their payload.
    #[inline]
    pub fn held(&self) -> usize {
        self.left.len() + self.encrypted.len()
    }

    /// Announces the end of what this client sends (RFC 8446 6.1), if there is room for that.
    pub fn close(&mut self) {
        if self.has_failed {
            return;
        }
        let records = &mut self.received[self.encrypted.clone()];
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(records);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            let outgoing = &mut self.outgoing;
            let _ = append(
                outgoing,
                |out| traffic.queue_close_notify(out),
                needed_to_encrypt,
            );
        }
        // The server also notices the end of the connection.
        let _ = self.flush();
    }

    /// Lets the protocol take the received records and make those to be sent, until it needs more. Returns whether there were decrypted bytes
    /// among them.
    #[inline]
    fn proceed(&mut self, take: &mut Take<'_>) -> Result<bool, LoadError> {
        if self.has_failed {
            return Err(self.broken("TLS has failed before"));
        }
        let mut has_bytes = false;
        loop {
            let records = &mut self.received[self.encrypted.clone()];
            let UnbufferedStatus { mut discard, state } = self.tls.process_tls_records(records);
            let mut goes_on = true;
            let stepped = match state {
                Ok(ConnectionState::ReadTraffic(traffic)) => {
                    has_bytes = true;
                    give(traffic, &mut self.left, take).map(|further| discard += further)
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(&mut self.outgoing, |out| data.encode(out), needed_to_encode)
                }
                // They are sent in their order, before what is encrypted later.
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Ok(())
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.is_open = true;
                    goes_on = !self.unsent.is_empty();
                    let unsent = std::mem::take(&mut self.unsent);
                    match goes_on {
                        true => append(
                            &mut self.outgoing,
                            |out| traffic.encrypt(&unsent, out),
                            needed_to_encrypt,
                        ),
                        false => Ok(()),
                    }
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.is_closed = true;
                    Ok(())
                }
                Ok(ConnectionState::Closed) => {
                    self.is_closed = true;
                    goes_on = false;
                    Ok(())
                }
                // More records are needed.
                Ok(_) => {
                    goes_on = false;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            let seen = self.encrypted.clone();
            self.encrypted.start = seen.end.min(seen.start.saturating_add(discard));
            if let Err(error) = stepped {
                return Err(self.failed(&error, seen));
            }
            if !goes_on {
                return Ok(has_bytes);
            }
        }
    }

    /// Tells the server of a fault in the records `seen`, and returns the error of the load.
    fn failed(&mut self, error: &rustls::Error, seen: Range<usize>) -> LoadError {
        self.has_failed = true;
        if !matches!(error, rustls::Error::AlertReceived(_)) {
            // The alert is next. No record may be given to the protocol after it.
            let records = &mut self.received[self.encrypted.clone()];
            let UnbufferedStatus { state, .. } = self.tls.process_tls_records(records);
            if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
                let outgoing = &mut self.outgoing;
                let _ = append(outgoing, |out| data.encode(out), needed_to_encode);
            }
        }
        let _ = self.flush();
        let phase = match self.is_open {
            true => Phase::Open,
            false => Phase::Handshake(&self.received[seen]),
        };
        error_of(&self.host, error, phase)
    }

    /// Receives once behind the records that are there. Returns the number of bytes, 0 at the end; `None` if there are none yet.
    #[inline]
    fn fill(&mut self) -> Result<Option<usize>, LoadError> {
        if self.received.len() - self.encrypted.end < RECORD_BYTES {
            self.received.copy_within(self.encrypted.clone(), 0);
            self.encrypted = 0..self.encrypted.len();
        }
        let room = &mut self.received[self.encrypted.end..];
        if room.is_empty() {
            return Err(self.broken("the server sends a message of TLS without an end"));
        }
        match self.stream.read(room) {
            Ok(count) => {
                self.encrypted.end += count;
                Ok(Some(count))
            }
            Err(error) if is_not_ready(&error) => Ok(None),
            Err(error) => Err(self.broken(Cause::of_io(error))),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LoadError> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if is_not_ready(&error) => break,
                Err(error) => return Err(self.broken(Cause::of_io(error).during("send"))),
            }
        }
        Ok(())
    }

    fn broken(&self, problem: impl Into<Cause>) -> LoadError {
        LoadError::Broken {
            host: self.host.clone(),
            problem: problem.into(),
        }
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("stream", &self.stream)
            .field("host", &self.host)
            .field("is_open", &self.is_open)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

/// Takes nothing.
#[inline]
fn nobody(_: &[u8]) -> usize {
    0
}

/// Gives decrypted records to `take`, and keeps what it does not take in `left`. Returns how many further bytes are used up.
#[inline]
fn give<Data>(
    mut traffic: ReadTraffic<'_, '_, Data>,
    left: &mut Vec<u8>,
    take: &mut Take<'_>,
) -> Result<usize, rustls::Error> {
    let mut further = 0;
    while let Some(record) = traffic.next_record() {
        let AppDataRecord {
            discard, payload, ..
        } = record?;
        further += discard;
        let taken = match left.is_empty() {
            true => take(payload),
            // Those before come first.
            false => 0,
        };
        left.extend_from_slice(&payload[taken..]);
    }
    Ok(further)
}

/// Appends what `write` writes; `needed` returns how much room it needs.
#[inline]
fn append<E>(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    needed: impl Fn(&E) -> Option<usize>,
) -> Result<(), rustls::Error>
where
    E: fmt::Display,
{
    let before = out.len();
    let mut room = 0;
    loop {
        out.resize(before + room, 0);
        match write(&mut out[before..]) {
            Ok(written) => {
                out.truncate(before + written);
                return Ok(());
            }
            Err(error) => match needed(&error) {
                Some(more) if more > room => room = more,
                _ => {
                    out.truncate(before);
                    return Err(rustls::Error::General(error.to_string()));
                }
            },
        }
    }
}

#[inline]
fn needed_to_encode(error: &EncodeError) -> Option<usize> {
    match error {
        EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => {
            Some(*required_size)
        }
        EncodeError::AlreadyEncoded => None,
    }
}

#[inline]
fn needed_to_encrypt(error: &EncryptError) -> Option<usize> {
    match error {
        EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => {
            Some(*required_size)
        }
        EncryptError::EncryptExhausted => None,
    }
}
