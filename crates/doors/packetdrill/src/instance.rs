//! One stack for one script.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use devmem_posix::abi::{MSG_FASTOPEN, SOL_TCP, tcp_opt};
use devmem_posix::{Posix, SendArgs, Settings, VirtualTime};
use devmem_uapi::Errno;
use netmem::{Dmabuf, NiovSize};
use nic::{Nic, NicConfig};
use stack::{Secret, Stack, StackConfig};
use wire::Instant;

use crate::flags::Flags;
use crate::link::{SCRIPT_MAC, STACK_MAC, ScriptLink};
use crate::numbers::{self, Numbers};
use crate::sysctls::Sysctls;

/// Source addresses when the script binds none: the local addresses of the kernel's scripts, which neither
/// packetdrill nor those scripts use for the remote end (the stack drops packets from its own address).
const OUR_IPV4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1));
const OUR_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1));

/// Smallest MTU with IPv6 (RFC 8200 5).
const IPV6_MIN_MTU: u16 = 1280;

/// Bytes of host memory for received packets, and of device memory with `devmem=1`: so much that the window of a SYN-ACK
/// follows from the settings, as in Linux, and not from the memory. Pages that are not used cost nothing.
const MEMORY: usize = 64 << 20;

/// Most bytes of a file that [`Instance::send_file`] reads at once.
const FILE_BYTES: usize = 64 << 10;

/// First time of the clock: in the range of a wall clock, so that no program takes it for unset.
const START: Instant = Instant::from_millis(1_700_000_000_000);

/// A stack in virtual time, on a link whose packets a script sends and receives.
#[derive(Debug)]
pub struct Instance {
    posix: Posix<VirtualTime>,
    link: ScriptLink,
    numbers: Numbers,
    /// Source of the kernel's settings, and the flags that they are added to.
    sysctls: Option<(Sysctls, Flags)>,
}

impl Instance {
    /// Creates a stack.
    ///
    /// # Errors
    /// A sentence for the user: settings that contradict each other, or no memory.
    pub fn new(flags: &Flags) -> Result<Self, String> {
        let link = ScriptLink::new(flags.mtu, flags.tso);
        let config = NicConfig {
            mac: STACK_MAC,
            mtu: flags.mtu,
            host_mem_bytes: MEMORY,
            ..NicConfig::default()
        };
        let nic = Nic::new(Box::new(link.clone()), config).map_err(|error| error.to_string())?;
        let mut addresses = vec![(OUR_IPV4, 0)];
        if flags.mtu >= IPV6_MIN_MTU {
            addresses.push((OUR_IPV6, 0));
        }
        let config = StackConfig {
            addresses,
            tcp: flags.tcp.clone(),
            point_to_point: Some(SCRIPT_MAC),
            any_local: true,
            ..StackConfig::new(OUR_IPV4, 0, Secret::from_seed(flags.seed))
        };
        let stack = Stack::new(nic, config).map_err(|error| error.to_string())?;
        let settings = Settings {
            copy_out: flags.devmem,
            fd_base: numbers::first(),
            ..Settings::default()
        };
        let posix = Posix::new(VirtualTime::new(stack, settings, START));
        if flags.devmem {
            let memory = Dmabuf::anonymous(MEMORY).map_err(|error| error.to_string())?;
            posix
                .call(|table| table.bind_rx(&memory, NiovSize::DEFAULT))
                .map_err(|error| format!("binding device memory: {error}"))?;
        }
        posix.run_now();
        let sysctls = flags.sysctls.as_deref();
        let numbers = Numbers::new().map_err(|error| format!("a memory file: {error}"))?;
        Ok(Self {
            posix,
            link,
            numbers,
            sysctls: sysctls.map(|place| (Sysctls::new(place), flags.clone())),
        })
    }

    /// Reads the kernel's settings again, for connections that begin from now on.
    pub fn refresh_sysctls(&self) {
        if let Some((sysctls, flags)) = &self.sysctls {
            let config = flags.tcp_over(sysctls);
            self.posix.call(|table| table.set_tcp_config(config));
        }
    }

    /// Does so before a send that may begin a connection (MSG_FASTOPEN).
    pub fn refresh_for_send(&self, flags: c_int) {
        if flags.cast_unsigned() & MSG_FASTOPEN != 0 {
            self.refresh_sysctls();
        }
    }

    /// Does so before an option is set that one of the settings may forbid (TCP_FASTOPEN_CONNECT).
    pub fn refresh_for_option(&self, level: c_int, name: c_int) {
        if (level, name) == (SOL_TCP, tcp_opt::FASTOPEN_CONNECT) {
            self.refresh_sysctls();
        }
    }

