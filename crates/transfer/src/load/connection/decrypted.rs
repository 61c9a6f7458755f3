//! A wire with TLS: the CPU decrypts in host memory, and one copy takes payload to its place.

use devmem_tcp::Stream;

use super::host_bytes::give;
use super::{Counts, Wire};
use crate::load::error::LoadError;
use crate::load::landing::Landing;
use crate::load::session::{Fault, Next, Session};
use crate::load::tls::{TlsRead, TlsStream};
use crate::load::transport::{CUT, Transport};

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
        self.tls.send(bytes).map_err(fault)
    }

    fn receive(
        &mut self,
        next: Next,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<Option<usize>, Fault> {
        match self.tls.receive().map_err(fault)? {
            TlsRead::Bytes => {}
            TlsRead::Nothing => return Ok(None),
            TlsRead::End => return Err(session.on_end()),
            TlsRead::Cut => return Err(cut(session.on_end())),
        }
        let taken = give(next, self.tls.plain(), session, landing)?;
        self.tls.take(taken);
        if matches!(next, Next::Payload { .. }) {
            self.placed += taken as u64;
        }
        Ok(Some(taken))
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
        let is_clean = self.tls.plain().is_empty();
        is_clean.then_some(Transport::Tls(self.tls))
    }
}

fn fault(error: LoadError) -> Fault {
    match error {
        LoadError::Broken { problem, .. } => Fault::Broken(problem),
        error => Fault::Fatal(error),
    }
}

/// Returns the fault of a connection that was cut. Between two responses many servers end it so, which does no harm.
fn cut(end: Fault) -> Fault {
    match end {
        Fault::Closed => Fault::Closed,
        _ => Fault::Broken(CUT.to_owned()),
    }
}
