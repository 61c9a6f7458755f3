//! The side that listens.

use std::sync::Arc;
use std::time::Instant;

use crate::arrivals::Complete;
use crate::data::DataStream;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::inner::FabricInner;
use crate::record::Record;
use crate::ticket::Ticket;
use crate::wires::Wires;

/// Accepts endpoints. Dropping it refuses those that have not been returned, and closes their connections.
pub struct Listener {
    fabric: Arc<FabricInner>,
    cookie: u64,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Listener {
    pub(crate) fn new(fabric: Arc<FabricInner>, cookie: u64) -> Self {
        fabric.state.connections.arrivals().open(cookie);
        Self { fabric, cookie }
    }

    /// Returns what another process needs to connect. It may be used any number of times.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            cookie: self.cookie,
            control: self.fabric.state.control_address,
            data: self.fabric.state.data_address,
        }
    }

    /// Does what can be done without waiting. Returns the next endpoint, if one is ready.
    ///
    /// # Errors
    /// The listening sockets failed. A connection that is not of this protocol is closed, and is no error.
    pub fn poll(&self) -> Result<Option<Endpoint>, ConnectError> {
        let connections = &self.fabric.state.connections;
        connections.step_lingering();
        let mut arrivals = connections.arrivals();
        let now = Instant::now();
        arrivals.accept(now)?;
        let is_half_made = arrivals.tidy(now) > 0;
        let complete = arrivals.take_complete(self.cookie);
        drop(arrivals);
        if is_half_made {
            // The program may not poll again.
            connections.keep();
        }
        let Some(complete) = complete else {
            return Ok(None);
        };
        let Complete {
            mut control,
            hello,
            streams,
        } = complete;
        control.queue(Record::Ready);
        let data = (0..)
            .zip(streams)
            .map(|(index, stream)| DataStream::new(stream, index));
        let wires = Wires {
            control,
            data: data.collect(),
        };
        // Checked when the hello was read.
        let chunk = usize::try_from(hello.chunk).unwrap_or(usize::MAX);
        let endpoint = Endpoint::new(Arc::clone(&self.fabric), wires, chunk);
        endpoint.progress();
        Ok(Some(endpoint))
    }

    /// Returns how many connections to the fabric were closed because they were not of this protocol, named no listener, or did not
    /// become part of an endpoint in time.
    pub fn strangers(&self) -> u64 {
        self.fabric.state.connections.arrivals().strangers()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let connections = &self.fabric.state.connections;
        if !connections.is_forked() {
            connections.arrivals().close(self.cookie);
        }
    }
}
