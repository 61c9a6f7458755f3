//! TCP Fast Open (RFC 7413) between two stacks: payload in SYNs, from host and device memory.

use std::net::SocketAddr;
use std::time::Duration;

use devmem_uapi::{CmsgWriter, DmabufId, DmabufToken, Errno, MsgFlags, cmsg_space};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Pattern, Side};
use nic::{Impairment, Probability};
use stack::{EarlyCookie, SendMsg, SocketId, SocketOption};

use crate::scenarios::Pair;
use crate::scenarios::common::{PORT, RecvArgs, recv};

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;
const REMOTE: fn() -> SocketAddr = || SocketAddr::new(Side::B.ipv4(), PORT);

/// Opens a connection with Fast Open, whose SYN takes payload until the next poll.
fn connect_early(pair: &mut Pair, cookie: EarlyCookie) -> SocketId {
    let now = pair.now();
    let stack = pair.a.stack_mut();
    let options = stack.tcp_config().settings;
    stack
        .connect_from(None, REMOTE(), &options, Some(cookie), now)
        .unwrap()
}

/// A pair whose side B listens with Fast Open, and whose side A has its cookie.
fn with_cookie(config: &PairConfig) -> (Pair, SocketId) {
    let mut pair = Pair::new(config);
    let listener = pair.b.listen(REMOTE(), 3).unwrap();
    let allowed = pair
        .b
        .stack_mut()
        .change_fast_open(listener, |listener| listener.queue_len = Some(5));
    allowed.unwrap();
    let first = connect_early(&mut pair, EarlyCookie::Needed);
    let message = SendMsg::new(b"early");
    let sent = pair.a.sendmsg(first, &message, MsgFlags::empty());
    assert_eq!(sent, Err(Errno::EAGAIN), "no cookie yet");
    pair.run_for(Duration::from_secs(20));
    let (accepted, _) = pair.b.accept(listener).unwrap();
    pair.a.close(first).unwrap();
    pair.b.close(accepted).unwrap();
    pair.run_for(Duration::from_secs(120));
    (pair, listener)
}

/// Queues `len` bytes of device memory of side A; returns its binding.
fn send_from_device(pair: &mut Pair, id: SocketId, len: usize, pattern: Pattern) -> DmabufId {
    let dmabuf = pair.bind_tx(Side::A, 1 << 20);
    let mut bytes = vec![0; len];
    pattern.fill(0, &mut bytes);
    let memory = pair.dmabuf(Side::A, dmabuf);
    // Two ranges, the second from the middle of a net_iov.
    let ranges = [0..len / 2, 10_000..10_000 + len - len / 2];
    memory.copy_in(ranges[0].start, &bytes[..len / 2]).unwrap();
    memory.copy_in(ranges[1].start, &bytes[len / 2..]).unwrap();
    let mut control = vec![0; cmsg_space(size_of::<u32>())];
    CmsgWriter::new(&mut control)
        .push_tx_dmabuf(dmabuf)
        .unwrap();
    pair.a.set_option(id, SocketOption::Zerocopy(true)).unwrap();
    let message = SendMsg::device(&ranges, &control);
    assert_eq!(pair.a.sendmsg(id, &message, MsgFlags::ZEROCOPY), Ok(len));
    dmabuf
}

#[test]
fn device_memory_in_a_syn_arrives_in_device_memory() {
    let (mut pair, listener) = with_cookie(&PairConfig::default());
    let rx = pair.bind(Side::B, 4 << 20, NiovSize::DEFAULT, &[0]);
    let pattern = Pattern::new(7);
    let id = connect_early(&mut pair, EarlyCookie::Needed);
    send_from_device(&mut pair, id, 1000, pattern);
    pair.run_for(Duration::from_millis(20));
    let (accepted, _) = pair.b.accept(listener).unwrap();
    let received = recv(&mut pair.b, accepted, &mut RecvArgs::new(4096, 8, DEVMEM)).unwrap();
    let mut position = 0;
    for frag in received.frags() {
        let range = frag.frag_offset as usize..(frag.frag_offset + frag.frag_size as u64) as usize;
        let bytes = pair.dmabuf(Side::B, rx).slice(range).to_vec();
        pattern.check(position, &bytes).unwrap();
        position += bytes.len() as u64;
    }
    assert_eq!((position, received.host.len()), (1000, 0));
    let info = pair.a.info(id).unwrap().unwrap();
    assert!(info.syn_data_acked && info.bytes_retrans == 0);
    assert_eq!(pair.a.stack_mut().completion(id).unwrap().hi.0, 0);
    for frag in received.frags() {
        let one = DmabufToken::one(frag.frag_token);
        assert_eq!(pair.b.dontneed(accepted, &[one]), Ok(1));
    }
    for (side, id) in [(Side::A, id), (Side::B, accepted), (Side::B, listener)] {
        pair.side(side).close(id).unwrap();
    }
    pair.finish();
}

#[test]
fn the_payload_of_syns_survives_a_bad_path() {
    for seed in 0..40 {
        let impairment = Impairment {
            loss: Probability::from_ppm(200_000).unwrap(),
            reorder: Probability::from_ppm(100_000).unwrap(),
            ..Impairment::default()
        };
        let config = PairConfig {
            seed,
            impairment: Some(impairment),
            ..PairConfig::default()
        };
        let (mut pair, listener) = with_cookie(&config);
        let id = connect_early(&mut pair, EarlyCookie::NotNeeded);
        let pattern = Pattern::new(seed);
        send_from_device(&mut pair, id, 400, pattern);
        pair.run_for(Duration::from_secs(60));
        let (accepted, _) = pair.b.accept(listener).unwrap();
        let args = &mut RecvArgs::new(4096, 8, DEVMEM);
        let received = recv(&mut pair.b, accepted, args).unwrap();
        assert_eq!(received.host.len(), 400, "seed {seed}");
        pattern.check(0, &received.host).unwrap();
        for (side, id) in [(Side::A, id), (Side::B, accepted), (Side::B, listener)] {
            pair.side(side).close(id).unwrap();
        }
        pair.finish();
    }
}

#[test]
fn timeouts_of_an_early_connection_pause_fast_open() {
    let (mut pair, _listener) = with_cookie(&PairConfig::default());
    let pause = Duration::from_secs(60);
    let mut config = pair.a.stack_mut().tcp_config().clone();
    config.fast_open.blackhole_timeout = pause;
    pair.a.stack_mut().set_tcp_config(config);
    let mut now = pair.now();
    let peer = Side::B.ipv4();
    let uses = |pair: &mut Pair, now| {
        let stack = pair.a.stack_mut();
        stack.has_early_cookie(peer, EarlyCookie::Needed, now)
    };
    assert!(uses(&mut pair, now));
    let id = connect_early(&mut pair, EarlyCookie::Needed);
    let message = SendMsg::new(b"early");
    assert_eq!(pair.a.sendmsg(id, &message, MsgFlags::empty()), Ok(5));
    // Side B is never polled: the path drops everything.
    let mut paused_at = None;
    for _ in 0..100 {
        pair.a.stack_mut().poll(now);
        if !uses(&mut pair, now) {
            paused_at = Some(now);
            break;
        }
        now = pair.a.stack_mut().next_deadline().unwrap();
    }
    let paused_at = paused_at.expect("two SYNs had no answer");
    assert!(!uses(
        &mut pair,
        paused_at + pause - Duration::from_millis(1)
    ));
    assert!(uses(&mut pair, paused_at + pause));
}
