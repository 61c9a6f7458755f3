//! A peer that speaks the protocol by hand, to break it.

use std::io::Write;

use devmem_exchange::{Endpoint, Fabric, Hello, Listener, Record, TICKET_BYTES};
use devmem_tcp::{Netdev, Stream};

/// The connections of a peer.
pub struct ByHand {
    pub control: Stream,
    pub data: Vec<Stream>,
}

/// Returns the cookie of a listener's ticket.
pub fn cookie(listener: &Listener) -> u64 {
    let ticket: [u8; TICKET_BYTES] = listener.ticket().to_bytes();
    u64::from_le_bytes(ticket[12..20].try_into().unwrap())
}

/// Returns the port for data connections of a listener's ticket.
pub fn data_port(listener: &Listener) -> u16 {
    let ticket: [u8; TICKET_BYTES] = listener.ticket().to_bytes();
    u16::from_le_bytes(ticket[54..56].try_into().unwrap())
}

/// Returns a hello for a listener, with chunks of 4096 bytes.
pub fn hello(listener: &Listener, streams: u16) -> Record {
    Record::Hello(Hello {
        cookie: cookie(listener),
        streams,
        chunk: 4096,
    })
}

impl ByHand {
    /// Connects from `nic` with `streams` data streams. Returns also the endpoint that the listener accepts.
    pub fn connect(
        nic: &Netdev,
        fabric: &Fabric,
        listener: &Listener,
        streams: u16,
    ) -> (Self, Endpoint) {
        let mut control = nic.connect(fabric.address()).unwrap();
        let to = (fabric.address().ip(), data_port(listener));
        let data: Vec<_> = (0..streams).map(|_| nic.connect(to).unwrap()).collect();
        let mut said = hello(listener, streams).encode().to_vec();
        for (stream, data) in (0..).zip(&data) {
            let local = data.local_addr().unwrap();
            said.extend(Record::Address { stream, local }.encode());
        }
        control.write_all(&said).unwrap();
        let endpoint = loop {
            if let Some(endpoint) = listener.poll().unwrap() {
                break endpoint;
            }
        };
        (Self { control, data }, endpoint)
    }

    /// Says a record, and the bytes that follow it.
    pub fn say(&mut self, record: Record, bytes: &[u8]) {
        let said = [&record.encode()[..], bytes].concat();
        self.control.write_all(&said).unwrap();
    }
}
