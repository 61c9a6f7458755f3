//! Features of the stack's Rust interface only: events, merged frags, typed sinks, typed errors.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use devmem_uapi::{DevmemCmsg, Errno, MsgFlags};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Side};
use stack::{Readiness, SendMsg, SocketOption, Stopped};

use crate::scenarios::Pair;
use crate::scenarios::common::{Bound, PORT};

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;

fn local(side: Side) -> SocketAddr {
    SocketAddr::new(side.ipv4(), PORT)
}

fn with_linear() -> Bound {
    Bound::new(&PairConfig {
        linear_bytes: 16,
        ..PairConfig::default()
    })
}

#[test]
fn events_name_each_changed_socket_once() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.pair.b.stack_mut().take_events().for_each(drop);
    bound.send(100);
    bound.send(100);
    let events: Vec<_> = bound.pair.b.stack_mut().take_events().collect();
    assert_eq!(events, [bound.receiver]);
    assert_eq!(bound.pair.b.stack_mut().take_events().count(), 0);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    bound.give_back(&received);
    let events: Vec<_> = bound.pair.b.stack_mut().take_events().collect();
    assert_eq!(events, [bound.receiver], "it is not readable any more");
    bound.finish();
}

#[test]
fn events_of_a_connection_begin_when_a_program_accepts_it() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen(local(Side::B), 3).unwrap();
    let now = pair.now();
    let opener = pair.a.connect(local(Side::B), now).unwrap();
    pair.run_for(Duration::from_millis(10));
    pair.a
        .sendmsg(opener, &SendMsg::new(b"early"), MsgFlags::empty())
        .unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(
        pair.b.stack_mut().take_events().collect::<Vec<_>>(),
        [listener]
    );
    let (id, _) = pair.b.accept(listener).unwrap();
    let events: Vec<_> = pair.b.stack_mut().take_events().collect();
    assert!(
        events.contains(&id) && events.contains(&listener),
        "{events:?}"
    );
    assert!(pair.b.readiness(id).unwrap().contains(Readiness::READABLE));
    for (side, id) in [(Side::A, opener), (Side::B, id), (Side::B, listener)] {
        pair.side(side).close(id).unwrap();
    }
    pair.finish();
}

#[test]
fn a_larger_send_buffer_is_an_event_at_once() {
    let mut bound = Bound::new(&PairConfig::default());
    let (sender, stack) = (bound.sender, bound.pair.a.stack_mut());
    let bytes = [7; 64 << 10];
    while stack
        .sendmsg(sender, &SendMsg::new(&bytes), MsgFlags::empty())
        .is_ok()
    {}
    assert!(
        !stack
            .readiness(sender)
            .unwrap()
            .contains(Readiness::WRITABLE)
    );
    stack.take_events().for_each(drop);
    stack
        .set_option(sender, SocketOption::SndBuf(64 << 20))
        .unwrap();
    assert!(
        stack
            .readiness(sender)
            .unwrap()
            .contains(Readiness::WRITABLE)
    );
    assert_eq!(stack.take_events().collect::<Vec<_>>(), [sender]);
    stack.abort(sender).unwrap();
    bound.finish();
}

#[test]
fn a_stale_id_is_ebadf_for_every_call() {
    let mut bound = Bound::new(&PairConfig::default());
    let id = bound.receiver;
    let stack = bound.pair.b.stack_mut();
    stack.close(id).unwrap();
    let errnos = [
        stack.close(id).unwrap_err().errno(),
        stack.abort(id).unwrap_err().errno(),
        stack.shutdown(id, Shutdown::Both).unwrap_err().errno(),
        stack.accept(id).unwrap_err().errno(),
        stack
            .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
            .unwrap_err()
            .errno(),
        stack.dontneed(id, &[]).unwrap_err().errno(),
        stack.dontneed_bytes(id, &[1]).unwrap_err().errno(),
        stack
            .set_option(id, SocketOption::NoDelay(true))
            .unwrap_err()
            .errno(),
        stack.has_nodelay(id).unwrap_err().errno(),
        stack.readiness(id).unwrap_err().errno(),
        stack.info(id).unwrap_err().errno(),
        stack.local_addr(id).unwrap_err().errno(),
        stack.peer_addr(id).unwrap_err().errno(),
        stack.take_error(id).unwrap_err().errno(),
    ];
    assert_eq!(errnos, [Errno::EBADF; 14]);
    bound.finish();
}

#[test]
fn touching_frags_are_not_merged_unless_asked_for() {
    for (merge, messages) in [(false, 4), (true, 1)] {
        let mut bound = Bound::new(&PairConfig::default());
        bound
            .pair
            .b
            .set_option(bound.receiver, SocketOption::MergeFrags(merge))
            .unwrap();
        // Whole cache lines: each packet begins where the one before ends.
        for _ in 0..4 {
            bound.send(640);
        }
        let received = bound.recv(4096, 8, DEVMEM).unwrap();
        let sizes: Vec<_> = received.frags().iter().map(|frag| frag.frag_size).collect();
        assert_eq!(
            (sizes.len(), sizes.iter().sum::<u32>()),
            (messages, 2560),
            "{received:?}"
        );
        let mut position = 0;
        for frag in received.frags() {
            bound.check_frag(&frag, position);
            position += u64::from(frag.frag_size);
        }
        bound.give_back(&received);
        bound.finish();
    }
}

#[test]
fn a_merged_frag_across_net_iovs_keeps_both_at_home_until_its_one_token_is_back() {
    let mut bound = Bound::with_memory(&PairConfig::default(), 1 << 20, NiovSize::MIN);
    bound
        .pair
        .b
        .set_option(bound.receiver, SocketOption::MergeFrags(true))
        .unwrap();
    bound.send(20_000);
    let received = bound.recv(65_536, 64, DEVMEM).unwrap();
    assert!(received.frags().len() < 5, "{received:?}");
    let mut position = 0;
    for frag in received.frags() {
        bound.check_frag(&frag, position);
        position += u64::from(frag.frag_size);
    }
    assert_eq!(position, 20_000);
    bound.give_back(&received);
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(0));
    bound.finish();
}

#[test]
fn a_typed_sink_is_served_by_the_same_path() {
    struct Typed(Vec<DevmemCmsg>, usize);
    impl devmem_uapi::CmsgSink for Typed {
        fn push(&mut self, cmsg: DevmemCmsg) -> Result<(), devmem_uapi::NoSpace> {
            self.0.push(cmsg);
            Ok(())
        }
        fn room(&self) -> usize {
            self.1 - self.0.len()
        }
    }
    let mut bound = with_linear();
    bound.send(500);
    let mut sink = Typed(Vec::new(), 1);
    let mut host = [0; 64];
    let mut msg = stack::RecvMsg::with_len(&mut host, 4096);
    let outcome = bound
        .pair
        .b
        .stack_mut()
        .recvmsg(bound.receiver, &mut msg, &mut sink, DEVMEM)
        .unwrap();
    assert_eq!(
        (outcome.bytes, outcome.stopped, sink.0),
        (16, Stopped::ControlFull, vec![DevmemCmsg::Linear(16)])
    );
    bound.finish();
}

#[test]
fn offsets_without_a_name_of_their_memory_are_efault() {
    let mut pair = Pair::new(&PairConfig::default());
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let ranges = [0..10, 20..30];
    let msg = SendMsg::device(&ranges, &[]);
    let sent = pair.a.sendmsg(sender, &msg, MsgFlags::ZEROCOPY);
    assert_eq!(sent, Err(Errno::EFAULT));
    pair.a.close(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
