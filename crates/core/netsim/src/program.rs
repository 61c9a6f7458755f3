//! Test programs: one sends a pattern, one receives and verifies it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Shutdown;

use devmem_uapi::{
    CmsgIter, DevmemCmsg, DmabufCmsg, DmabufId, DmabufToken, Errno, MsgFlags, space_for,
};
use netmem::Dmabuf;
use stack::SendMsg;

use crate::door::{Door, RecvResult, RecvRoom};
use crate::pair::Progress;
use crate::pattern::Pattern;

/// Program that sends `total` bytes of a pattern, then shuts the stream down.
pub struct Source<D: Door> {
    id: D::Socket,
    pattern: Pattern,
    sent: u64,
    total: u64,
    chunk: Vec<u8>,
    /// Bytes of `chunk` that the socket has not accepted yet.
    left: usize,
    finished: bool,
}

impl<D: Door> fmt::Debug for Source<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id, sent, total, ..
        } = self;
        write!(f, "Source({id}: {sent} sent of {total})")
    }
}

impl<D: Door> Source<D> {
    /// Returns a program that sends in pieces of `chunk` bytes.
    pub fn new(id: D::Socket, pattern: Pattern, total: u64, chunk: usize) -> Self {
        Self {
            id,
            pattern,
            sent: 0,
            total,
            chunk: vec![0; chunk.max(1)],
            left: 0,
            finished: false,
        }
    }

    /// Returns how many bytes the socket has accepted.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends as much as the socket accepts.
    ///
    /// # Panics
    /// If a send fails with an errno other than EAGAIN.
    pub fn run(&mut self, door: &mut D) -> Progress {
        let before = self.sent;
        while self.sent < self.total {
            if self.left == 0 {
                let rest = usize::try_from(self.total - self.sent).unwrap_or(usize::MAX);
                self.chunk.truncate(rest);
                self.left = self.chunk.len();
                self.pattern.fill(self.sent, &mut self.chunk);
            }
            let piece = &self.chunk[self.chunk.len() - self.left..];
            match door.sendmsg(self.id, &SendMsg::new(piece), MsgFlags::empty()) {
                Ok(taken) => {
                    self.sent += taken as u64;
                    self.left -= taken;
                }
                Err(Errno::EAGAIN) => break,
                Err(error) => panic!("sending byte {}: {error}", self.sent),
            }
        }
        if self.sent == self.total && !self.finished {
            door.shutdown(self.id, Shutdown::Write)
                .expect("it is connected");
            self.finished = true;
            return Progress::Worked;
        }
        match (self.finished, self.sent > before) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Worked,
            (false, false) => Progress::Waiting,
        }
    }
}

/// Tokens that a [`Sink`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// None: it gives them back after each receive.
    Nothing,
    /// This many of the newest.
    Tokens(usize),
    /// All.
    Everything,
}

/// Function that reads device memory: (offset, destination).
pub type DeviceReader = Box<dyn Fn(u64, &mut [u8])>;

/// Statistics of a [`Sink`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes in device memory.
    pub device_bytes: u64,
    /// Bytes of unreadable packets that landed in host memory.
    pub linear_bytes: u64,
    /// Bytes of readable packets.
    pub readable_bytes: u64,
    /// Frags in device memory.
    pub frags: u64,
    /// Tokens given back.
    pub freed: u64,
}

impl Report {
    /// Returns the sum of all bytes.
    pub const fn bytes(&self) -> u64 {
        self.device_bytes + self.linear_bytes + self.readable_bytes
    }
}

/// Program that receives a pattern into device or host memory and verifies every byte in place.
pub struct Sink<D: Door> {
    id: D::Socket,
    pattern: Pattern,
    memory: BTreeMap<DmabufId, DeviceReader>,
    report: Report,
    keep: Keep,
    tokens: Vec<DmabufToken>,
    host: Vec<u8>,
    control: Vec<u8>,
    at_end: bool,
    flags: MsgFlags,
}

