//! The socket of one client: receives messages with descriptors, sends replies. Never blocks.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use peer_socket::{PeerSocket, receive};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::bus::Bus;
use crate::closing::ClientFds;
use crate::device::Device;
use crate::message::{Body, Header, MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use crate::session::{Message, ProtocolViolation, Session, SessionStats, body_len};

/// Maximum number of messages processed in one call, so that a busy client does not starve the wire.
const BATCH_MESSAGES: usize = 128;

/// Reason why a client is gone.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The client closed its end between two messages.
    #[error("the client has left")]
    Left,
    /// The client closed its end in the middle of a message.
    #[error("the client has left in the middle of a message")]
    Truncated,
    /// The server disconnected the client.
    #[error("the client was disconnected: {0}")]
    ProtocolViolation(ProtocolViolation),
    /// The socket failed.
    #[error("the client's socket: {0}")]
    System(Errno),
}

impl From<ProtocolViolation> for Disconnect {
    fn from(violation: ProtocolViolation) -> Self {
        Self::ProtocolViolation(violation)
    }
}

impl From<Errno> for Disconnect {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    socket: PeerSocket,
    session: Session,
    /// The message being received.
    buffer: Box<[u8]>,
    filled: usize,
    /// Descriptors of that message.
    fds: ClientFds,
    too_many_fds: bool,
    /// Replies not yet sent. No message is read while it is not empty.
    out: Vec<u8>,
    sent: usize,
}

impl ClientConnection {
    /// Returns the connection of a client on a non-blocking stream socket.
    pub(crate) fn new(socket: PeerSocket) -> Self {
        Self {
            socket,
            session: Session::default(),
            buffer: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            filled: 0,
            fds: ClientFds::default(),
            too_many_fds: false,
            out: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// True while there are replies to send.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.sent < self.out.len()
    }

    pub(crate) fn stats(&self) -> SessionStats {
        self.session.stats()
    }

    /// Receives and answers messages until there are no more, the socket is full of replies, or the batch is complete.
    pub(crate) fn on_ready(
        &mut self,
        device: &mut impl Device,
        bus: &mut Bus,
    ) -> Result<(), Disconnect> {
        self.flush()?;
        for _ in 0..BATCH_MESSAGES {
            if self.wants_to_send() {
                return Ok(());
            }
            let Some(header) = self.fill()? else {
                return Ok(());
            };
            let body = self.buffer.get(Header::LEN..self.filled);
            let message = Message {
                header,
                body: body.unwrap_or_default(),
                fds: std::mem::take(&mut self.fds),
                too_many_fds: std::mem::take(&mut self.too_many_fds),
            };
            let done = self.session.on_message(device, bus, message, &mut self.out);
            self.filled = 0;
            // The error reply tells the client why it is disconnected.
            self.flush()?;
            done?;
        }
        Ok(())
    }

    /// Reads more of the message. Returns the header once the message is complete, `None` before.
    fn fill(&mut self) -> Result<Option<Header>, Disconnect> {
        loop {
            let header = Header::split(&self.buffer[..self.filled]).map(|(header, _)| header);
            let wanted = match header {
                None => Header::LEN,
                Some(header) => Header::LEN + body_len(header)?,
            };
            if let Some(header) = header
                && self.filled == wanted
            {
                return Ok(Some(header));
            }
            if !self.receive(wanted)? {
                return Ok(None);
            }
        }
    }

    /// Reads once, up to `wanted` bytes of the message; returns false if nothing is available.
    fn receive(&mut self, wanted: usize) -> Result<bool, Disconnect> {
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.filled..wanted])];
        let got = match receive(&self.socket, &mut parts) {
            Ok(got) => got,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(self.left()),
            Err(errno) => return Err(errno.into()),
        };
        self.too_many_fds |= got.lacks_fds;
        self.fds.extend(got.fds);
        if self.fds.len() > MAX_MESSAGE_FDS {
            self.too_many_fds = true;
            self.fds = ClientFds::default();
        }
        if got.bytes == 0 {
            return Err(self.left());
        }
        self.filled += got.bytes;
        Ok(true)
    }

    fn left(&self) -> Disconnect {
        match self.filled {
            0 => Disconnect::Left,
            _ => Disconnect::Truncated,
        }
    }

    /// Sends as much of the replies as the socket accepts.
    fn flush(&mut self) -> Result<(), Disconnect> {
        while self.wants_to_send() {
            let parts = [IoSlice::new(&self.out[self.sent..])];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(
                &self.socket,
                &parts,
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Disconnect::Left),
                Err(errno) => return Err(errno.into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}
