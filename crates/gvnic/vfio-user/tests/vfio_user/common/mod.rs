//! A server with a small device, and a client that sends messages like QEMU. Both run in turn in one thread.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use vfio_user::{
    Bus, CONFIG_REGION, Device, DeviceError, Event, Msix, PciConfig, PciIdentity, REGION_COUNT,
    Region, Server,
};

pub const VECTORS: u16 = 3;
pub const BAR_BYTES: u64 = 4096;

/// Offsets in BAR 2 at which a write makes the device act.
pub const RAISE: u64 = 0;
/// See [`RAISE`]: the device reads the eight bytes at the guest address written here, adds one to each, and writes them
/// after the original ones.
pub const BUMP: u64 = 8;

/// A device with memory in BAR 0 and actions in BAR 2.
pub struct Toy {
    pub memory: [u8; BAR_BYTES as usize],
    pub config: PciConfig,
    pub resets: u32,
    pub failed_dma: u32,
}

impl Toy {
    pub fn new() -> Self {
        let identity = PciIdentity {
            vendor: 0x1234,
            device: 0x5678,
            revision: 1,
            class: 0x02_0000,
            subsystem: (0, 0),
        };
        let msix = Msix {
            vectors: VECTORS,
            bar: 1,
            table: 0,
            pending: 0x800,
        };
        Self {
            memory: [0; BAR_BYTES as usize],
            config: PciConfig::new(identity, [4096, 4096, 4096, 0, 0, 0], msix),
            resets: 0,
            failed_dma: 0,
        }
    }
}

impl Device for Toy {
    fn regions(&self) -> [Region; REGION_COUNT] {
        let mut regions = [Region::NONE; REGION_COUNT];
        regions[0].size = BAR_BYTES;
        regions[1].size = BAR_BYTES;
        regions[2].size = BAR_BYTES;
        regions[CONFIG_REGION as usize].size = PciConfig::BYTES;
        regions
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }

    fn region_read(
        &mut self,
        _bus: &mut Bus,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let at = usize::try_from(offset).unwrap();
        match region {
            0 => out.copy_from_slice(&self.memory[at..at + out.len()]),
            CONFIG_REGION => return self.config.read(offset, out),
            _ => out.fill(0),
        }
        Ok(())
    }

    fn region_write(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let at = usize::try_from(offset).unwrap();
        match (region, offset) {
            (0, _) => self.memory[at..at + bytes.len()].copy_from_slice(bytes),
            (2, RAISE) => {
                bus.irqs.raise(u16::from(bytes[0]));
            }
            (2, BUMP) => {
                let address = u64::from_le_bytes(bytes.try_into().map_err(|_| DeviceError)?);
                let mut word = [0; 8];
                let done = bus.dma.read(address, &mut word).and_then(|()| {
                    word = word.map(|byte| byte.wrapping_add(1));
                    bus.dma.write(address.wrapping_add(8), &word)
                });
                self.failed_dma += u32::from(done.is_err());
            }
            (CONFIG_REGION, _) => return self.config.write(offset, bytes),
            _ => return Err(DeviceError),
        }
        Ok(())
    }

    fn reset(&mut self, _bus: &mut Bus) {
        self.memory = [0; BAR_BYTES as usize];
        self.config.reset();
        self.resets += 1;
    }
}

/// A server of a [`Toy`] in a temporary folder.
pub struct Bench {
    pub server: Server,
    pub device: Toy,
    /// Removed after the server has been dropped.
    _folder: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let device = Toy::new();
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen(&folder.path().join("nic"), &device).unwrap();
        Self {
            server,
            device,
            _folder: folder,
        }
    }

    /// Runs the server until neither descriptor is ready; returns its events.
    pub fn turn(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        // More turns than the messages of any test need.
        for _ in 0..64 {
            events.extend(self.server.on_ready(&mut self.device));
        }
        events
    }

    /// Returns an accepted client that has sent no message.
    pub fn connect(&mut self) -> Client {
        let stream = UnixStream::connect(self.server.path()).unwrap();
        stream.set_nonblocking(true).unwrap();
        assert!(matches!(self.turn()[..], [Event::Joined]));
        Client { stream, next: 1 }
    }

    /// Returns a client after version negotiation.
    pub fn client(&mut self) -> Client {
        let mut client = self.connect();
        client.send(VERSION, 0, &version_body(), &[]);
        self.turn();
        assert_eq!(client.receive().unwrap().errno, 0);
        client
    }

    /// Sends a request and returns its reply.
    #[track_caller]
    pub fn ask(
        &mut self,
        client: &mut Client,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Reply {
        let id = client.send(command, 0, body, fds);
        let events = self.turn();
        let reply = client.receive();
        let reply = reply.unwrap_or_else(|| panic!("no reply; {events:?}"));
        assert_eq!((reply.id, reply.command), (id, command));
        reply
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub fn ask_ok(
        &mut self,
        client: &mut Client,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Vec<u8> {
        let reply = self.ask(client, command, body, fds);
        assert_eq!(reply.errno, 0, "command {command}");
        reply.body
    }
}

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const RESET: u16 = 13;
/// The flag of a request without a reply.
pub const POSTED: u32 = 0x10;

pub const EEXIST: u32 = 17;
pub const EINVAL: u32 = 22;
pub const EMFILE: u32 = 24;
pub const ENOSPC: u32 = 28;
pub const EOPNOTSUPP: u32 = 95;

pub struct Client {
    pub stream: UnixStream,
    next: u16,
}

#[derive(Debug)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    pub errno: u32,
    pub body: Vec<u8>,
}

impl Client {
    /// Sends one message with descriptors, as QEMU does: in one piece. Returns its number.
    pub fn send(&mut self, command: u16, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> u16 {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.send_raw(&message(id, command, flags, body), fds);
        id
    }

    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let parts = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Returns the next reply, `None` if there is none.
    pub fn receive(&mut self) -> Option<Reply> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; usize::try_from(word(4)).unwrap() - 16];
        self.stream.read_exact(&mut body).unwrap();
        let flags = word(8);
        assert_eq!(flags & 0xf, 1, "a reply");
        assert_eq!(flags & 0x20 != 0, word(12) != 0, "an errno and its flag");
        Some(Reply {
            id: u16::from_le_bytes([header[0], header[1]]),
            command: u16::from_le_bytes([header[2], header[3]]),
            errno: word(12),
            body,
        })
    }

    /// Returns whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn write_some(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }
}

