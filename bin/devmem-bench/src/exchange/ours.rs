//! Messages by devmem-exchange.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use devmem_tcp::{Dmabuf, Netdev};
use exchange::{
    Access, Buffer, Closing, Endpoint, Event, Fabric, Memory, Options, Part, Pool, Region,
    TICKET_BYTES, Ticket,
};

use super::messages::{BUFFERS, Mark, Messages};

/// Bytes of device memory in which payload arrives before it is copied to the buffers.
const POOL_BYTES: usize = 64 << 20;
/// Length of device memory is a multiple of this.
const HUGE_PAGE: usize = 2 << 20;
/// Time limit for connecting, and for an event.
const LIMIT: Duration = Duration::from_secs(20);

/// Where the buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Host,
    /// Sent without a copy. The passive side receives into device memory, too.
    Device,
    /// The same in memory files that the other process may map.
    File,
}

impl Place {
    /// Allocates device memory.
    fn allocate(self, bytes: usize) -> Result<Dmabuf> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        Ok(match self {
            Self::Host | Self::Device => Dmabuf::anonymous(bytes)?,
            Self::File => Dmabuf::shared_memfd(bytes)?,
        })
    }
}

/// Buffers of one direction.
enum Bytes {
    Host(Arc<Buffer>),
    Device(Dmabuf),
}

impl Bytes {
    fn register(fabric: &Fabric, place: Place, bytes: usize) -> Result<(Self, Region)> {
        Ok(match place {
            Place::Host => {
                let buffer = Buffer::new(vec![0; bytes]);
                let region = fabric.register(Memory::Host(buffer.clone()), Access::PRIVATE)?;
                (Self::Host(buffer), region)
            }
            Place::Device | Place::File => {
                let memory = place.allocate(bytes)?;
                let region = fabric.register(Memory::Device(&memory), Access::PRIVATE)?;
                (Self::Device(memory), region)
            }
        })
    }

    fn set_mark(&self, at: usize, mark: Mark) -> Result<()> {
        match self {
            Self::Host(buffer) => buffer.with(|bytes| bytes[at] = mark.to_byte()),
            Self::Device(memory) => memory.copy_in(at, &[mark.to_byte()])?,
        }
        Ok(())
    }

    fn mark(&self, at: usize) -> Result<Mark> {
        let mut byte = [0];
        match self {
            Self::Host(buffer) => buffer.with(|bytes| byte[0] = bytes[at]),
            Self::Device(memory) => memory.copy_out(at, &mut byte)?,
        }
        Ok(Mark::of(byte[0]))
    }
}

/// An endpoint with buffers for each direction.
pub struct Ours {
    endpoint: Endpoint,
    bytes: usize,
    outgoing: (Bytes, Region),
    incoming: (Bytes, Region),
    /// Messages posted so far, and those of them that are done.
    posted: u64,
    sent: u64,
    /// Messages that have arrived with all before them, and those of them that were taken.
    arrived: u64,
    taken: u64,
    /// By buffer, messages that have arrived before one that was sent earlier.
    early: [bool; BUFFERS],
    _fabric: Fabric,
}

impl Ours {
    /// Listens, and prints the ticket.
    pub fn accept(nic: Netdev, bytes: usize, place: Place) -> Result<Self> {
        let pool = match place {
            Place::Host => None,
            Place::Device | Place::File => Some(Pool {
                memory: place.allocate(POOL_BYTES)?,
                queues: 1,
            }),
        };
        let options = Options {
            pool,
            ..Options::default()
        };
        let fabric = Fabric::open(nic, options)?;
        let listener = fabric.listen()?;
        let ticket = listener.ticket().to_bytes();
        tool::output::print_line(serde_json::to_string(&ticket.to_vec())?)?;
        let endpoint = until_some(|| Ok(listener.poll()?))?;
        Self::new(fabric, endpoint, bytes, place)
    }

    /// Connects by the ticket in `contact`.
    pub fn connect(nic: Netdev, contact: &str, bytes: usize, place: Place) -> Result<Self> {
        let fabric = Fabric::open(nic, Options::default())?;
        let ticket: Vec<u8> = serde_json::from_str(contact).context("parse the ticket")?;
        let ticket: [u8; TICKET_BYTES] = ticket.as_slice().try_into().context("its length")?;
        let mut dial = fabric.dial(&Ticket::from_bytes(&ticket)?)?;
        let endpoint = until_some(|| Ok(dial.poll()?))?;
        Self::new(fabric, endpoint, bytes, place)
    }

    fn new(fabric: Fabric, endpoint: Endpoint, bytes: usize, place: Place) -> Result<Self> {
        let register = || Bytes::register(&fabric, place, BUFFERS * bytes);
        let mut ours = Self {
            bytes,
            outgoing: register()?,
            incoming: register()?,
            endpoint,
            posted: 0,
            sent: 0,
            arrived: 0,
            taken: 0,
            early: [false; BUFFERS],
            _fabric: fabric,
        };
        for number in 0..BUFFERS as u64 {
            ours.post_receive(number)?;
        }
        Ok(ours)
    }

    /// Returns the bytes of the message `number` in a buffer.
    fn slot(&self, number: u64) -> std::ops::Range<usize> {
        let start = buffer_of(number) * self.bytes;
        start..start + self.bytes
    }

    fn post_receive(&mut self, number: u64) -> Result<()> {
        let part = Part {
            region: &self.incoming.1,
            range: self.slot(number),
            tag: 0,
        };
        Ok(self.endpoint.receive(&[part], number)?)
    }

    /// Handles the next event. Messages are chunks on several streams, so one may arrive before an earlier one.
    fn wait(&mut self) -> Result<()> {
        match self.endpoint.wait_event(LIMIT) {
            Some(Event::Sent { .. }) => self.sent += 1,
            Some(Event::Received { user, .. }) => {
                self.early[buffer_of(user)] = true;
                while std::mem::take(&mut self.early[buffer_of(self.arrived)]) {
                    self.arrived += 1;
                }
            }
            Some(event) => match self.endpoint.cause() {
                Some(cause) => return Err(anyhow::Error::new(cause)),
                None => bail!("unexpected {event:?}"),
            },
            None => bail!("nothing moved for {LIMIT:?}"),
        }
        Ok(())
    }
}

impl Messages for Ours {
    fn send(&mut self, mark: Mark) -> Result<()> {
        while self.posted - self.sent >= BUFFERS as u64 {
            self.wait()?;
        }
        let slot = self.slot(self.posted);
        self.outgoing.0.set_mark(slot.start, mark)?;
        self.endpoint.send(&self.outgoing.1, slot, 0, self.posted)?;
        self.posted += 1;
        Ok(())
    }

    fn receive(&mut self) -> Result<Mark> {
        while self.arrived == self.taken {
            self.wait()?;
        }
        let slot = self.slot(self.taken);
        let mark = self.incoming.0.mark(slot.start)?;
        self.post_receive(self.taken + BUFFERS as u64)?;
        self.taken += 1;
        Ok(mark)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        while self.sent < self.posted {
            self.wait()?;
        }
        // Receives are still posted, so that dropping the endpoint would reset the connections.
        self.endpoint.close(Closing::Linger);
        Ok(())
    }
}

/// Returns the buffer of the message `number`.
fn buffer_of(number: u64) -> usize {
    (number % BUFFERS as u64) as usize
}

/// Calls `poll` until it returns something.
fn until_some<T>(mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(done) = poll()? {
            return Ok(done);
        }
        if start.elapsed() > LIMIT {
            bail!("the ranks did not connect within {LIMIT:?}");
        }
        std::thread::yield_now();
    }
}
