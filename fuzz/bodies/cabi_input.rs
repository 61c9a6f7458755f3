//! Input of the bodies that make C calls: memory of exact lengths, and impossible lengths.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use devmem_posix::abi::SOCK_NONBLOCK;
use devmem_posix::sockaddr::{Family, emit};
use devmem_posix::{Posix, Settings, Table, VirtualTime};
use devmem_uapi::{Errno, MsgFlags, sockopt};
use libc::{iovec, msghdr, socklen_t};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

/// Range of file numbers.
pub const FILES: u8 = 8;
/// Address on which the stack listens, and to which it connects.
pub const OURS: &str = "10.77.0.1:5000";

/// Returns a stack with a connection to itself, and the other end of its wire. The first file is connected to the second,
/// which listens; both are non-blocking.
pub fn connection() -> (Posix<VirtualTime>, WireLink) {
    let (end, other) = WireLink::pair(WireOptions::default()).expect("a wire");
    let small = NicConfig {
        host_mem_bytes: 256 << 10,
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(end), small).expect("a configuration that can be");
    let at: std::net::SocketAddr = OURS.parse().expect("an address");
    let config = StackConfig {
        send_memory_bytes: 256 << 10,
        ..StackConfig::new(at.ip(), 24, Secret::from_seed(3))
    };
    let stack = Stack::new(nic, config).expect("a configuration that can be");
    let start = Instant::from_millis(1);
    let posix = Posix::new(VirtualTime::new(stack, Settings::default(), start));
    let connected = posix.call(|table| {
        let socket = |table: &mut Table| table.socket(2, 1 | SOCK_NONBLOCK, 0);
        let (client, listener) = (socket(table)?, socket(table)?);
        let address = emit(at, Family::V4);
        table.bind(listener, &address)?;
        table.listen(listener, 2)?;
        match table.connect(client, &address, start) {
            Err(Errno::EINPROGRESS) => Ok(()),
            other => other,
        }
    });
    connected.expect("calls that a good program makes");
    posix.run_now();
    (posix, other)
}

/// The rest of the input, followed by zeros.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *byte
    }

    /// Returns memory of exactly the length that the input selects, with bytes of the input.
    pub fn memory(&mut self) -> Box<[u8]> {
        let len = usize::from(self.byte());
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        let mut memory = bytes.to_vec();
        memory.resize(len, 0xee);
        memory.into()
    }

    /// Returns flags of a call: a bit for each supported flag.
    pub fn flags(&mut self) -> c_int {
        let known = [
            MsgFlags::PEEK,
            MsgFlags::TRUNC,
            MsgFlags::WAITALL,
            MsgFlags::ERRQUEUE,
            MsgFlags::MORE,
            MsgFlags::ZEROCOPY,
            MsgFlags::SOCK_DEVMEM,
        ];
        let bits = self.byte();
        let chosen = known
            .iter()
            .enumerate()
            .filter(|(bit, _)| bits >> bit & 1 == 1);
        let flags: MsgFlags = chosen.map(|(_, flag)| *flag).collect();
        (flags | MsgFlags::DONTWAIT).bits().cast_signed()
    }

    /// Returns level and name of an option: in most cases a known one.
    pub fn option(&mut self) -> (c_int, c_int) {
        let (choice, name) = (self.byte(), c_int::from(self.byte()));
        let level = [sockopt::SOL_SOCKET, 6, 0, 41][usize::from(choice % 4)];
        match choice >> 4 {
            0 => (level, sockopt::SO_DEVMEM_DONTNEED),
            1 => (sockopt::SOL_SOCKET, sockopt::SO_ZEROCOPY),
            2 => (level, c_int::MIN + name),
            _ => (level, name),
        }
    }
}

/// A vector of buffers, and their memory.
pub struct Vector {
    memory: Vec<Box<[u8]>>,
    pub entries: Vec<iovec>,
    are_offsets: bool,
}

impl Vector {
    /// Each entry is separate memory, null, an impossible length, or an offset in device memory.
    pub fn new(input: &mut Input<'_>) -> Self {
        let mut it = Self {
            memory: Vec::new(),
            entries: Vec::new(),
            are_offsets: false,
        };
        for _ in 0..input.byte() % 5 {
            let kind = input.byte();
            let (iov_base, iov_len) = match kind % 8 {
                0 => (null_mut(), usize::from(input.byte())),
                1 => (null_mut(), usize::MAX - usize::from(input.byte())),
                _ => {
                    it.memory.push(input.memory());
                    let bytes = it.memory.last_mut().expect("it was just put there");
                    (bytes.as_mut_ptr().cast::<c_void>(), bytes.len())
                }
            };
            it.entries.push(iovec { iov_base, iov_len });
        }
        it
    }

    /// Offsets in device memory, which the calls do not use as addresses.
    pub fn offsets(input: &mut Input<'_>) -> Self {
        let entry = |input: &mut Input<'_>| iovec {
            iov_base: std::ptr::without_provenance_mut(
                usize::from(input.byte()) << (input.byte() % 64),
            ),
            iov_len: usize::from(input.byte()) << (input.byte() % 57),
        };
        let count = input.byte() % 5;
        Self {
            memory: Vec::new(),
            entries: (0..count).map(|_| entry(input)).collect(),
            are_offsets: true,
        }
    }

    /// Returns the number of entries to pass: sometimes more than the maximum.
    pub fn count(&self, input: &mut Input<'_>) -> usize {
        match input.byte() {
            255 => usize::MAX,
            254 => 1025,
            _ => self.entries.len(),
        }
    }
}

/// Returns a message with these parts; unused fields have any value.
pub fn message(vector: &mut Vector, control: &mut [u8], input: &mut Input<'_>) -> msghdr {
    // Without its control message, the offsets would be used as addresses.
    let has_control = vector.are_offsets || input.byte() != 255;
    msghdr {
        msg_name: null_mut(),
        msg_namelen: input.byte().into(),
        msg_iovlen: vector.count(input),
        msg_iov: vector.entries.as_mut_ptr(),
        msg_control: if has_control {
            control.as_mut_ptr().cast()
        } else {
            null_mut()
        },
        msg_controllen: match (has_control, input.byte()) {
            // Longer than the maximum of all calls.
            (_, 255) => usize::MAX,
            (true, _) => control.len(),
            // The length of a null pointer is ignored.
            (false, len) => len.into(),
        },
        msg_flags: input.byte().into(),
    }
}

/// Returns the length to pass: that of the memory, or one that is negative as an int.
pub fn told_len(len: usize, input: &mut Input<'_>) -> socklen_t {
    match input.byte() {
        255 => socklen_t::MAX,
        _ => socklen_t::try_from(len).expect("it is short"),
    }
}
