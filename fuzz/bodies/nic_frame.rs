//! The NIC's receive path: invalid and valid frames into two queues, one of them bound to device memory that
//! the CPU may not read, with many wrong predictions of header lengths and queues.
//!
//! Input: one byte of set-up, then frames: two bytes of length, one of flags, one with the number of blocks of 256 bytes
//! to append (so that a short input makes long packets), the frame.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, Frag, MemoryProvider, NiovSize};
use nic::{
    Link, LinkCaps, LinkReceived, LinkSent, Nic, NicConfig, Posted, ProviderChoice, Rings,
    RxPacket, TcpDataSplit, TxFrame, VnetMeta,
};
use steer::RxQueueId;
use wire::{ChecksumState, Instant, TxChecksum};

use super::ipv4_checksum;

/// Set-up: net_iovs of 4 KiB instead of 64 KiB.
const SMALL_NIOVS: u8 = 1;
/// Set-up: the first 16 payload bytes stay in host memory.
const LINEAR: u8 = 2;
/// Frame: the IPv4 header checksum is corrected first, because random bytes seldom have the right one.
const MEND_CHECKSUM: u8 = 1;
/// Frame: it has our destination address.
const FOR_US: u8 = 2;
/// Frame: the link has verified the transport checksum.
const TRUSTED: u8 = 4;
/// Frame: the link has the whole frame, and the NIC copies it.
const WHOLE: u8 = 8;
/// Frame: it is marked as a super-packet.
const SUPER: u8 = 16;
/// Frame: the reader keeps the packet instead of returning it.
const KEEP: u8 = 32;

/// Bytes of device memory: few net_iovs of either size, so that they run out.
const MEMORY: usize = 512 << 10;

thread_local! {
    /// Kept from run to run: mapping memory takes longer than all the rest.
    static MEMORIES: [Arc<MemoryProvider>; 2] = [NiovSize::DEFAULT, NiovSize::MIN].map(|niov_size| {
        let memory = Dmabuf::opaque(MEMORY).expect("half a MiB of memory");
        let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov_size);
        Arc::new(provider.expect("a number of whole net_iovs"))
    });
}

/// Checks that every frame becomes a packet with its bytes at the right place, or one counted drop, and that all
/// memory is returned.
pub fn run(data: &[u8]) {
    let Some((&setup, frames)) = data.split_first() else {
        return;
    };
    let memory = MEMORIES.with(|[large, small]| {
        let chosen = if setup & SMALL_NIOVS != 0 {
            small
        } else {
            large
        };
        Arc::clone(chosen)
    });
    {
        let current = Arc::new(Mutex::new(Vec::new()));
        let script = Script {
            frames: frames_of(frames),
            current: Arc::clone(&current),
        };
        let total = script.frames.len();
        let keep: Vec<bool> = script
            .frames
            .iter()
            .map(|frame| frame.switches & KEEP != 0)
            .collect();
        let mut nic = nic(script, setup);
        nic.restart_queue(RxQueueId(1), ProviderChoice::Provider(Arc::clone(&memory)))
            .expect("memory is there");
        let (mut received, mut kept) = (0, Vec::new());
        // A limit on the number of calls: each call that returns nothing has dropped at least one frame.
        for _ in 0..=total {
            while let Some(packet) = nic.poll_rx(Instant::ZERO) {
                let frame = current.lock().expect("no panic holds it").clone();
                check(&packet, &frame, &memory);
                if packet.payload.frags().is_none() {
                    // Counted as dropped, although its headers were received.
                    continue;
                }
                let wanted = keep.get(received).copied().unwrap_or(false);
                received += 1;
                if wanted {
                    kept.push(packet)
                } else {
                    nic.recycle(packet.payload.into_frags())
                }
            }
        }
        let dropped: u64 = nic.drops().iter().map(|(_, count)| count).sum();
        assert_eq!(
            received as u64 + dropped,
            total as u64,
            "a frame is neither a packet nor a counted drop"
        );
    }
    let (home, all) = (memory.free_niovs(), memory.area().count());
    assert_eq!(home, all, "some net_iovs were not returned");
}

fn nic(script: Script, setup: u8) -> Nic {
    let config = NicConfig {
        rx_queues: 2,
        linear_bytes: if setup & LINEAR != 0 { 16 } else { 0 },
        host_mem_bytes: 1 << 20,
        rings: Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            ..NicConfig::default().rings
        },
        ..NicConfig::default()
    };
    Nic::new(Box::new(script), config).expect("these settings are fine")
}

