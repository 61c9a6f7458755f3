// UNSAFETY: rustix has neither the options of level SOL_PACKET, nor SO_ATTACH_FILTER, nor addresses of AF_PACKET, nor the
// ioctl SIOCGIFFLAGS.

//! Options, filter and address of packet sockets (packet(7)).

use std::ffi::{c_int, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::tun::IFNAMSIZ;

/// Options of level `SOL_PACKET` with an int as value (linux include/uapi/linux/if_packet.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Flag {
    /// Every packet has a virtio-net header.
    VnetHeader = 15,
    /// The socket gets no packets that this machine sends.
    IgnoreOutgoing = 23,
}

/// What a membership makes the interface receive, beside frames to its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Membership {
    /// Frames to a multicast address.
    Multicast = 0,
    /// All frames.
    Promiscuous = 1,
    /// Frames to a unicast address.
    Unicast = 3,
}

const SOL_PACKET: c_int = 263;
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_STATISTICS: c_int = 6;
const PACKET_FANOUT: c_int = 18;
const PACKET_FANOUT_DATA: c_int = 22;

/// `struct packet_mreq`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct MembershipRequest {
    index: c_int,
    kind: u16,
    address_len: u16,
    address: [u8; 8],
}
const _: () = assert!(size_of::<MembershipRequest>() == 16);

/// One instruction of a classic BPF program (`struct sock_filter`, linux include/uapi/linux/filter.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    /// Instructions to skip if the comparison is true.
    pub(crate) if_true: u8,
    /// Instructions to skip if it is false.
    pub(crate) if_false: u8,
    pub(crate) value: u32,
}
const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());

/// Switches an option on.
pub(crate) fn enable(fd: BorrowedFd<'_>, flag: Flag) -> Result<(), Errno> {
    let on: c_int = 1;
    // SAFETY: the options of `Flag` are ints.
    unsafe { set(fd, SOL_PACKET, flag as c_int, &on) }
}

/// Makes the interface `index` receive more frames, as long as the socket is open. `address` is not used by
/// [`Membership::Promiscuous`].
pub(crate) fn join(
    fd: BorrowedFd<'_>,
    index: u32,
    kind: Membership,
    address: [u8; 6],
) -> Result<(), Errno> {
    let [a, b, c, d, e, f] = address;
    let request = MembershipRequest {
        index: c_int::try_from(index).map_err(|_| Errno::NODEV)?,
        kind: kind as u16,
        address_len: 6,
        address: [a, b, c, d, e, f, 0, 0],
    };
    // SAFETY: PACKET_ADD_MEMBERSHIP reads a `struct packet_mreq`, without pointers.
    unsafe { set(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request) }
}

/// Attaches a filter: the socket gets the packets for which the program returns a length other than 0.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> Result<(), Errno> {
    // SAFETY: SO_ATTACH_FILTER reads a `struct sock_fprog`.
    unsafe { set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program) }
}

/// Name of a group of sockets that share the packets of an interface, with its mode and flags: the value of `PACKET_FANOUT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FanoutGroup(c_int);

/// Makes a group of the socket, which is bound. A program selects the socket of each packet, [`spread_by`]; until then the
/// first socket gets all.
pub(crate) fn make_group(fd: BorrowedFd<'_>) -> Result<FanoutGroup, Errno> {
    // linux include/uapi/linux/if_packet.h: a program selects; the kernel chooses the number of the group; packets that this
    // machine sends are not shared (Linux 6.2, ignored by older ones).
    const BY_PROGRAM: c_int = 6;
    const FLAG_UNIQUE_ID: c_int = 0x2000;
    const FLAG_IGNORE_OUTGOING: c_int = 0x4000;
    let wanted = FanoutGroup((BY_PROGRAM | FLAG_UNIQUE_ID | FLAG_IGNORE_OUTGOING) << 16);
    join_group(fd, wanted)?;
    get(fd, PACKET_FANOUT).map(FanoutGroup)
}

/// Adds a socket that is bound to the same interface. It has the next number in the group.
pub(crate) fn join_group(fd: BorrowedFd<'_>, group: FanoutGroup) -> Result<(), Errno> {
    // SAFETY: PACKET_FANOUT reads an int.
    unsafe { set(fd, SOL_PACKET, PACKET_FANOUT, &group.0) }
}

