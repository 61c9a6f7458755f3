//! A wire with TLS: the CPU decrypts in host memory, and payload is copied to its place from the record that it came in.

use client::tls::{TlsRead, TlsStream};
use client::{CUT, LoadError, Transport};
use devmem_tcp::Stream;

use super::host_bytes::give;
use super::wire::{Counts, Received, Wire};
use crate::load::landing::Landing;
use crate::load::session::{Fault, Session};

/// A TLS connection.
#[derive(Debug)]
pub(super) struct Decrypted {
    tls: Box<TlsStream>,
    /// Payload bytes that were copied to their place.
    placed: u64,
}

impl Decrypted {
    pub(super) fn new(tls: Box<TlsStream>) -> Self {
        Self { tls, placed: 0 }
    }
}

impl Wire for Decrypted {
    fn stream(&self) -> &Stream {
        self.tls.stream()
    }

    fn send(&mut self, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        self.tls.send(bytes).map_err(broken_or_fatal)
    }

    fn receive(
        &mut self,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<Option<Received>, Fault> {
        let mut delivery = Delivery {
            session,
            landing,
            received: Received::default(),
            fault: None,
        };
        let came = self.tls.receive(&mut |bytes| delivery.give(bytes));
        let Delivery {
            session,
            received,
            fault,
            ..
        } = delivery;
        self.placed += received.payload;
        if let Some(fault) = fault {
            return Err(fault);
        }
        match came.map_err(broken_or_fatal)? {
            TlsRead::Bytes => Ok(Some(received)),
            TlsRead::Nothing => Ok(None),
            TlsRead::End => Err(session.on_end()),
            TlsRead::Cut => Err(cut(session.on_end())),
        }
    }

    fn held(&self) -> usize {
        self.tls.held()
    }

    /// The NIC receives encrypted bytes, which have no place.
    fn place_next(&mut self, _: &dyn Session, _: &Landing<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn counts(&self) -> Counts {
        Counts {
            decrypted: self.placed,
            ..Counts::default()
        }
    }

    fn say_end(&mut self) {
        self.tls.close();
    }

    fn into_transport(self: Box<Self>) -> Option<Transport> {
        let is_clean = !self.tls.has_bytes_left();
        is_clean.then_some(Transport::Tls(self.tls))
    }
}

/// Gives decrypted bytes to the session, and to the places of its payload.
struct Delivery<'a, 'b> {
    session: &'a mut dyn Session,
    landing: &'a mut Landing<'b>,
    received: Received,
    /// Why nothing is taken any more.
    fault: Option<Fault>,
}

impl Delivery<'_, '_> {
    /// Returns how many of `bytes` were taken: all that belong to the requests in flight.
    fn give(&mut self, bytes: &[u8]) -> usize {
        let mut left = bytes;
        while !left.is_empty() && self.fault.is_none() {
            let next = self.session.next();
            match give(next, left, self.session, self.landing) {
                Ok(0) => break,
                Ok(count) => {
                    self.received.count(next, count as u64);
                    left = &left[count..];
                }
                Err(fault) => self.fault = Some(fault),
            }
        }
        bytes.len() - left.len()
    }
}

fn broken_or_fatal(error: LoadError) -> Fault {
    match error {
        LoadError::Broken { problem, .. } => Fault::Broken(problem),
        error => Fault::Fatal(error),
    }
}

/// Returns the fault of a connection that was cut. Between two responses many servers end it so, which does no harm.
fn cut(end: Fault) -> Fault {
    match end {
        Fault::Closed => Fault::Closed,
        _ => Fault::Broken(CUT.into()),
    }
}