/// Checks that the packet's payload is that of the frame, in host or device memory.
fn check(packet: &RxPacket, frame: &[u8], memory: &MemoryProvider) {
    let from = packet.headers.header_len;
    let Some(frags) = packet.payload.frags() else {
        assert!(packet.headers.payload_len > 0, "it had no payload");
        return;
    };
    let mut expected = &frame[from..from + packet.headers.payload_len];
    for frag in frags {
        let mut bytes = vec![0; frag.len()];
        read(frag, memory, &mut bytes);
        let (here, rest) = expected.split_at(frag.len());
        assert_eq!(bytes, here, "the payload differs from the frame");
        expected = rest;
        if packet.queue == RxQueueId(0) {
            assert!(
                frag.is_readable(),
                "a packet of the unbound queue is in device memory"
            );
        }
    }
    assert!(
        expected.is_empty(),
        "{} bytes of payload are missing",
        expected.len()
    );
}

fn read(frag: &Frag, memory: &MemoryProvider, out: &mut [u8]) {
    if frag.is_readable() {
        frag.copy_to(0, out).expect("it is readable");
    } else {
        let offset = usize::try_from(frag.dmabuf_offset()).expect("the memory is small");
        let memory = memory.observer().upgrade().expect("its provider keeps it");
        memory.device_read(offset, out);
    }
}

/// One frame of the input.
struct Scripted {
    switches: u8,
    bytes: Vec<u8>,
}

fn frames_of(mut input: &[u8]) -> VecDeque<Scripted> {
    let mut frames = VecDeque::new();
    while let [high, low, switches, more, rest @ ..] = input {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (bytes, after) = rest.split_at(len);
        let mut bytes = bytes.to_vec();
        // The period does not divide the size of a net_iov.
        bytes.extend((0..usize::from(*more) * 256).map(|at| (at % 251) as u8));
        if switches & FOR_US != 0
            && let Some(mac) = bytes.get_mut(..6)
        {
            mac.copy_from_slice(&NicConfig::default().mac.0);
        }
        if switches & MEND_CHECKSUM != 0 {
            ipv4_checksum::mend(&mut bytes);
        }
        frames.push_back(Scripted {
            switches: *switches,
            bytes,
        });
        input = after;
    }
    frames
}

/// A link that receives the frames of the input.
struct Script {
    frames: VecDeque<Scripted>,
    /// The last received frame, for the check.
    current: Arc<Mutex<Vec<u8>>>,
}

impl Link for Script {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "script",
            mtu: 1500,
            tso: true,
            max_super_packet: nic::MAX_PACKET_LEN,
            max_rx_packet: nic::BIG_PACKET_LEN,
            tx_checksum: true,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _: Instant) -> io::Result<LinkReceived> {
        let Some(Scripted { switches, bytes }) = self.frames.pop_front() else {
            return Ok(LinkReceived::None);
        };
        let trusted = switches & TRUSTED != 0;
        let checksum = if trusted {
            ChecksumState::Partial(TxChecksum {
                start: 34,
                offset: 16,
            })
        } else {
            ChecksumState::Unknown
        };
        let gso_size = if switches & SUPER != 0 { 1448 } else { 0 };
        let meta = VnetMeta { gso_size, checksum };
        let received = if switches & WHOLE != 0 {
            posted.frame.clear();
            posted.frame.extend_from_slice(&bytes);
            LinkReceived::Frame { meta }
        } else {
            scatter(posted, &bytes);
            LinkReceived::Scattered {
                frame_len: bytes.len(),
                meta,
            }
        };
        *self.current.lock().expect("no panic holds it") = bytes;
        Ok(received)
    }

    fn send(&mut self, _: &TxFrame<'_>, _: Instant) -> io::Result<LinkSent> {
        Ok(LinkSent::Done)
    }
}

/// Fills head, spans and spill in this order, as readv on a TAP does.
fn scatter(posted: &mut Posted<'_>, bytes: &[u8]) {
    let split = posted.predicted_header.min(bytes.len());
    let (head, mut rest) = bytes.split_at(split);
    posted.head.with_vnet(0, split).copy_from_slice(head);
    for span in posted.spans {
        let (here, after) = rest.split_at(rest.len().min(span.len as usize));
        posted.port.copy_in(span.netmem, span.offset, here);
        rest = after;
    }
    posted.spill[..rest.len()].copy_from_slice(rest);
}
