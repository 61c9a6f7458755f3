//! The session with one client: executes each message and writes the reply.

use std::os::fd::AsFd;

use peer_socket::is_memory;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::bus::Bus;
use crate::closing::ClientFds;
use crate::device::Device;
use crate::message::{
    Body, Command, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, MAJOR, MAX_MESSAGE_FDS,
    MAX_TRANSFER_BYTES, MINOR, RegionAccess, RegionInfo, SetIrqs, Version, emit_error, emit_reply,
};
use crate::regions::{IRQ_KINDS, IRQ_MSIX, REGION_COUNT};
use crate::windows::{MAX_WINDOWS, MapError, MapRequest, PAGE_BYTES, Protection};

/// One complete message with its descriptors.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
    pub(crate) fds: ClientFds,
    /// The message had too many descriptors; they are closed.
    pub(crate) too_many_fds: bool,
}

/// Violation of the message format or of the protocol's order; the client is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The message is shorter than its header or longer than the maximum.
    #[error("a message of {size} bytes")]
    Size {
        /// Size in its header.
        size: u32,
    },
    /// The message is a reply, although there was no request, or of an unknown kind.
    #[error("message flags {flags:#x}, which are not those of a request")]
    NoRequest {
        /// Flags in its header.
        flags: u32,
    },
    /// Another message came before the version was negotiated, or a second VERSION came, or one without a reply.
    #[error("{command:?} out of order")]
    Order {
        /// Command of the message.
        command: Command,
    },
    /// The client uses another major version.
    #[error("protocol version {major}.{minor}; this is {MAJOR}.{MINOR}")]
    Version {
        /// The client's major version.
        major: u16,
        /// The client's minor version.
        minor: u16,
    },
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Complete messages.
    pub messages: u64,
    /// Posted region writes among them.
    pub posted_writes: u64,
    /// Requests that were refused, with an errno or (if posted) without a reply.
    pub refused: u64,
    /// The last refused command.
    pub last_refused: Option<Command>,
    /// Unused descriptors, which were closed; those of messages with too many are not counted.
    pub fds_closed: u64,
    /// Windows of guest memory without a descriptor.
    pub windows_without_fd: u64,
    /// Why a window of guest memory was refused last: the client is told an errno only.
    pub memory_refused: Option<MapError>,
}

/// State of a session, without I/O: its input is bytes and descriptors, its output bytes.
#[derive(Debug, Default)]
pub struct Session {
    /// The version is negotiated.
    agreed: bool,
    /// Buffer for the reply to a region read, and for the JSON of the version.
    scratch: Vec<u8>,
    stats: SessionStats,
}

/// Result of a request: the reply's body in the scratch buffer, or an errno.
type Answer = Result<(), Errno>;

impl Session {
    /// Returns the counters.
    pub fn stats(&self) -> SessionStats {
        self.stats
    }