/// Makes a program select the socket of each packet: the one with the number that it returns, modulo their number.
pub(crate) fn spread_by(fd: BorrowedFd<'_>, program: &[Instruction]) -> Result<(), Errno> {
    // SAFETY: PACKET_FANOUT_DATA reads a `struct sock_fprog` if the group of the socket has the mode of `make_group`.
    unsafe { set_program(fd, SOL_PACKET, PACKET_FANOUT_DATA, program) }
}

/// Sets an option that is a program.
///
/// # Safety
/// The option's value is a `struct sock_fprog`.
unsafe fn set_program(
    fd: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    program: &[Instruction],
) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    const LEN: libc::socklen_t = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: 1. `fd` is open for the call (borrowed); 2. the kernel reads LEN bytes at the pointer, the local `program`
    // (the type is guaranteed by the caller); 3. it reads `len` instructions at `filter`: those of the borrowed slice, which
    // have the size of `sock_filter` (asserted above); it writes to none of this.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const program).cast(),
            LEN,
        )
    };
    done(rc)
}

/// Binds the socket to all protocols of the interface `index`: from now on it gets packets.
pub(crate) fn bind(fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    const LEN: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: c_int::try_from(index).map_err(|_| Errno::NODEV)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: 1. `fd` is open for the call (borrowed); 2. the kernel reads LEN bytes at the pointer, the local `address`.
    done(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), LEN) })
}

/// Returns the number of packets for which the socket's buffer had no room, since the last call.
pub(crate) fn take_drops(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    // `struct tpacket_stats`: packets, of which drops.
    let [_packets, drops] = get::<[u32; 2]>(fd, PACKET_STATISTICS)?;
    Ok(drops)
}

/// The kernel's `struct ifreq`: a name, then an index or flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    value: [u32; 6],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

impl InterfaceRequest {
    /// Calls ioctl(2) with the request.
    fn call(&mut self, fd: BorrowedFd<'_>, call: c_ulong) -> Result<(), Errno> {
        // SAFETY: 1. `fd` is open for the call (borrowed); 2. the callers' ioctls read and write a `struct ifreq`, whose size
        // this type has (asserted above), and every byte pattern is a valid value of it.
        let rc = unsafe { libc::ioctl(fd.as_raw_fd(), call as _, &raw mut *self) };
        done(rc)
    }
}

/// Returns whether the interface `index` is administratively up, in the network namespace of the socket; `ENODEV` if it does
/// not exist there.
pub(crate) fn is_up(fd: BorrowedFd<'_>, index: u32) -> Result<bool, Errno> {
    const SIOCGIFNAME: c_ulong = 0x8910;
    const SIOCGIFFLAGS: c_ulong = 0x8913;
    // During a rename the interface has a name that is not found yet, for as long as other processors may read the old one.
    const ATTEMPTS: u32 = 500;
    const PAUSE: Duration = Duration::from_millis(1);
    for _ in 0..ATTEMPTS {
        let mut request = InterfaceRequest {
            name: [0; IFNAMSIZ],
            value: [index, 0, 0, 0, 0, 0],
        };
        request.call(fd, SIOCGIFNAME)?;
        match request.call(fd, SIOCGIFFLAGS) {
            Err(Errno::NODEV) => thread::sleep(PAUSE),
            result => {
                result?;
                // The flags are the first u16 of the value.
                let flags = request.value[0].to_ne_bytes();
                let flags = u16::from_ne_bytes([flags[0], flags[1]]);
                return Ok(flags & libc::IFF_UP as u16 != 0);
            }
        }
    }
    Err(Errno::NODEV)
}

/// Returns the value of an option of level `SOL_PACKET`.
fn get<T: FromBytes>(fd: BorrowedFd<'_>, option: c_int) -> Result<T, Errno> {
    let mut value = <T as FromZeros>::new_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: 1. `fd` is open for the call (borrowed); 2. the kernel writes at most `len` bytes at the pointer, the size of
    // the local value, and the length at the other; 3. every byte pattern is a valid `T` (`FromBytes`).
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            SOL_PACKET,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    done(rc).map(|()| value)
}

/// Sets an option.
///
/// # Safety
/// The option's value is a `T`, and contains no address.
unsafe fn set<T: IntoBytes + Immutable>(
    fd: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> Result<(), Errno> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: 1. `fd` is open for the call (borrowed); 2. the kernel reads `len` bytes at the pointer, which are those of
    // the borrowed value; 3. it uses none of them as an address (guaranteed by the caller).
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            len,
        )
    };
    done(rc)
}

fn done(rc: c_int) -> Result<(), Errno> {
    match rc {
        0 => Ok(()),
        _ => Err(super::last_errno()),
    }
}
