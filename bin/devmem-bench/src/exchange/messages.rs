//! Messages of one length between two ranks, and the buffers that they use.

use anyhow::Result;

/// The first byte of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    More,
    /// The active rank sends no further message.
    Last,
}

impl Mark {
    /// Returns the byte.
    pub fn to_byte(self) -> u8 {
        u8::from(self == Self::Last)
    }

    /// Returns the mark of a received byte.
    pub fn of(byte: u8) -> Self {
        match byte {
            0 => Self::More,
            _ => Self::Last,
        }
    }
}

/// Buffers of a rank in each direction, which messages use in turn, in all rows: so all rows read and write the same amount
/// of memory. The exchange posts as many messages at a time, as NCCL does with the steps of its buffer.
pub const BUFFERS: usize = 4;

/// Memory of one direction.
#[derive(Debug)]
pub struct InTurn {
    bytes: Vec<u8>,
    message: usize,
    next: usize,
}

impl InTurn {
    /// Returns [`BUFFERS`] buffers for messages of `message` bytes, of which there is at least one.
    pub fn new(message: usize) -> Self {
        Self {
            bytes: vec![0; BUFFERS * message],
            message,
            next: 0,
        }
    }

    /// Returns the next buffer.
    pub fn next(&mut self) -> &mut [u8] {
        let start = self.next * self.message;
        self.next = (self.next + 1) % BUFFERS;
        &mut self.bytes[start..start + self.message]
    }
}

/// A connection for messages of one length, in both directions.
pub trait Messages {
    /// Sends a message. It may still be on its way when this returns.
    fn send(&mut self, mark: Mark) -> Result<()>;

    /// Waits for the next message.
    fn receive(&mut self) -> Result<Mark>;

    /// Closes the connection; what was sent still arrives.
    fn finish(self: Box<Self>) -> Result<()>;
}
