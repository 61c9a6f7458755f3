//! Sending from device memory: each rule of bind-tx and sendmsg in Linux.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a send takes a list of ranges"
)]

use std::net::IpAddr;
use std::ops::Range;

use super::common::{PORT, assert_says};
use super::{DeviceSource, DoorSocket, Pair, Sink, Source};
use devmem_uapi::{
    Cmsg, CmsgIter, CmsgWriter, DmabufId, Errno, MsgFlags, ZerocopyId, ZerocopyRange, cmsg_space,
    sockopt,
};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Pattern, Progress, RecvRoom, Side};
use stack::{ETOOSMALL, FlushScope, Readiness, SendMsg, SocketOption};

const SIZE: usize = 1 << 16;
const ZEROCOPY: MsgFlags = MsgFlags::ZEROCOPY;

/// A connection from A to B, 64 KiB of memory bound for sending at A, SO_ZEROCOPY set.
struct Sending {
    pair: Pair,
    id: DmabufId,
    sender: DoorSocket,
    receiver: DoorSocket,
}

impl Sending {
    fn new() -> Self {
        Self::over(&PairConfig::default(), Side::B.ipv4())
    }

    fn over(config: &PairConfig, ip: IpAddr) -> Self {
        let mut pair = Pair::new(config);
        let id = pair.bind_tx(Side::A, SIZE);
        let (receiver, sender) = pair.connect(Side::B, ip, PORT);
        pair.a
            .set_option(sender, SocketOption::Zerocopy(true))
            .unwrap();
        Self {
            pair,
            id,
            sender,
            receiver,
        }
    }

    fn sendmsg(
        &mut self,
        ranges: &[Range<usize>],
        control: &[u8],
        flags: MsgFlags,
    ) -> Result<usize, Errno> {
        self.pair
            .a
            .sendmsg(self.sender, &SendMsg::device(ranges, control), flags)
    }

    fn send(&mut self, ranges: &[Range<usize>]) -> Result<usize, Errno> {
        let control = naming(self.id);
        self.sendmsg(ranges, &control, ZEROCOPY)
    }

    /// Checks that a send is refused and that nothing was queued or counted.
    fn refused(&mut self, ranges: &[Range<usize>], control: &[u8], flags: MsgFlags) -> Errno {
        let before = self
            .pair
            .a
            .info(self.sender)
            .unwrap()
            .unwrap()
            .notsent_bytes;
        let error = self.sendmsg(ranges, control, flags).unwrap_err();
        assert_eq!(
            self.pair
                .a
                .info(self.sender)
                .unwrap()
                .unwrap()
                .notsent_bytes,
            before
        );
        error
    }

    /// Reads the error queue once.
    fn completion(&mut self) -> Result<ZerocopyRange, Errno> {
        self.pair.a.completion(self.sender)
    }

    /// Reads the error queue once into a buffer of this size; returns the bytes of the control message.
    fn raw_completion(&mut self, room: usize) -> Result<Vec<u8>, Errno> {
        let mut control = vec![0; room];
        let room = RecvRoom {
            host: &mut [],
            len: 0,
            control: &mut control,
        };
        let result = self.pair.a.recvmsg(self.sender, room, MsgFlags::ERRQUEUE)?;
        control.truncate(result.control_bytes);
        Ok(control)
    }

    fn settle(&mut self) {
        self.pair.run_for(std::time::Duration::from_millis(50));
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut host = vec![0; 1 << 20];
        let mut at = 0;
        while at < host.len() {
            let room = RecvRoom {
                len: host.len() - at,
                host: &mut host[at..],
                control: &mut [],
            };
            match self.pair.b.recvmsg(self.receiver, room, MsgFlags::empty()) {
                Ok(result) if result.bytes > 0 => at += result.bytes,
                _ => break,
            }
        }
        host.truncate(at);
        host
    }

    fn finish(mut self) {
        let _ = self.receive();
        let _ = self.pair.a.close(self.sender);
        let _ = self.pair.b.close(self.receiver);
        self.pair.finish();
    }
}

