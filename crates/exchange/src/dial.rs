//! The side that connects: one control stream and the data streams, without waiting.

use std::sync::Arc;

use devmem_tcp::{ConnectOptions, Connecting, Stream};

use crate::control::Control;
use crate::data::DataStream;
use crate::endpoint::Endpoint;
use crate::error::{Cause, ConnectError, StreamName, Violation};
use crate::inner::FabricInner;
use crate::keep_alive;
use crate::record::{Hello, Record};
use crate::ticket::Ticket;
use crate::wires::Wires;

/// A connection attempt. Dropping it gives up.
pub struct Dial {
    fabric: Arc<FabricInner>,
    cookie: u64,
    control: ControlState,
    data: Vec<DataState>,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

enum ControlState {
    Connecting(Connecting),
    /// The hello is queued. `is_ready`: the answer has come.
    Open {
        control: Control,
        is_ready: bool,
    },
    /// Handed out, or failed.
    Taken,
}

enum DataState {
    Connecting(Connecting),
    Open(Stream),
}

impl Dial {
    pub(crate) fn begin(fabric: Arc<FabricInner>, ticket: &Ticket) -> Result<Self, ConnectError> {
        let begin = |stream, address| {
            let begun = fabric
                .state
                .nic
                .begin_connect(address, &ConnectOptions::new());
            begun.map_err(|error| ConnectError::Connect { stream, error })
        };
        let control = ControlState::Connecting(begin(StreamName::Control, ticket.control)?);
        let data = (0..fabric.state.options.streams)
            .map(|index| begin(StreamName::Data(index), ticket.data).map(DataState::Connecting))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            cookie: ticket.cookie,
            control,
            data,
            fabric,
        })
    }

    /// Does what can be done without waiting. Returns the endpoint when it is ready, once.
    ///
    /// # Errors
    /// A connection failed, or the listener refused. The attempt is over then.
    pub fn poll(&mut self) -> Result<Option<Endpoint>, ConnectError> {
        self.fabric.state.connections.step_lingering();
        for (index, data) in (0..).zip(&mut self.data) {
            data.poll(StreamName::Data(index))?;
        }
        self.poll_control()?;
        let all_open = self
            .data
            .iter()
            .all(|data| matches!(data, DataState::Open(_)));
        let ControlState::Open { is_ready: true, .. } = &self.control else {
            return Ok(None);
        };
        if !all_open {
            return Ok(None);
        }
        let ControlState::Open { control, .. } =
            std::mem::replace(&mut self.control, ControlState::Taken)
        else {
            return Ok(None);
        };
        let open = self.data.drain(..).filter_map(|data| match data {
            DataState::Open(stream) => Some(stream),
            DataState::Connecting(_) => None,
        });
        let data = (0..)
            .zip(open)
            .map(|(index, stream)| DataStream::new(stream, index));
        let wires = Wires {
            control,
            data: data.collect(),
        };
        let chunk = self.fabric.state.options.chunk;
        Ok(Some(Endpoint::new(Arc::clone(&self.fabric), wires, chunk)))
    }

    fn poll_control(&mut self) -> Result<(), ConnectError> {
        if let ControlState::Connecting(connecting) = &mut self.control {
            let failed = |error| ConnectError::Connect {
                stream: StreamName::Control,
                error,
            };
            let Some(stream) = connecting.try_finish().map_err(failed)? else {
                return Ok(());
            };
            keep_alive(&stream);
            let mut control = Control::new(stream);
            self.say_hello(&mut control)?;
            self.control = ControlState::Open {
                control,
                is_ready: false,
            };
        }
        let ControlState::Open { control, is_ready } = &mut self.control else {
            return Ok(());
        };
        control.flush().map_err(ConnectError::Refused)?;
        if *is_ready {
            return Ok(());
        }
        match control.next().map_err(ConnectError::Refused)? {
            Some(Record::Ready) => *is_ready = true,
            Some(Record::Failed(failure)) => {
                return Err(ConnectError::Refused(Cause::of_failure(failure)));
            }
            Some(_) => return Err(ConnectError::Refused(Violation::Order.into())),
            None if control.has_ended() => return Err(ConnectError::Refused(Cause::PeerClosed)),
            None => {}
        }
        Ok(())
    }

    /// Queues the hello and the local addresses of the data streams, by which the other side recognises them: their first
    /// bytes would land in memory that the CPU may be unable to read.
    fn say_hello(&self, control: &mut Control) -> Result<(), ConnectError> {
        let options = &self.fabric.state.options;
        control.queue(Record::Hello(Hello {
            cookie: self.cookie,
            streams: options.streams,
            chunk: options.chunk as u64,
        }));
        for (index, data) in (0..).zip(&self.data) {
            let local = match data {
                DataState::Connecting(connecting) => connecting.local_addr(),
                DataState::Open(stream) => stream.local_addr(),
            };
            let failed =
                |error| ConnectError::Refused(Cause::of_stream(StreamName::Data(index), error));
            control.queue(Record::Address {
                stream: index,
                local: local.map_err(failed)?,
            });
        }
        Ok(())
    }
}

impl DataState {
    fn poll(&mut self, stream: StreamName) -> Result<(), ConnectError> {
        if let Self::Connecting(connecting) = self {
            let finished = connecting.try_finish();
            let finished = finished.map_err(|error| ConnectError::Connect { stream, error })?;
            if let Some(stream) = finished {
                keep_alive(&stream);
                *self = Self::Open(stream);
            }
        }
        Ok(())
    }
}
