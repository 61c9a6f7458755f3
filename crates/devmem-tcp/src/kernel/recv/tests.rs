//! Frags of net_iovs of a page and more, from the kernel's control messages to the program's bytes. No NIC here has the larger ones, so a
//! NIC and the kernel's socket are played.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use devmem_linux::socket::ReceivedMessage;
use devmem_uapi::{CmsgSink, CmsgWriter, DevmemCmsg, DmabufCmsg, DmabufId, FragToken, TokenRanges};
use netmem::Dmabuf;

use super::super::nic::Nic;
use super::super::rights::Rights;
use super::*;
use crate::batch::RxBatch;

const NIOVS: usize = 16;
const DMABUF: DmabufId = DmabufId(7);
const PAGE: usize = 4096;

/// Packets that a NIC has written to net_iovs, one after another, and the socket that they are queued at.
struct Played {
    memory: Dmabuf,
    stream: Vec<u8>,
    /// Ranges of the memory that are not received yet, in stream order: none in two net_iovs.
    queued: Vec<Range<usize>>,
    tokens: u32,
}

impl Played {
    /// Fills the net_iovs, which the pool gives in no order, with packets of these sizes in turn.
    fn new(niov: usize, packets: &[usize]) -> Self {
        let memory = Dmabuf::anonymous(NIOVS * niov).unwrap();
        let mut niovs = (0..NIOVS).map(|turn| turn * 5 % NIOVS * niov);
        let mut free = 0..0;
        let (mut queued, mut stream) = (Vec::new(), Vec::new());
        'packets: for packet in packets.iter().cycle() {
            let mut left = *packet;
            while left > 0 {
                if free.is_empty() {
                    let Some(start) = niovs.next() else {
                        break 'packets;
                    };
                    free = start..start + niov;
                }
                let end = free.end.min(free.start + left);
                let frag = free.start..end;
                free.start = end;
                left -= frag.len();
                let at = stream.len();
                stream.extend((at..at + frag.len()).map(random));
                memory.copy_in(frag.start, &stream[at..]).unwrap();
                queued.push(frag);
            }
            // The next packet begins at a cache line.
            free.start = free.start.next_multiple_of(64).min(free.end);
        }
        Self {
            memory,
            stream,
            queued,
            tokens: 0,
        }
    }

    /// Writes the control messages of a receive of at most so many bytes and frags; a frag that is too long is cut, and each part has its
    /// token (linux net/ipv4/tcp.c `tcp_recvmsg_dmabuf`). Returns the number of bytes.
    fn recvmsg(&mut self, max_bytes: usize, max_frags: usize, control: &mut Vec<u8>) -> usize {
        control.resize(space_for(max_frags), 0);
        let mut writer = CmsgWriter::new(control);
        let mut bytes = 0;
        while bytes < max_bytes {
            let Some(frag) = self.queued.first_mut() else {
                break;
            };
            let end = frag.end.min(frag.start + max_bytes - bytes);
            let message = DmabufCmsg {
                frag_offset: frag.start as u64,
                frag_size: u32::try_from(end - frag.start).unwrap(),
                frag_token: FragToken(self.tokens + 1),
                dmabuf_id: DMABUF,
                flags: 0,
            };
            if CmsgSink::push(&mut writer, DevmemCmsg::Dmabuf(message)).is_err() {
                break;
            }
            self.tokens += 1;
            bytes += end - frag.start;
            frag.start = end;
            if frag.start == frag.end {
                self.queued.remove(0);
            }
        }
        let written = writer.written();
        control.truncate(written);
        bytes
    }
}

/// Returns the byte at an offset of the stream.
fn random(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Receives all that is queued in batches, and checks each byte at its place. Returns the frags.
fn receive_all(played: &mut Played, socket: &Arc<Socket>) -> Vec<Range<usize>> {
    let mut frags = Vec::new();
    let mut returns = TokenRanges::default();
    let target = Dmabuf::anonymous(played.memory.size()).unwrap();
    let mut done = 0;
    let mut control = Vec::new();
    loop {
        let bytes = played.recvmsg(100_001, 7, &mut control);
        let parsed = ReceivedMessage::parse(bytes, MsgFlags::SOCK_DEVMEM, &control, &[]).unwrap();
        let mut received = Frags::with_capacity(7);
        received.linear_bytes = deliver(&mut received.items, parsed.content);
        let batch = RxBatch::lent(received, Arc::clone(socket).into());
        assert_eq!((batch.device_bytes(), batch.linear_bytes()), (bytes, 0));
        if bytes == 0 {
            break;
        }
        let expected = &played.stream[done..done + bytes];
        assert_eq!(batch.gather_into(&target, done).unwrap(), bytes);
        assert!(target.slice(done..done + bytes).to_vec() == expected);
        let mut copied = vec![0; bytes];
        batch.copy_to(&mut copied).unwrap();
        assert!(copied == expected, "{done}");
        for (range, token) in batch.tokens() {
            frags.push(range);
            returns.push(FragToken(token));
        }
        done += bytes;
    }
    assert_eq!(done, played.stream.len());
    let freed = returns.flush(|ranges| Ok::<_, Errno>(ranges.iter().map(|r| r.token_count).sum()));
    assert_eq!(freed.unwrap().missing(), 0);
    assert_eq!(frags.len(), played.tokens as usize);
    frags
}

/// A socket whose interface knows the memory of the binding.
fn socket(memory: &Dmabuf) -> Arc<Socket> {
    let nic = Nic::by_name("lo", Rights::All).unwrap();
    nic.known().memories.insert(DMABUF, memory.observer());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    Socket::new(stream.into(), &nic)
}

#[test]
fn net_iovs_of_4_16_and_64_kib_are_received_byte_exact() {
    for niov in [PAGE, 16 << 10, 64 << 10] {
        // Packets of Ethernet, jumbo frames, and coalesced ones.
        for packets in [&[1448, 1448, 37][..], &[8948], &[65_160, 1, 23_000]] {
            let mut played = Played::new(niov, packets);
            let socket = socket(&played.memory);
            let frags = receive_all(&mut played, &socket);
            let inside = frags.iter().any(|frag| frag.start % niov >= PAGE);
            assert_eq!(inside, niov > PAGE, "frags begin behind the first page");
        }
    }
}

#[test]
fn a_frag_is_as_long_as_its_net_iov() {
    for niov in [PAGE, 16 << 10, 64 << 10] {
        let mut played = Played::new(niov, &[niov]);
        let socket = socket(&played.memory);
        let frags = receive_all(&mut played, &socket);
        let longest = frags.iter().map(Range::len).max();
        assert_eq!(longest, Some(niov));
    }
}