/// The control buffer that names a dma-buf.
fn naming(id: DmabufId) -> Vec<u8> {
    let mut control = vec![0; cmsg_space(4)];
    CmsgWriter::new(&mut control).push_tx_dmabuf(id).unwrap();
    control
}

fn range(lo: u32, hi: u32, copied: bool) -> ZerocopyRange {
    ZerocopyRange {
        lo: ZerocopyId(lo),
        hi: ZerocopyId(hi),
        copied,
    }
}

#[test]
fn ids_of_both_kinds_of_binding_are_drawn_from_the_same_numbers() {
    let mut pair = Pair::new(&PairConfig::default());
    let first = pair.bind_tx(Side::A, 4096);
    let second = pair.bind(Side::A, 1 << 20, NiovSize::DEFAULT, &[0]);
    let third = pair.bind_tx(Side::A, 3 * 4096);
    assert_eq!(
        (first, second, third),
        (DmabufId(1), DmabufId(2), DmabufId(3))
    );
    pair.a.unbind(first).unwrap();
    assert_eq!(pair.a.unbind(first), Err(Errno::EINVAL));
    assert_eq!(pair.a.sends_in_flight(first), None);
    pair.finish();
}

#[test]
fn the_control_message_is_a_plain_u32() {
    let mut sending = Sending::new();
    let id = sending.id.0.to_ne_bytes();
    for payload in [&id[..3], &[id, [0; 4]].concat(), &[]] {
        let mut control = vec![0; 64];
        let mut writer = CmsgWriter::new(&mut control);
        writer
            .push(sockopt::SOL_SOCKET, sockopt::SCM_DEVMEM_DMABUF, payload)
            .unwrap();
        let written = writer.written();
        let errno = sending.refused(&[0..10], &control[..written], ZEROCOPY);
        assert_eq!(errno, Errno::EINVAL, "{} bytes", payload.len());
        assert_says(&sending.pair.a, &["malformed control messages"]);
    }
    sending.finish();
}

#[test]
fn an_unknown_id_and_that_of_a_receive_binding_are_einval() {
    let mut sending = Sending::new();
    let errno = sending.refused(&[0..10], &naming(DmabufId(77)), ZEROCOPY);
    assert_eq!(errno, Errno::EINVAL);
    assert_says(&sending.pair.a, &["under id 77"]);
    let rx = sending.pair.bind(Side::A, 1 << 20, NiovSize::DEFAULT, &[0]);
    let errno = sending.refused(&[0..10], &naming(rx), ZEROCOPY);
    assert_eq!(errno, Errno::EINVAL);
    assert_says(&sending.pair.a, &["bound for receiving"]);
    sending.finish();
}

