//! A program that sends from device memory and overwrites every byte as soon as its send is complete.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::ops::Range;

use devmem_uapi::{CmsgWriter, DmabufId, Errno, MsgFlags, ZerocopyId, ZerocopyRange, cmsg_space};
use netmem::{CopyError, Dmabuf};
use stack::{SendMsg, SocketOption};

use crate::door::Door;
use crate::pair::Progress;
use crate::pattern::Pattern;

/// Byte that overwrites memory of complete sends.
const SCRIBBLE: u8 = 0xa5;

/// Function with which a [`DeviceSource`] writes device memory: (offset, bytes).
pub type DeviceWriter = Box<dyn Fn(usize, &[u8])>;

/// Program that sends a pattern from a ring in device memory; chunks wrap around at the end of the ring. It overwrites
/// every chunk as soon as the send completes, so that a completion that comes too early shows as a wrong byte at the
/// receiver.
pub struct DeviceSource<D: Door> {
    id: D::Socket,
    dmabuf: DmabufId,
    pattern: Pattern,
    write: DeviceWriter,
    ring: usize,
    chunk: usize,
    total: u64,
    /// Total bytes written to the ring; of those, taken by the socket; of those, complete.
    written: u64,
    sent: u64,
    freed: u64,
    /// End in the stream of each incomplete send, with its id.
    under_way: VecDeque<(ZerocopyId, u64)>,
    next: ZerocopyId,
    control: Vec<u8>,
    completions: u64,
    shutdown: bool,
}

impl<D: Door> std::fmt::Debug for DeviceSource<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            id,
            sent,
            freed,
            total,
            ..
        } = self;
        write!(
            f,
            "DeviceSource({id}: {sent} sent and {freed} complete of {total})"
        )
    }
}

impl<D: Door> DeviceSource<D> {
    /// Returns a program that sends `total` bytes from `memory`, bound as `dmabuf`, in sends of
    /// 64 KiB.
    ///
    /// # Panics
    /// If the socket is not open.
    pub fn new(
        door: &mut D,
        id: D::Socket,
        dmabuf: DmabufId,
        memory: &Dmabuf,
        pattern: Pattern,
        total: u64,
    ) -> Self {
        let size = memory.size();
        let memory = memory.clone();
        let write = move |offset: usize, bytes: &[u8]| {
            let written: Result<(), CopyError> = memory.copy_in(offset, bytes);
            written.expect("the ring lies inside");
        };
        Self::with_writer(door, id, dmabuf, size, Box::new(write), pattern, total)
    }

    /// Returns a program as [`DeviceSource::new`] does, which writes device memory with `write`.
    ///
    /// # Panics
    /// If the socket is not open.
    pub fn with_writer(
        door: &mut D,
        id: D::Socket,
        dmabuf: DmabufId,
        ring: usize,
        write: DeviceWriter,
        pattern: Pattern,
        total: u64,
    ) -> Self {
        door.set_option(id, SocketOption::Zerocopy(true))
            .expect("it is open");
        let mut control = vec![0; cmsg_space(size_of::<u32>())];
        CmsgWriter::new(&mut control)
            .push_tx_dmabuf(dmabuf)
            .expect("there is room");
        Self {
            id,
            dmabuf,
            pattern,
            write,
            ring,
            chunk: 64 << 10,
            total,
            written: 0,
            sent: 0,
            freed: 0,
            under_way: VecDeque::new(),
            next: ZerocopyId(0),
            control,
            completions: 0,
            shutdown: true,
        }
    }

    /// Sets the bytes of each send.
    #[must_use]
    pub fn in_chunks_of(mut self, chunk: usize) -> Self {
        self.chunk = chunk.clamp(1, self.ring);
        self
    }

    /// Does not shut the stream down at its end.
    #[must_use]
    pub fn without_shutdown(mut self) -> Self {
        self.shutdown = false;
        self
    }