    /// Returns the sockets.
    pub fn posix(&self) -> &Posix<VirtualTime> {
        &self.posix
    }

    /// Makes the number of a new file of the stack a descriptor of the process.
    ///
    /// # Errors
    /// EMFILE, and the file is closed again.
    pub fn number(&self, fd: i32) -> Result<i32, Errno> {
        match self.numbers.reserve(fd) {
            Ok(()) => Ok(fd),
            Err(errno) => {
                // It was opened just now.
                let _ = self.posix.close(fd);
                Err(errno)
            }
        }
    }

    /// pipe(2): the end that is read, and the end that is written.
    ///
    /// # Errors
    /// EMFILE.
    pub fn pipe(&self) -> Result<[i32; 2], Errno> {
        let (reader, writer) = self.posix.call(|table| table.pipe(0))?;
        let reader = self.number(reader).inspect_err(|_| {
            let _ = self.posix.close(writer);
        })?;
        let writer = self.number(writer).inspect_err(|_| {
            let _ = self.close(reader);
        })?;
        Ok([reader, writer])
    }

    /// Returns whether a file of the stack has this number.
    pub fn has(&self, fd: i32) -> bool {
        self.numbers.has(fd)
    }

    /// close(2): the file of the stack, and the descriptor of the process.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> Result<(), Errno> {
        let closed = self.posix.close(fd);
        if closed.is_ok() {
            self.numbers.release(fd);
        }
        closed
    }

    /// sendfile(2): sends `count` bytes of `file` from `start` on, or from its position, which then moves. Returns how many
    /// were sent, and the offset behind them.
    ///
    /// # Errors
    /// As send(2) and pread(2), if nothing was sent.
    pub fn send_file(
        &self,
        fd: i32,
        file: BorrowedFd<'_>,
        start: Option<i64>,
        count: usize,
    ) -> Result<(usize, i64), Errno> {
        let errno = |error: rustix::io::Errno| Errno(error.raw_os_error());
        let begun = match start {
            Some(start) => u64::try_from(start).map_err(|_| Errno::EINVAL)?,
            None => rustix::fs::tell(file).map_err(errno)?,
        };
        let (mut bytes, mut sent) = (vec![0; count.min(FILE_BYTES)], 0);
        let outcome = loop {
            let most = bytes.len().min(count - sent);
            let room = bytes.get_mut(..most).unwrap_or_default();
            let got = rustix::io::pread(file, &mut *room, begun + sent as u64).map_err(errno);
            let piece = match got {
                Ok(got) if got > 0 => room.get(..got).unwrap_or_default(),
                Ok(_) => break Ok(()),
                Err(errno) => break Err(errno),
            };
            match self.posix.send(fd, SendArgs::new(piece), 0) {
                Ok(taken) => sent += taken,
                Err(errno) => break Err(errno),
            }
        };
        if sent == 0 {
            outcome?;
        }
        let end = begun + sent as u64;
        if start.is_none() {
            rustix::fs::seek(file, rustix::fs::SeekFrom::Start(end)).map_err(errno)?;
        }
        Ok((sent, i64::try_from(end).unwrap_or(i64::MAX)))
    }

    /// Hands one IP packet to the stack, which processes it before this returns.
    ///
    /// # Errors
    /// EINVAL: not an IP packet.
    pub fn netdev_send(&self, packet: &[u8]) -> Result<(), Errno> {
        match self.link.inject(packet) {
            true => {
                self.posix.run_now();
                Ok(())
            }
            false => Err(Errno::EINVAL),
        }
    }

    /// Returns the next IP packet that the stack sends and its time in microseconds, advancing the clock to the next timer
    /// if necessary. `None`: no packet is queued and no timer is left.
    pub fn netdev_receive(&self) -> Option<(Vec<u8>, i64)> {
        let sniffed = self.posix.sleep_until(|| self.link.sniff())?;
        Some((sniffed.packet, micros(sniffed.at)))
    }

    /// Advances the clock.
    pub fn sleep(&self, duration: Duration) {
        self.posix.sleep(duration);
    }

    /// Returns the time in microseconds.
    pub fn now_micros(&self) -> i64 {
        micros(self.posix.read_clock())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.posix.call(devmem_posix::Table::close_all);
    }
}

fn micros(at: Instant) -> i64 {
    i64::try_from(at.as_nanos() / 1000).unwrap_or(i64::MAX)
}