/// Returns the bytes of a message.
pub fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}

/// Builds a body of fields of four and eight bytes.
pub enum Field {
    U32(u32),
    U64(u64),
}

pub fn body(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            Field::U32(value) => bytes.extend_from_slice(&value.to_le_bytes()),
            Field::U64(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        }
    }
    bytes
}

/// The JSON of the first message of QEMU 11.1.
pub fn version_body() -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(
        b"{\"capabilities\":{\"pgsizes\":4096,\"max_msg_fds\":16,\"max_dma_maps\":65535,\
          \"max_data_xfer_size\":1048576,\"migration\":{\"pgsize\":4096,\"max_bitmap_size\":268435456},\
          \"write_multiple\":true}}\0",
    );
    bytes
}

pub fn dma_map(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    use Field::{U32, U64};
    body(&[U32(32), U32(flags), U64(offset), U64(address), U64(size)])
}

pub fn dma_unmap(flags: u32, address: u64, size: u64) -> Vec<u8> {
    use Field::{U32, U64};
    body(&[U32(24), U32(flags), U64(address), U64(size)])
}

pub fn set_irqs(flags: u32, index: u32, start: u32, count: u32) -> Vec<u8> {
    body(&[20, flags, index, start, count].map(Field::U32))
}

pub fn region_info(index: u32) -> Vec<u8> {
    use Field::{U32, U64};
    body(&[U32(32), U32(0), U32(index), U32(0), U64(0), U64(0)])
}

pub fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    use Field::{U32, U64};
    let mut bytes = body(&[U64(offset), U32(region), U32(count)]);
    bytes.extend_from_slice(data);
    bytes
}

/// Returns a field of a reply.
pub fn u32_at(body: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(body[at..at + 4].try_into().unwrap())
}

/// Creates guest memory as QEMU does (memory-backend-memfd): sealed against a change of its size.
pub fn guest_memory(bytes: u64) -> File {
    let file = unsealed_memory(bytes);
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    file
}

/// Creates guest memory that its owner can shrink at any time.
pub fn unsealed_memory(bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("guest", flags).unwrap();
    ftruncate(&fd, bytes).unwrap();
    File::from(fd)
}

pub fn peek(file: &File, at: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

pub fn poke(file: &File, at: u64, bytes: &[u8]) {
    file.write_all_at(bytes, at).unwrap();
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// Returns how often an eventfd was raised since the last call.
pub fn times_raised(fd: impl AsFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

impl Client {
    /// Returns a client on a connected socket.
    pub fn of(stream: UnixStream) -> Self {
        Self { stream, next: 1 }
    }
}

/// Returns the number of descriptors of this process that refer to one eventfd: eventfds have ids (linux fs/eventfd.c
/// `eventfd_show_fdinfo`).
pub fn descriptors_of(eventfd: &OwnedFd) -> usize {
    let number = |info: &std::path::Path| {
        let text = std::fs::read_to_string(info).ok()?;
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("eventfd-id:").map(str::to_owned))
    };
    let folder = std::path::Path::new("/proc/self/fdinfo");
    let ours = number(&folder.join(eventfd.as_raw_fd().to_string()));
    assert!(ours.is_some(), "the kernel numbers eventfds");
    let all = std::fs::read_dir(folder).unwrap().flatten();
    all.filter(|entry| number(&entry.path()) == ours).count()
}