#[test]
fn without_msg_zerocopy_or_so_zerocopy_it_is_einval() {
    let mut sending = Sending::new();
    let control = naming(sending.id);
    let errno = sending.refused(&[0..10], &control, MsgFlags::empty());
    assert_eq!(errno, Errno::EINVAL);
    assert_says(&sending.pair.a, &["MSG_ZEROCOPY"]);
    sending
        .pair
        .a
        .set_option(sending.sender, SocketOption::Zerocopy(false))
        .unwrap();
    let errno = sending.refused(&[0..10], &control, ZEROCOPY);
    assert_eq!(errno, Errno::EINVAL);
    assert_says(&sending.pair.a, &["SO_ZEROCOPY"]);
    sending.finish();
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
fn ranges_past_the_dmabuf_are_efault_and_none_of_the_others_is_queued() {
    let mut sending = Sending::new();
    let control = naming(sending.id);
    for bad in [
        SIZE..SIZE + 1,
        0..SIZE + 1,
        SIZE - 1..SIZE + 1,
        usize::MAX - 1..usize::MAX,
        10..9,
    ] {
        let errno = sending.refused(&[0..10, bad.clone()], &control, ZEROCOPY);
        assert_eq!(errno, Errno::EFAULT, "{bad:?}");
        assert_says(&sending.pair.a, &["65536 bytes"]);
    }
    assert_eq!(sending.send(&[SIZE - 1..SIZE, SIZE..SIZE]), Ok(1));
    sending.settle();
    assert_eq!(
        sending.completion(),
        Ok(range(0, 0, false)),
        "refusals take no id"
    );
    sending.finish();
}

#[test]
fn addresses_are_no_offsets() {
    let mut sending = Sending::new();
    let control = naming(sending.id);
    let refused = sending.pair.a.sendmsg(
        sending.sender,
        &SendMsg::with_control(b"host", &control),
        ZEROCOPY,
    );
    assert_eq!(refused, Err(Errno::EFAULT));
    sending.finish();
}

#[test]
fn a_message_has_at_most_1024_ranges() {
    let mut sending = Sending::new();
    let ranges: Vec<_> = (0..1025).map(|i| i * 3..i * 3 + 2).collect();
    let errno = sending.refused(&ranges, &naming(sending.id), ZEROCOPY);
    assert_eq!(errno, Errno::EMSGSIZE);
    assert_says(&sending.pair.a, &["1024"]);
    let pattern = Pattern::new(1);
    let mut bytes = vec![0; SIZE];
    pattern.fill(0, &mut bytes);
    sending
        .pair
        .dmabuf(Side::A, sending.id)
        .copy_in(0, &bytes)
        .unwrap();
    assert_eq!(sending.send(&ranges[..1024]), Ok(2048));
    sending.settle();
    let expected: Vec<u8> = ranges[..1024]
        .iter()
        .flat_map(|range| bytes[range.clone()].to_vec())
        .collect();
    assert_eq!(sending.receive(), expected);
    sending.finish();
}

#[test]
fn a_shut_down_a_dead_and_a_listening_socket_refuse() {
    let mut sending = Sending::new();
    let listener = sending
        .pair
        .a
        .listen((Side::A.ipv4(), 9).into(), 1)
        .unwrap();
    let control = naming(sending.id);
    let refused = sending
        .pair
        .a
        .sendmsg(listener, &SendMsg::device(&[0..1], &control), ZEROCOPY)
        .unwrap_err();
    // Linux returns EPIPE for a socket that was never connected (`sk_stream_wait_connect`).
    assert_eq!(refused, Errno::EPIPE);
    sending.pair.a.close(listener).unwrap();
    sending
        .pair
        .a
        .shutdown(sending.sender, std::net::Shutdown::Write)
        .unwrap();
    assert_eq!(sending.refused(&[0..1], &control, ZEROCOPY), Errno::EPIPE);
    sending.finish();
}

#[test]
fn completions_count_sends_from_0_merge_and_come_once() {
    let mut sending = Sending::new();
    assert_eq!(sending.completion(), Err(Errno::EAGAIN));
    assert_eq!(sending.send(&[]), Ok(0));
    assert_eq!(sending.send(&[5..5]), Ok(0));
    for i in 0..3 {
        assert_eq!(sending.send(&[i..i + 100]), Ok(100));
    }
    assert_eq!(
        sending.completion(),
        Err(Errno::EAGAIN),
        "nothing was acknowledged"
    );
    assert_eq!(sending.pair.a.sends_in_flight(sending.id), Some(3));
    sending.settle();
    let ready = sending.pair.a.readiness(sending.sender).unwrap();
    assert!(ready.contains(Readiness::ERROR));
    assert_eq!(sending.pair.a.take_error(sending.sender), Ok(None));
    assert_eq!(sending.pair.a.sends_in_flight(sending.id), Some(0));
    assert_eq!(
        sending.completion(),
        Ok(range(0, 2, false)),
        "merged; sends of nothing are not counted"
    );
    assert_eq!(sending.completion(), Err(Errno::EAGAIN));
    assert!(
        !sending
            .pair
            .a
            .readiness(sending.sender)
            .unwrap()
            .contains(Readiness::ERROR)
    );
    assert_eq!(sending.send(&[0..1]), Ok(1));
    sending.settle();
    assert_eq!(sending.completion(), Ok(range(3, 3, false)));
    sending.finish();
}

#[test]
fn level_and_type_follow_the_family() {
    for (ip, level, ty, len) in [
        (Side::B.ipv4(), sockopt::SOL_IP, sockopt::IP_RECVERR, 32),
        (Side::B.ipv6(), sockopt::SOL_IPV6, sockopt::IPV6_RECVERR, 44),
    ] {
        let mut sending = Sending::over(&PairConfig::default(), ip);
        assert_eq!(sending.send(&[0..4096]), Ok(4096));
        sending.settle();
        assert_eq!(
            sending.raw_completion(40),
            Err(ETOOSMALL),
            "and nothing is lost"
        );
        let control = sending.raw_completion(128).unwrap();
        let Cmsg {
            level: l,
            ty: t,
            data,
        } = CmsgIter::new(&control).next().unwrap();
        assert_eq!((l, t, data.len()), (level, ty, len));
        sending.finish();
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn host_memory_with_msg_zerocopy_is_copied_and_says_so() {
    let mut sending = Sending::new();
    assert_eq!(
        sending
            .pair
            .a
            .sendmsg(sending.sender, &SendMsg::new(b"copied"), ZEROCOPY),
        Ok(6)
    );
    assert_eq!(
        sending.completion(),
        Err(Errno::EAGAIN),
        "the peer has not got it"
    );
    sending.settle();
    assert_eq!(sending.completion(), Ok(range(0, 0, true)));
    assert_eq!(
        sending
            .pair
            .a
            .sendmsg(sending.sender, &SendMsg::new(b"plain"), MsgFlags::empty()),
        Ok(5)
    );
    sending
        .pair
        .dmabuf(Side::A, sending.id)
        .copy_in(0, b"device")
        .unwrap();
    assert_eq!(sending.send(&[0..6]), Ok(6));
    assert_eq!(
        sending
            .pair
            .a
            .sendmsg(sending.sender, &SendMsg::new(b"more"), ZEROCOPY),
        Ok(4)
    );
    sending.settle();
    assert_eq!(
        sending.completion(),
        Ok(range(1, 1, false)),
        "plain sends are not counted"
    );
    assert_eq!(sending.completion(), Ok(range(2, 2, true)));
    assert_eq!(sending.receive(), b"copiedplaindevicemore");
    sending
        .pair
        .a
        .set_option(sending.sender, SocketOption::Zerocopy(false))
        .unwrap();
    assert_eq!(
        sending
            .pair
            .a
            .sendmsg(sending.sender, &SendMsg::new(b"x"), ZEROCOPY),
        Ok(1)
    );
    sending.settle();
    assert_eq!(
        sending.completion(),
        Err(Errno::EAGAIN),
        "the flag alone means nothing"
    );
    sending.finish();
}

#[test]
fn host_and_device_bytes_never_share_a_packet() {
    let config = PairConfig {
        impairment: Some(nic::Impairment::NONE),
        ..PairConfig::default()
    };
    let mut sending = Sending::over(&config, Side::B.ipv4());
    sending
        .pair
        .a
        .set_option(sending.sender, SocketOption::NoDelay(true))
        .unwrap();
    let before = sending
        .pair
        .a
        .info(sending.sender)
        .unwrap()
        .unwrap()
        .segs_out;
    // All are queued before anything is sent: without a boundary they would fit into one packet.
    let mut expected = Vec::new();
    for i in 0..5_usize {
        let byte = [i as u8; 10];
        sending
            .pair
            .dmabuf(Side::A, sending.id)
            .copy_in(i * 10, &byte)
            .unwrap();
        assert_eq!(
            sending
                .pair
                .a
                .sendmsg(sending.sender, &SendMsg::new(b"host"), MsgFlags::empty()),
            Ok(4)
        );
        assert_eq!(sending.send(&[i * 10..i * 10 + 10]), Ok(10));
        expected.extend_from_slice(b"host");
        expected.extend_from_slice(&byte);
    }
    sending.settle();
    let sent = sending
        .pair
        .a
        .info(sending.sender)
        .unwrap()
        .unwrap()
        .segs_out
        - before;
    assert_eq!(sent, 10, "one packet for each piece");
    assert_eq!(sending.receive(), expected);
    sending.finish();
}

#[test]
fn many_unread_completions_are_a_bound_on_sends_and_not_on_memory() {
    let mut sending = Sending::new();
    let control = naming(sending.id);
    let mut sends = 0;
    // Alternating kinds do not merge.
    let refused = loop {
        let sent = match sends % 2 {
            0 => sending
                .pair
                .a
                .sendmsg(sending.sender, &SendMsg::new(b"h"), ZEROCOPY),
            _ => sending.sendmsg(&[0..1], &control, ZEROCOPY),
        };
        match sent {
            Ok(_) => sends += 1,
            Err(Errno::EAGAIN) => {
                sending.settle();
                let _ = sending.receive();
            }
            Err(errno) => break errno,
        }
        assert!(sends <= stack::MAX_ZEROCOPY_SENDS);
    };
    assert_eq!(
        (refused, sends),
        (Errno::ENOBUFS, stack::MAX_ZEROCOPY_SENDS)
    );
    let mut read = 0;
    for _ in 0..100 {
        sending.settle();
        let _ = sending.receive();
        while sending.completion().is_ok() {
            read += 1;
        }
    }
    assert_eq!(read, sends);
    assert_eq!(sending.send(&[0..1]), Ok(1));
    sending.settle();
    sending.finish();
}

#[test]
fn sends_before_an_unbind_still_arrive() {
    let mut sending = Sending::new();
    let bytes = vec![7; SIZE];
    sending
        .pair
        .dmabuf(Side::A, sending.id)
        .copy_in(0, &bytes)
        .unwrap();
    assert_eq!(sending.send(&[0..SIZE]), Ok(SIZE));
    sending.pair.a.unbind(sending.id).unwrap();
    assert_eq!(sending.send(&[0..1]), Err(Errno::EINVAL));
    sending.settle();
    assert_eq!(sending.receive(), bytes);
    sending.settle();
    assert_eq!(sending.completion(), Ok(range(0, 0, false)));
    sending.finish();
}

#[test]
fn two_way_host_and_device_streams_mix_on_one_socket() {
    let mut pair = Pair::new(&PairConfig::default());
    let id = pair.bind_tx(Side::A, SIZE);
    let (b, a) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let (to_b, to_a) = (Pattern::new(1), Pattern::new(2));
    let memory = pair.dmabuf(Side::A, id).clone();
    let mut device =
        DeviceSource::new(&mut pair.a, a, id, &memory, to_b, 900_000).in_chunks_of(3000);
    drop(memory);
    let mut host = Source::new(b, to_a, 700_000, 5000);
    let (mut sink_a, mut sink_b) = (Sink::new(a, to_a), Sink::new(b, to_b));
    pair.run(|pair| {
        let at_a = device.run(&mut pair.a).and(sink_a.run(&mut pair.a));
        at_a.and(host.run(&mut pair.b)).and(sink_b.run(&mut pair.b))
    })
    .unwrap();
    assert_eq!(
        (sink_a.report().bytes(), sink_b.report().bytes()),
        (700_000, 900_000)
    );
    drop(device);
    pair.a.close(a).unwrap();
    pair.b.close(b).unwrap();
    pair.finish();
}

#[test]
fn a_program_that_calls_in_every_turn_does_not_put_off_retransmission() {
    let mut sending = Sending::new();
    assert_eq!(sending.send(&[0..1000]), Ok(1000));
    let now = sending.pair.now();
    sending.pair.a.stack_mut().flush(FlushScope::All, now);
    // Packets in flight are lost, and neither side notices that the cable was disconnected.
    sending.pair.cable().pull();
    sending.pair.cable().plug();
    let (sender, receiver) = (sending.sender, sending.receiver);
    let mut turns = 0;
    let arrived = sending.pair.run(|pair| {
        turns += 1;
        assert!(turns < 200_000, "one second, and nothing was sent again");
        // Any call that makes the next poll serve the socket.
        let nodelay = SocketOption::NoDelay(turns % 2 == 0);
        pair.a.set_option(sender, nodelay).unwrap();
        match super::common::readable(&pair.b, receiver) {
            1000 => Progress::Done,
            _ => Progress::Worked,
        }
    });
    assert_eq!(arrived, Ok(()));
    sending.settle();
    sending.finish();
}
