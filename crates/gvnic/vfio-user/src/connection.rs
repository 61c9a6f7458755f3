//! One client's socket: messages out of a stream of bytes and descriptors, replies into it. Never waits.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendFlags, recvmsg, sendmsg,
};

use crate::bus::Bus;
use crate::closing::{ClientFds, ClientSocket};
use crate::device::Device;
use crate::message::{Body, Header, MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS};
use crate::session::{Breach, Message, Session, SessionStats, body_len};

/// Messages taken in one go, so that a client that talks without pause leaves time for the device's other side.
const BATCH_MESSAGES: usize = 128;

/// Most descriptors that come with one piece of a message (linux include/net/scm.h). There is room for all of them: those that
/// the kernel closes for want of room it closes here and now.
const SCM_MAX_FD: usize = 253;

/// Why a client is not there any more.
#[derive(Debug, thiserror::Error)]
pub enum Gone {
    /// It closed its end between two messages.
    #[error("the client has left")]
    Left,
    /// It closed its end in the middle of a message.
    #[error("the client has left in the middle of a message")]
    Truncated,
    /// It was put out.
    #[error("the client was put out: {0}")]
    Breach(#[from] Breach),
    /// The socket failed.
    #[error("the client's socket: {0}")]
    System(#[from] Errno),
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: ClientSocket<OwnedFd>,
    session: Session,
    /// The message that is coming in.
    buffer: Box<[u8]>,
    filled: usize,
    /// Descriptors that came with it.
    fds: ClientFds,
    too_many_fds: bool,
    /// What the client has yet to take. Nothing more is read from it while there is something.
    out: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// A client on a non-blocking stream socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: ClientSocket::new(socket),
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
        self.socket.get().as_fd()
    }

    /// True while the client has replies to take.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.sent < self.out.len()
    }

    pub(crate) fn stats(&self) -> SessionStats {
        self.session.stats()
    }

    /// Takes and answers messages until there is none, the client does not take its answers, or the batch is over.
    pub(crate) fn on_ready(&mut self, device: &mut impl Device, bus: &mut Bus) -> Result<(), Gone> {
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
            // A client that is put out shall know why, if it listens.
            self.flush()?;
            done?;
        }
        Ok(())
    }

    /// Reads on. Returns the header when the message is complete, `None` if its rest is not there yet.
    fn fill(&mut self) -> Result<Option<Header>, Gone> {
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

    /// Reads once, to at most `wanted` bytes of the message; false if nothing is there.
    fn receive(&mut self, wanted: usize) -> Result<bool, Gone> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.filled..wanted])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(self.socket.get(), &mut parts, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET) => return Err(self.left()),
            Err(errno) => return Err(errno.into()),
        };
        // What did not fit our table of descriptors the kernel has closed.
        self.too_many_fds |= got.flags.contains(ReturnFlags::CTRUNC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
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

    fn left(&self) -> Gone {
        match self.filled {
            0 => Gone::Left,
            _ => Gone::Truncated,
        }
    }

    /// Sends what the client takes.
    fn flush(&mut self) -> Result<(), Gone> {
        while self.wants_to_send() {
            let parts = [IoSlice::new(&self.out[self.sent..])];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(
                self.socket.get(),
                &parts,
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Gone::Left),
                Err(errno) => return Err(errno.into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}