impl<D: Door> fmt::Debug for Sink<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink")
            .field("id", &self.id)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl<D: Door> Sink<D> {
    /// Returns a program that receives with MSG_SOCK_DEVMEM, up to 256 KiB and 64 control messages at a
    /// time.
    pub fn new(id: D::Socket, pattern: Pattern) -> Self {
        Self {
            id,
            pattern,
            memory: BTreeMap::new(),
            report: Report::default(),
            keep: Keep::Nothing,
            tokens: Vec::new(),
            host: vec![0; 256 << 10],
            control: vec![0; space_for(64)],
            at_end: false,
            flags: MsgFlags::SOCK_DEVMEM,
        }
    }

    /// Makes the memory of binding `id` readable for verification.
    #[must_use]
    pub fn with_memory(self, id: DmabufId, dmabuf: &Dmabuf) -> Self {
        let dmabuf = dmabuf
            .get(0..dmabuf.size())
            .map(|_| dmabuf.clone())
            .expect("all of it");
        self.with_reader(
            id,
            Box::new(move |offset, out| {
                dmabuf
                    .copy_out(usize::try_from(offset).expect("an offset into memory"), out)
                    .expect("the frag lies inside");
            }),
        )
    }

    /// Makes the memory of binding `id` readable for verification, through `reader`.
    #[must_use]
    pub fn with_reader(mut self, id: DmabufId, reader: DeviceReader) -> Self {
        self.memory.insert(id, reader);
        self
    }

    /// Sets how many tokens it keeps.
    #[must_use]
    pub fn keeping(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the size of the iovec in bytes and that of the control buffer in messages.
    #[must_use]
    pub fn with_buffers(mut self, host: usize, messages: usize) -> Self {
        self.host = vec![0; host];
        self.control = vec![0; space_for(messages)];
        self
    }

    /// Sets the flags it receives with.
    #[must_use]
    pub fn with_flags(mut self, flags: MsgFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Returns the socket.
    pub fn id(&self) -> D::Socket {
        self.id
    }

    /// Returns the statistics so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Returns whether the end of the stream was received.
    pub fn at_end(&self) -> bool {
        self.at_end
    }

    /// Returns how many frags it holds.
    pub fn kept(&self) -> usize {
        self.tokens
            .iter()
            .map(|range| range.token_count as usize)
            .sum()
    }

    /// Receives all available bytes.
    ///
    /// # Panics
    /// If a byte is wrong, or a receive fails with an errno other than EAGAIN.
    pub fn run(&mut self, door: &mut D) -> Progress {
        let mut worked = false;
        while !self.at_end {
            match self.receive_once(door) {
                Ok(0) => self.at_end = true,
                Ok(_) => worked = true,
                Err(Errno::EAGAIN) => break,
                Err(error) => panic!("receiving byte {}: {error}", self.report.bytes()),
            }
        }
        match (self.at_end, worked) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Worked,
            (false, false) => Progress::Waiting,
        }
    }

    /// Receives once; returns the number of bytes.
    ///
    /// # Errors
    /// The errno of recvmsg.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub fn receive_once(&mut self, door: &mut D) -> Result<usize, Errno> {
        let room = RecvRoom {
            len: self.host.len(),
            host: &mut self.host,
            control: &mut self.control,
        };
        let outcome = door.recvmsg(self.id, room, self.flags)?;
        self.verify(&outcome);
        let keep = match self.keep {
            Keep::Nothing => 0,
            Keep::Tokens(count) => count,
            Keep::Everything => usize::MAX,
        };
        self.release(door, keep);
        Ok(outcome.bytes)
    }

    /// Verifies the bytes of one receive.
    fn verify(&mut self, outcome: &RecvResult) {
        let messages: Vec<_> = CmsgIter::new(&self.control[..outcome.control_bytes])
            .map(|cmsg| DevmemCmsg::parse(&cmsg))
            .collect();
        if messages.is_empty() {
            let bytes = &self.host[..outcome.host_bytes];
            assert_eq!(
                outcome.bytes, outcome.host_bytes,
                "bytes without a message lie in the iovec"
            );
            self.check(bytes.len(), |position, pattern| {
                pattern.check(position, bytes)
            });
            self.report.readable_bytes += outcome.bytes as u64;
            return;
        }
        let mut host_at = 0;
        for message in messages {
            match message.expect("a devmem message") {
                DevmemCmsg::Linear(len) => {
                    let bytes = &self.host[host_at..host_at + len as usize];
                    self.check(bytes.len(), |position, pattern| {
                        pattern.check(position, bytes)
                    });
                    host_at += len as usize;
                    self.report.linear_bytes += u64::from(len);
                }
                DevmemCmsg::Dmabuf(frag) => self.verify_frag(&frag),
            }
        }
        assert_eq!(host_at, outcome.host_bytes, "linear bytes are packed");
    }

    fn verify_frag(&mut self, frag: &DmabufCmsg) {
        let DmabufCmsg {
            frag_offset,
            frag_size,
            frag_token,
            dmabuf_id,
            flags,
        } = *frag;
        assert_eq!(flags, 0);
        let read = self
            .memory
            .get(&dmabuf_id)
            .unwrap_or_else(|| panic!("no such memory: {dmabuf_id}"));
        let mut bytes = vec![0; frag_size as usize];
        read(frag_offset, &mut bytes);
        self.check(bytes.len(), |position, pattern| {
            pattern.check(position, &bytes)
        });
        self.report.device_bytes += u64::from(frag_size);
        self.report.frags += 1;
        if !self
            .tokens
            .last_mut()
            .is_some_and(|range| range.try_extend(frag_token))
        {
            self.tokens.push(DmabufToken::one(frag_token));
        }
    }

    fn check(
        &self,
        len: usize,
        check: impl Fn(u64, Pattern) -> Result<(), crate::pattern::Mismatch>,
    ) {
        let position = self.report.bytes();
        if let Err(mismatch) = check(position, self.pattern) {
            panic!("{} of {len} bytes from {position} on: {mismatch}", self.id);
        }
    }

    /// Gives the oldest tokens back until `keep` are left.
    ///
    /// # Panics
    /// If the socket does not free an outstanding token.
    pub fn release(&mut self, door: &mut D, keep: usize) {
        while self.kept() > keep && !self.tokens.is_empty() {
            let excess = self.kept() - keep;
            let first = &mut self.tokens[0];
            let count = excess.min(first.token_count as usize).min(1024) as u32;
            let range = DmabufToken {
                token_start: first.token_start,
                token_count: count,
            };
            first.token_start.0 += count;
            first.token_count -= count;
            if first.token_count == 0 {
                self.tokens.remove(0);
            }
            let freed = door.dontneed(self.id, &[range]).expect("it is open");
            assert_eq!(freed, count, "every token was outstanding");
            self.report.freed += u64::from(freed);
        }
    }
}
