//! A UNIX wire that shares memory, whose peer sends anything: records of files, frames by reference, and other packets.
//!
//! Input: packets of one byte of kind, and what the kind needs.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nic::{Nic, NicConfig, UnixLink, WireHello};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use wire::Instant;

/// Maximum number of packets of one run, limited by the socket's buffer.
const MAX_PACKETS: usize = 32;
const FILE_BYTES: u64 = 64 << 10;
/// Bytes of the headers of a frame by reference, from the input.
const MAX_HEAD: usize = 80;

const HELLO: WireHello = WireHello {
    offloads: true,
    mtu: 1500,
    shares_memory: true,
    needs_offloads: false,
};

/// Checks that nothing that a peer sends makes the NIC fail, and that every payload is as long as its headers say.
pub fn run(mut input: &[u8]) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, peer) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("two sockets");
    let link = UnixLink::new(ours, HELLO, HELLO).expect("an epoll");
    let small = NicConfig {
        host_mem_bytes: 1 << 20,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(link), small).expect("a configuration that can be");
    let good = file(SealFlags::SHRINK);
    let bad = file(SealFlags::GROW);
    send(&peer, &file_record(1, 0, FILE_BYTES), Some(good.as_fd()));
    for _ in 0..MAX_PACKETS {
        let Some((&kind, rest)) = input.split_first() else {
            break;
        };
        input = rest;
        let fd = match kind >> 6 {
            0 => None,
            1 => Some(bad.as_fd()),
            _ => Some(good.as_fd()),
        };
        match kind & 3 {
            0 => send(&peer, &frame(kind, &mut input), fd),
            1 => {
                let [what, region, size] = take(&mut input);
                let size = u64::from(size) << 12;
                send(&peer, &file_record(what, region.into(), size), fd);
            }
            2 => {
                let [len] = take(&mut input);
                let (packet, rest) = input.split_at(usize::from(len).min(input.len()));
                input = rest;
                send(&peer, packet, fd);
            }
            _ => poll(&mut nic),
        }
    }
    poll(&mut nic);
    drop(peer);
    poll(&mut nic);
}

fn poll(nic: &mut Nic) {
    // Each call that returns nothing has dropped some packets, or none is left.
    for _ in 0..=MAX_PACKETS {
        while let Some(packet) = nic.poll_rx(Instant::ZERO) {
            if let Some(frags) = packet.payload.frags() {
                let placed: usize = frags.iter().map(netmem::Frag::len).sum();
                assert_eq!(placed, packet.headers.payload_len);
            }
            nic.recycle(packet.payload.into_frags());
        }
    }
}

fn file(seals: SealFlags) -> OwnedFd {
    let file = memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).expect("a memory file");
    ftruncate(&file, FILE_BYTES).expect("its length");
    fcntl_add_seals(&file, seals).expect("its seals");
    file
}

/// Takes the next bytes of the input; zeros behind its end.
fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let len = N.min(input.len());
    let (bytes, rest) = input.split_at(len);
    out[..len].copy_from_slice(bytes);
    *input = rest;
    out
}

/// A record about a file: see `crates/core/nic/src/link/shared/record.rs`.
fn file_record(kind: u8, region: u32, size: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..2].copy_from_slice(&[0x40, kind]);
    out[4..8].copy_from_slice(&region.to_ne_bytes());
    out[8..].copy_from_slice(&size.to_ne_bytes());
    out
}

/// A frame by reference whose parts are from the input; a valid one is likely.
fn frame(kind: u8, input: &mut &[u8]) -> Vec<u8> {
    let [pieces, slot, until, head] = take(input);
    let head = usize::from(head) % MAX_HEAD;
    let mut out = take::<10>(input).to_vec();
    out[0] |= 0x80;
    out.extend_from_slice(&u16::from(slot).to_ne_bytes());
    out.extend_from_slice(&u16::from(pieces % 8).to_ne_bytes());
    out.extend_from_slice(&(head as u16).to_ne_bytes());
    out.extend_from_slice(&[until % 3, 0]);
    out.extend_from_slice(&7_u32.to_ne_bytes());
    for _ in 0..pieces % 8 {
        let [region, len_high, len_low, page, at] = take(input);
        let len = u32::from(u16::from_be_bytes([len_high, len_low]));
        out.extend_from_slice(&u32::from(region % 3).to_ne_bytes());
        out.extend_from_slice(&len.to_ne_bytes());
        let offset = (u64::from(page) << 12) + u64::from(at);
        out.extend_from_slice(&offset.to_ne_bytes());
    }
    let mut bytes = take::<MAX_HEAD>(input);
    if kind & 4 == 0 {
        bytes[..6].copy_from_slice(&NicConfig::default().mac.0);
    }
    out.extend_from_slice(&bytes[..head]);
    out
}

fn send(peer: &OwnedFd, packet: &[u8], fd: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // A full socket, or one that the NIC has closed, loses the packet.
    let _ = sendmsg(peer, &[IoSlice::new(packet)], &mut control, flags);
}