    /// Returns the socket.
    pub fn id(&self) -> D::Socket {
        self.id
    }

    /// Returns the id of the send binding.
    pub fn dmabuf(&self) -> DmabufId {
        self.dmabuf
    }

    /// Returns how many bytes the socket has accepted.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns how many bytes are complete.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns how many entries it has read from the error queue, and how many sends they cover.
    pub fn completions(&self) -> (u64, u32) {
        (self.completions, self.next.0)
    }

    /// Sends as much as ring and socket have room for, and reads the error queue; done when all bytes are complete.
    ///
    /// # Panics
    /// If a send fails with an errno other than EAGAIN, or completions are not in order.
    pub fn run(&mut self, door: &mut D) -> Progress {
        let before = (self.sent, self.freed);
        self.collect(door);
        while self.sent < self.total {
            self.fill();
            match self.send_once(door) {
                Ok(0) | Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Ok(_) => {}
                Err(error) => panic!("sending byte {}: {error}", self.sent),
            }
        }
        if self.sent == self.total && self.shutdown {
            door.shutdown(self.id, Shutdown::Write)
                .expect("it is connected");
            self.shutdown = false;
        }
        if self.freed == self.total {
            return Progress::Done;
        }
        if before == (self.sent, self.freed) {
            Progress::Waiting
        } else {
            Progress::Worked
        }
    }

    /// Writes the pattern to the free part of the ring.
    fn fill(&mut self) {
        let end = self
            .total
            .min(self.freed + self.ring as u64)
            .min(self.sent + self.chunk as u64);
        while self.written < end {
            let at = self.at(self.written);
            let len = (self.ring - at).min((end - self.written) as usize);
            let mut bytes = vec![0; len];
            self.pattern.fill(self.written, &mut bytes);
            (self.write)(at, &bytes);
            self.written += len as u64;
        }
    }

    /// Sends the next chunk; returns how many bytes the socket accepted.
    ///
    /// # Errors
    /// The errno of sendmsg.
    pub fn send_once(&mut self, door: &mut D) -> Result<usize, Errno> {
        self.fill();
        let len = (self.written - self.sent).min(self.chunk as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let ranges = self.ranges(self.sent, len);
        let taken = door.sendmsg(
            self.id,
            &SendMsg::device(&ranges, &self.control),
            MsgFlags::ZEROCOPY,
        )?;
        if taken > 0 {
            self.sent += taken as u64;
            self.under_way.push_back((self.next, self.sent));
            self.next = self.next.next();
        }
        Ok(taken)
    }

    /// Returns the one or two ranges of the ring for `len` bytes of the stream from `position` on.
    fn ranges(&self, position: u64, len: usize) -> Vec<Range<usize>> {
        let at = self.at(position);
        let first = len.min(self.ring - at);
        [at..at + first, 0..len - first]
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect()
    }

    fn at(&self, position: u64) -> usize {
        (position % self.ring as u64) as usize
    }

    /// Reads the error queue until it is empty and overwrites the memory of complete sends.
    ///
    /// # Panics
    /// If an entry is not the next range of sends.
    pub fn collect(&mut self, door: &mut D) {
        loop {
            let range = match door.completion(self.id) {
                Ok(range) => range,
                Err(Errno::EAGAIN) => return,
                Err(errno) => panic!("reading the error queue: {errno}"),
            };
            assert!(!range.copied, "device memory is never copied");
            self.completions += 1;
            self.complete(range);
        }
    }

    fn complete(&mut self, range: ZerocopyRange) {
        for _ in 0..range.count() {
            let (id, end) = self
                .under_way
                .pop_front()
                .expect("only what was sent completes");
            assert!(range.contains(id), "{range:?} completes before {id}");
            let ranges = self.ranges(self.freed, (end - self.freed) as usize);
            for range in ranges {
                (self.write)(range.start, &vec![SCRIBBLE; range.len()]);
            }
            self.freed = end;
        }
    }
}