    /// Executes the messages in `bytes`, in order and without descriptors, and appends the replies to `out`. For
    /// fuzzing and tests; a connection passes one message at a time.
    ///
    /// # Errors
    /// See [`ProtocolViolation`]; the rest of `bytes` was not processed.
    pub fn on_bytes(
        &mut self,
        device: &mut impl Device,
        bus: &mut Bus,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolViolation> {
        while let Some((header, rest)) = Header::split(bytes) {
            let len = body_len(header)?;
            let Some((body, rest)) = rest.split_at_checked(len) else {
                break;
            };
            let message = Message {
                header,
                body,
                fds: ClientFds::default(),
                too_many_fds: false,
            };
            self.on_message(device, bus, message, out)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Executes a message and appends the reply, unless the message is posted, to `out`.
    ///
    /// # Errors
    /// See [`ProtocolViolation`]; `out` may have a reply in this case, too.
    pub(crate) fn on_message(
        &mut self,
        device: &mut impl Device,
        bus: &mut Bus,
        message: Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolViolation> {
        let header = message.header;
        let command = header.command();
        self.stats.messages += 1;
        if !header.is_request() {
            let flags = header.flags.get();
            return Err(ProtocolViolation::NoRequest { flags });
        }
        // VERSION must come first, once, and with a reply.
        if (command == Command::VERSION) == self.agreed || (!self.agreed && !header.wants_reply()) {
            emit_error(out, header, Errno::INVAL);
            return Err(ProtocolViolation::Order { command });
        }
        self.scratch.clear();
        if command == Command::VERSION {
            self.stats.fds_closed += message.fds.len() as u64;
        }
        let answer = match message.too_many_fds {
            true => Err(Errno::MFILE),
            false if command == Command::VERSION => {
                return self.version(header, message.body, out);
            }
            false => self.answer(device, bus, message),
        };
        if answer.is_err() {
            self.stats.refused += 1;
            self.stats.last_refused = Some(command);
        }
        match answer {
            _ if !header.wants_reply() => {}
            Ok(()) => emit_reply(out, header, &self.scratch),
            Err(errno) => emit_error(out, header, errno),
        }
        Ok(())
    }

    fn answer(&mut self, device: &mut impl Device, bus: &mut Bus, message: Message<'_>) -> Answer {
        let Message {
            header, body, fds, ..
        } = message;
        if !matches!(header.command(), Command::DMA_MAP | Command::SET_IRQS) {
            self.stats.fds_closed += fds.len() as u64;
        }
        match header.command() {
            Command::DMA_MAP => self.dma_map(bus, body, fds),
            Command::DMA_UNMAP => self.dma_unmap(bus, body),
            Command::GET_INFO => self.device_info(body),
            Command::GET_REGION_INFO => self.region_info(device, body),
            Command::GET_IRQ_INFO => self.irq_info(device, body),
            Command::SET_IRQS => self.set_irqs(bus, body, fds),
            Command::REGION_READ => self.region_read(device, bus, body),
            Command::REGION_WRITE => {
                self.stats.posted_writes += u64::from(!header.wants_reply());
                self.region_write(device, bus, body)
            }
            Command::RESET => {
                device.reset(bus);
                Ok(())
            }
            // Includes GET_REGION_IO_FDS: doorbells by eventfd are not supported.
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Negotiates the version. The client's capabilities are not needed: the server sends no requests or descriptors.
    fn version(
        &mut self,
        header: Header,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolViolation> {
        let Some((version, json)) = Version::split(body) else {
            emit_error(out, header, Errno::INVAL);
            let command = header.command();
            return Err(ProtocolViolation::Order { command });
        };
        let (major, minor) = (version.major.get(), version.minor.get());
        let text_ends = json.is_empty() || json.last() == Some(&0);
        if major != MAJOR || !text_ends {
            emit_error(out, header, Errno::INVAL);
            return Err(ProtocolViolation::Version { major, minor });
        }
        self.agreed = true;
        let ours = Version {
            major: MAJOR.into(),
            minor: MINOR.into(),
        };
        self.scratch.extend_from_slice(ours.as_bytes());
        self.scratch.extend_from_slice(capabilities().as_bytes());
        self.scratch.push(0);
        emit_reply(out, header, &self.scratch);
        Ok(())
    }

    fn dma_map(&mut self, bus: &mut Bus, body: &[u8], fds: ClientFds) -> Answer {
        let (map, _) = DmaMap::split(body).ok_or(Errno::INVAL)?;
        let flags = map.flags.get();
        if flags & !(DmaMap::READ | DmaMap::WRITE) != 0 || fds.len() > 1 {
            self.stats.fds_closed += fds.len() as u64;
            return Err(Errno::INVAL);
        }
        // An access to any other file might block.
        if !fds.iter().all(|fd| is_memory(fd.as_fd())) {
            self.stats.fds_closed += fds.len() as u64;
            return Err(Errno::INVAL);
        }
        let file = fds.into_checked().pop();
        self.stats.windows_without_fd += u64::from(file.is_none());
        let request = MapRequest {
            address: map.address.get(),
            size: map.size.get(),
            offset: map.offset.get(),
            protection: Protection {
                read: flags & DmaMap::READ != 0,
                write: flags & DmaMap::WRITE != 0,
            },
        };
        bus.dma.map(request, file).map_err(|error| {
            self.stats.memory_refused = Some(error);
            error.errno()
        })
    }

    fn dma_unmap(&mut self, bus: &mut Bus, body: &[u8]) -> Answer {
        let (unmap, _) = DmaUnmap::split(body).ok_or(Errno::INVAL)?;
        let (address, size) = (unmap.address.get(), unmap.size.get());
        match unmap.flags.get() {
            0 => bus
                .dma
                .unmap(address, size)
                .map_err(|error| error.errno())?,
            DmaUnmap::ALL if address == 0 && size == 0 => bus.dma.clear(),
            DmaUnmap::ALL => return Err(Errno::INVAL),
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.scratch.extend_from_slice(unmap.as_bytes());
        Ok(())
    }

    fn device_info(&mut self, body: &[u8]) -> Answer {
        DeviceInfo::split(body).ok_or(Errno::INVAL)?;
        let info = DeviceInfo {
            argsz: size(size_of::<DeviceInfo>()).into(),
            flags: (DeviceInfo::RESET | DeviceInfo::PCI).into(),
            region_count: size(REGION_COUNT).into(),
            irq_count: IRQ_KINDS.into(),
        };
        self.scratch.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn region_info(&mut self, device: &impl Device, body: &[u8]) -> Answer {
        let (asked, _) = RegionInfo::split(body).ok_or(Errno::INVAL)?;
        let index = usize::try_from(asked.index.get()).map_err(|_| Errno::INVAL)?;
        let region = *device.regions().get(index).ok_or(Errno::INVAL)?;
        let flags = match region.size {
            0 => 0,
            _ => RegionInfo::READ | RegionInfo::WRITE,
        };
        let info = RegionInfo {
            argsz: size(size_of::<RegionInfo>()).into(),
            flags: flags.into(),
            index: asked.index,
            cap_offset: 0.into(),
            size: region.size.into(),
            offset: 0.into(),
        };
        self.scratch.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn irq_info(&mut self, device: &impl Device, body: &[u8]) -> Answer {
        let (asked, _) = IrqInfo::split(body).ok_or(Errno::INVAL)?;
        let count = match asked.index.get() {
            IRQ_MSIX => u32::from(device.vectors()),
            index if index < IRQ_KINDS => 0,
            _ => return Err(Errno::INVAL),
        };
        let info = IrqInfo {
            argsz: size(size_of::<IrqInfo>()).into(),
            flags: (if count > 0 { IrqInfo::EVENTFD } else { 0 }).into(),
            index: asked.index,
            count: count.into(),
        };
        self.scratch.extend_from_slice(info.as_bytes());
        Ok(())
    }

    fn set_irqs(&mut self, bus: &mut Bus, body: &[u8], fds: ClientFds) -> Answer {
        let (set, data) = SetIrqs::split(body).ok_or(Errno::INVAL)?;
        let (start, count) = (set.start.get(), set.count.get());
        let given = fds.len();
        let used = match set.index.get() {
            IRQ_MSIX => set_vectors(bus, set.flags.get(), start, count, data, fds),
            // The device has no other kind of vectors: only "no vectors" is valid.
            index if index < IRQ_KINDS && count == 0 && fds.is_empty() => Ok(()),
            _ => Err(Errno::INVAL),
        };
        if used.is_err() {
            self.stats.fds_closed += given as u64;
        }
        used
    }

    fn region_read(&mut self, device: &mut impl Device, bus: &mut Bus, body: &[u8]) -> Answer {
        let (access, _) = RegionAccess::split(body).ok_or(Errno::INVAL)?;
        let count = check_access(device, access)?;
        self.scratch.extend_from_slice(access.as_bytes());
        let start = self.scratch.len();
        self.scratch.resize(start + count, 0);
        let (region, offset) = (access.region.get(), access.offset.get());
        device
            .region_read(bus, region, offset, &mut self.scratch[start..])
            .map_err(|_| Errno::INVAL)
    }

    fn region_write(&mut self, device: &mut impl Device, bus: &mut Bus, body: &[u8]) -> Answer {
        let (access, bytes) = RegionAccess::split(body).ok_or(Errno::INVAL)?;
        let count = check_access(device, access)?;
        let bytes = bytes.get(..count).ok_or(Errno::INVAL)?;
        let (region, offset) = (access.region.get(), access.offset.get());
        device
            .region_write(bus, region, offset, bytes)
            .map_err(|_| Errno::INVAL)?;
        self.scratch.extend_from_slice(access.as_bytes());
        Ok(())
    }
}

/// Returns the length of the body that a header announces.
///
/// # Errors
/// [`ProtocolViolation::Size`].
pub(crate) fn body_len(header: Header) -> Result<usize, ProtocolViolation> {
    let size = header.size.get();
    header.body_len().ok_or(ProtocolViolation::Size { size })
}

/// Checks a region access (not empty, inside the region, not too long) and returns its length.
fn check_access(device: &impl Device, access: RegionAccess) -> Result<usize, Errno> {
    let regions = device.regions();
    let index = usize::try_from(access.region.get()).map_err(|_| Errno::INVAL)?;
    let region = regions.get(index).ok_or(Errno::INVAL)?;
    let count = access.count.get();
    let len = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let fits = region.contains(access.offset.get(), u64::from(count));
    match fits && (1..=MAX_TRANSFER_BYTES).contains(&len) {
        true => Ok(len),
        false => Err(Errno::INVAL),
    }
}

/// Executes SET_IRQS for `count` MSI-X vectors from `start`.
fn set_vectors(
    bus: &mut Bus,
    flags: u32,
    start: u32,
    count: u32,
    data: &[u8],
    fds: ClientFds,
) -> Answer {
    const ASSIGN: u32 = SetIrqs::DATA_EVENTFD | SetIrqs::ACTION_TRIGGER;
    const RAISE_ALL: u32 = SetIrqs::DATA_NONE | SetIrqs::ACTION_TRIGGER;
    const RAISE_SOME: u32 = SetIrqs::DATA_BOOL | SetIrqs::ACTION_TRIGGER;
    let wanted = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let irqs = &mut bus.irqs;
    let done = match flags {
        ASSIGN if fds.is_empty() => irqs.detach(start, count),
        ASSIGN if fds.len() == wanted => irqs.assign(start, fds),
        RAISE_ALL if count == 0 && fds.is_empty() => {
            irqs.detach_all();
            Ok(())
        }
        RAISE_ALL | RAISE_SOME if wanted > usize::from(irqs.count()) || !fds.is_empty() => {
            return Err(Errno::INVAL);
        }
        RAISE_ALL => irqs.raise_for_client(start, std::iter::repeat_n(true, wanted)),
        RAISE_SOME => {
            let data = data.get(..wanted).ok_or(Errno::INVAL)?;
            irqs.raise_for_client(start, data.iter().map(|&byte| byte != 0))
        }
        _ => return Err(Errno::INVAL),
    };
    done.map_err(|_| Errno::INVAL)
}

/// Returns the capabilities of this server as JSON, as in the specification.
fn capabilities() -> String {
    format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_MESSAGE_FDS},\"max_data_xfer_size\":{MAX_TRANSFER_BYTES},\
         \"max_dma_maps\":{MAX_WINDOWS},\"pgsizes\":{PAGE_BYTES}}}}}"
    )
}

/// Converts a size or count of ours, which is small.
fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
