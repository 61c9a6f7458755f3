//! Connections of peers that are not complete yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use crate::broken::Broken;
use crate::carriers::Carriers;
use crate::control::Control;
use crate::data::DataStream;
use crate::near::NearMemory;
use crate::raw::process::can_read;
use crate::record::{Caller, Fault, Record, VERSION, Violation};
use crate::settings::MAX_CONNECTIONS;
use crate::wire::{Ready, Wire};
use crate::wires::Wires;

/// Time in which a connection must have said what it is, and all of a peer must be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that has not said what it is.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) control: Control,
    until: Instant,
}

/// What it said.
#[derive(Debug)]
pub(crate) enum Hello {
    /// A peer, which will make that many connections for payload.
    Peer {
        name: Arc<str>,
        streams: u16,
        /// The memory of its process, if it can be read.
        near: Option<NearMemory>,
    },
    /// A connection for payload of a session.
    Data { session: u64, stream: u16 },
}

impl Arrival {
    pub(crate) fn new(wire: Box<dyn Wire>, now: Instant) -> Self {
        Self {
            control: Control::new(wire),
            until: now + PATIENCE,
        }
    }

    /// Returns what the connection is, when it has said so.
    pub(crate) fn turn(&mut self, cookie: u64, now: Instant) -> Result<Option<Hello>, Broken> {
        let Some((record, behind)) = self.control.next()? else {
            return match now > self.until {
                true => Err(Broken::Ended),
                false => Ok(None),
            };
        };
        let Record::Hello {
            version,
            stream,
            streams,
            number,
            ..
        } = record
        else {
            return Err(Violation::Order.into());
        };
        let broken = |fault| Err(Broken::Fault(fault));
        if version != VERSION {
            return broken(Fault::Version);
        }
        if self.control.has_unread() {
            return Err(Violation::Order.into());
        }
        if stream > 0 {
            return Ok(Some(Hello::Data {
                session: number,
                stream,
            }));
        }
        if number != cookie {
            return broken(Fault::Stranger);
        }
        let streams = u16::try_from(streams)
            .ok()
            .filter(|streams| (1..=MAX_CONNECTIONS).contains(streams));
        let behind = self.control.behind(behind);
        let (caller, name) = Caller::read_from_prefix(behind).map_err(|_| Violation::Record)?;
        match (streams, std::str::from_utf8(name)) {
            (Some(streams), Ok(name)) => Ok(Some(Hello::Peer {
                name: name.into(),
                streams,
                near: self.near(&caller),
            })),
            _ => Err(Violation::Record.into()),
        }
    }

    /// Returns the memory of the peer's process. Which process that is says the kernel: a peer must not choose whose memory is read.
    fn near(&self, caller: &Caller) -> Option<NearMemory> {
        let process = self.control.wire.process()?;
        let is_readable = can_read(process, caller.token.get(), caller.cookie.get());
        is_readable.then(|| NearMemory::new(process))
    }

    /// Tells the peer why it is sent away.
    pub(crate) fn refuse(mut self, why: &Broken) {
        let fault = match why {
            Broken::Fault(fault) => Some(*fault),
            why => why.fault(),
        };
        if let Some(fault) = fault {
            self.control.queue(Record::Failed(fault));
            // A new connection takes 32 bytes; if not, the peer sees its end.
            let _ = self.control.flush();
        }
        self.control.wire.end();
    }
}

/// A peer whose connections for payload are coming.
#[derive(Debug)]
pub(crate) struct Gathering {
    pub(crate) peer: Arc<str>,
    pub(crate) session: u64,
    control: Control,
    data: Vec<Option<Box<dyn Wire>>>,
    until: Instant,
    near: Option<NearMemory>,
}

impl Gathering {
    /// `session` is a random number, by which the peer's other connections are recognised.
    pub(crate) fn new(
        peer: Arc<str>,
        session: u64,
        streams: u16,
        control: Control,
        near: Option<NearMemory>,
        now: Instant,
    ) -> Self {
        let data = (0..streams).map(|_| None).collect();
        let mut it = Self {
            peer,
            session,
            control,
            data,
            until: now + PATIENCE,
            near,
        };
        let is_near = it.near.is_some();
        it.control.queue(Record::Welcome { session, is_near });
        it
    }

    /// Returns whether the peer announced this connection, and has not made it before.
    pub(crate) fn lacks(&self, stream: u16) -> bool {
        let index = usize::from(stream).checked_sub(1);
        index
            .and_then(|index| self.data.get(index))
            .is_some_and(Option::is_none)
    }

    /// Adds a connection that is lacking.
    pub(crate) fn add(&mut self, stream: u16, wire: Box<dyn Wire>) {
        if let Some(place) = usize::from(stream)
            .checked_sub(1)
            .and_then(|index| self.data.get_mut(index))
        {
            *place = Some(wire);
        }
    }

    pub(crate) fn on_ready(&mut self, stream: usize, ready: Ready) {
        let wire = match stream.checked_sub(1) {
            None => Some(&mut self.control.wire),
            Some(index) => self.data.get_mut(index).and_then(Option::as_mut),
        };
        if let Some(wire) = wire {
            wire.on_ready(ready);
        }
    }

    /// Goes on. Returns whether all connections are there, and the peer was told.
    pub(crate) fn turn(&mut self, now: Instant) -> Result<bool, Broken> {
        self.control.flush()?;
        if self.data.iter().all(Option::is_some) {
            self.control.queue(Record::Ready);
            self.control.flush()?;
            return Ok(true);
        }
        match now > self.until {
            true => Err(Broken::Ended),
            false => Ok(false),
        }
    }

    pub(crate) fn into_wires(self) -> (Arc<str>, Wires) {
        let streams = self.data.into_iter().flatten().map(DataStream::new);
        let carriers = Carriers {
            streams: streams.collect(),
            near: self.near,
        };
        (self.peer, Wires::new(self.control, carriers))
    }
}
