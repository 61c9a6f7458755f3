//! bind-rx and bind-tx: each refusal of the kernel.

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, NiovSize};
use netsim::{Door as _, PairConfig};
use nic::{Rings, TcpDataSplit};
use stack::{BindRx, BindRxError, Stack, UnbindRxError};
use steer::RxQueueId;

use crate::scenarios::Pair;

fn pair(rx_queues: u16) -> Pair {
    Pair::new(&PairConfig {
        rx_queues,
        ..PairConfig::default()
    })
}

/// A request that is accepted if header split is on.
fn request(queues: &[u16]) -> BindRx {
    BindRx {
        dmabuf: Dmabuf::anonymous(1 << 20).unwrap(),
        niov_size: NiovSize::DEFAULT,
        queues: queues.iter().copied().map(RxQueueId).collect(),
    }
}

fn set_rings(stack: &mut Stack, tcp_data_split: TcpDataSplit) {
    let rings = Rings {
        tcp_data_split,
        ..stack.nic().rings()
    };
    stack.nic_mut().set_rings(rings).unwrap();
}

fn bound_queues(stack: &Stack) -> Vec<Option<DmabufId>> {
    let queues = 0..stack.nic().rx_queue_count();
    queues
        .map(|queue| stack.nic().queue_info(RxQueueId(queue)).unwrap().dmabuf)
        .collect()
}

/// Checks that a request is refused with this errno and a message that contains the remedy, and that nothing has
/// changed.
fn refused(stack: &mut Stack, request: BindRx, errno: Errno, words: &[&str]) -> BindRxError {
    let before = bound_queues(stack);
    let observer = request.dmabuf.observer();
    let error = stack.bind_rx(request).unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    let text = format!("{error}; {}", error.remedy().unwrap_or_default());
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert_eq!(bound_queues(stack), before);
    assert!(observer.is_freed(), "a refused bind keeps no memory");
    error
}

#[test]
fn no_queue_at_all_is_einval_before_anything_else() {
    let mut pair = pair(1);
    refused(
        pair.b.stack_mut(),
        request(&[]),
        Errno::EINVAL,
        &["at least one rx queue"],
    );
}

#[test]
fn a_queue_past_the_last_is_einval_before_the_memory_is_looked_at() {
    let mut pair = pair(2);
    let mut wrong = request(&[0, 2]);
    wrong.dmabuf = Dmabuf::anonymous(4096).unwrap();
    refused(
        pair.b.stack_mut(),
        wrong,
        Errno::EINVAL,
        &["rx queue 2", "there are 2"],
    );
}

#[test]
fn memory_that_is_not_whole_net_iovs_is_einval_before_header_split_is_looked_at() {
    let mut pair = pair(1);
    for bytes in [4096, 65_536 + 4096, 3 * 65_536 - 4096] {
        let mut wrong = request(&[0]);
        wrong.dmabuf = Dmabuf::anonymous(bytes).unwrap();
        let error = refused(
            pair.b.stack_mut(),
            wrong,
            Errno::EINVAL,
            &["net_iov", "multiple", "take"],
        );
        assert!(matches!(error, BindRxError::Geometry(_)));
    }
}

#[test]
fn header_split_off_or_never_set_is_einval_with_the_kernels_words() {
    let mut pair = pair(1);
    for setting in [TcpDataSplit::Auto, TcpDataSplit::Disabled] {
        set_rings(pair.b.stack_mut(), setting);
        let words = [
            "tcp-data-split is disabled",
            "rx queue 0",
            "set tcp-data-split on",
        ];
        refused(pair.b.stack_mut(), request(&[0]), Errno::EINVAL, &words);
    }
}

#[test]
fn a_bound_queue_is_eexist_and_the_holder_is_named() {
    let mut pair = pair(2);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let id = pair.b.stack_mut().bind_rx(request(&[1])).unwrap();
    let error = refused(
        pair.b.stack_mut(),
        request(&[0, 1]),
        Errno::EEXIST,
        &["rx queue 1", "dma-buf 1", "unbind"],
    );
    assert!(matches!(error, BindRxError::QueueTaken { queue: RxQueueId(1), by } if by == id));
}

#[test]
fn a_queue_named_twice_is_eexist_and_the_first_restart_is_undone() {
    let mut pair = pair(2);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    refused(
        pair.b.stack_mut(),
        request(&[0, 1, 0]),
        Errno::EEXIST,
        &["rx queue 0"],
    );
    assert_eq!(bound_queues(pair.b.stack_mut()), [None, None]);
}

#[test]
fn a_queue_that_cannot_be_restarted_undoes_the_ones_before() {
    let mut pair = pair(3);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    // Sixteen net_iovs: the first two queues post all of them, and none is left for the third.
    let mut small = request(&[0, 1, 2]);
    small.dmabuf = Dmabuf::anonymous(2 * 65_536).unwrap();
    let error = refused(
        pair.b.stack_mut(),
        small,
        Errno::ENOMEM,
        &["could not be restarted"],
    );
    assert!(matches!(error, BindRxError::Restart { .. }), "{error}");
    assert_eq!(bound_queues(pair.b.stack_mut()), [None, None, None]);
}

#[test]
fn ids_are_cyclic_from_one_and_a_refused_bind_uses_none_up() {
    let mut pair = pair(1);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    for expected in 1..4 {
        assert!(pair.b.stack_mut().bind_rx(request(&[9])).is_err());
        let id = pair.b.stack_mut().bind_rx(request(&[0])).unwrap();
        assert_eq!(id, DmabufId(expected));
        pair.b.stack_mut().unbind_rx(id).unwrap();
    }
}

#[test]
fn unbinding_an_unknown_binding_is_einval() {
    let mut pair = pair(1);
    let error = pair.b.stack_mut().unbind_rx(DmabufId(1)).unwrap_err();
    assert!(matches!(error, UnbindRxError::Unknown(_)));
    assert_eq!(error.errno(), Errno::EINVAL);
}

#[test]
fn settings_that_a_binding_needs_cannot_be_changed() {
    let mut pair = pair(2);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let id = pair.b.stack_mut().bind_rx(request(&[1])).unwrap();
    let nic = pair.b.stack_mut().nic_mut();
    let rings = nic.rings();
    assert!(
        nic.set_rings(Rings {
            tcp_data_split: TcpDataSplit::Auto,
            ..rings
        })
        .is_err()
    );
    pair.b.stack_mut().unbind_rx(id).unwrap();
    let off = Rings {
        tcp_data_split: TcpDataSplit::Auto,
        ..rings
    };
    assert!(pair.b.stack_mut().nic_mut().set_rings(off).is_ok());
}

#[test]
fn unbinding_frees_the_memory_when_nothing_is_out() {
    let mut pair = pair(1);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let request = request(&[0]);
    let observer = request.dmabuf.observer();
    let id = pair.b.stack_mut().bind_rx(request).unwrap();
    assert!(pair.b.stack_mut().provider(id).is_some());
    assert!(!observer.is_freed());
    pair.b.stack_mut().unbind_rx(id).unwrap();
    assert!(observer.is_freed());
    assert!(pair.b.stack_mut().provider(id).is_none());
}

/// Sends from `a` to `b`, where queue 0 is bound; returns the socket that has received the bytes.
fn lend(pair: &mut Pair, bytes: &[u8]) -> (stack::SocketId, Vec<devmem_uapi::DmabufCmsg>) {
    let address = "10.77.0.2:80".parse().unwrap();
    let now = pair.now();
    let listener = pair.b.stack_mut().listen(address, 1).unwrap();
    let client = pair.a.stack_mut().connect(address, now).unwrap();
    pair.run_until_idle().unwrap();
    let server = pair.b.stack_mut().accept(listener).unwrap().0;
    let message = stack::SendMsg::new(bytes);
    let flags = devmem_uapi::MsgFlags::empty();
    pair.a.stack_mut().sendmsg(client, &message, flags).unwrap();
    pair.run_until_idle().unwrap();
    let mut host = [0; 64];
    let mut message = stack::RecvMsg::with_len(&mut host, usize::MAX);
    let mut control = [0; 256];
    let mut messages = devmem_uapi::CmsgWriter::new(&mut control);
    let flags = devmem_uapi::MsgFlags::SOCK_DEVMEM;
    let received = pair
        .b
        .stack_mut()
        .recvmsg(server, &mut message, &mut messages, flags)
        .unwrap();
    assert_eq!(received.bytes, bytes.len());
    let frag = |cmsg: devmem_uapi::Cmsg<'_>| match devmem_uapi::DevmemCmsg::parse(&cmsg) {
        Some(devmem_uapi::DevmemCmsg::Dmabuf(frag)) => frag,
        other => panic!("it is split: {other:?}"),
    };
    (
        server,
        devmem_uapi::CmsgIter::new(&control).map(frag).collect(),
    )
}

#[test]
fn memory_that_is_bound_is_ebusy_on_other_queues_and_other_stacks() {
    let mut pair = pair(3);
    set_rings(pair.a.stack_mut(), TcpDataSplit::Enabled);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let first = request(&[1]);
    let again = |queues: &[u16]| BindRx {
        dmabuf: first.dmabuf.clone(),
        ..request(queues)
    };
    let id = pair.b.stack_mut().bind_rx(again(&[1])).unwrap();
    let words = [
        "bound for receiving already",
        "rx queue 1",
        "10.77.0.2",
        "other memory",
    ];
    for stack in [pair.a.stack_mut(), pair.b.stack_mut()] {
        let before = bound_queues(stack);
        let error = stack.bind_rx(again(&[2])).unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY, "{error}");
        let text = format!("{error}; {}", error.remedy().unwrap_or_default());
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(bound_queues(stack), before);
    }
    // The refusals of the kernel come first.
    let taken = pair.b.stack_mut().bind_rx(again(&[1])).unwrap_err();
    assert_eq!(taken.errno(), Errno::EEXIST);
    let none = pair.b.stack_mut().bind_rx(again(&[9])).unwrap_err();
    assert_eq!(none.errno(), Errno::EINVAL);
    // Sending from bound memory is allowed; the end of the binding frees the memory.
    pair.b.stack_mut().bind_tx(&first.dmabuf).unwrap();
    pair.b.stack_mut().unbind_rx(id).unwrap();
    pair.a.stack_mut().bind_rx(again(&[2])).unwrap();
}

#[test]
fn memory_with_a_lent_frag_is_ebusy_until_its_token_is_given_back() {
    let mut pair = pair(1);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let first = request(&[0]);
    let memory = first.dmabuf.clone();
    let again = || BindRx {
        dmabuf: memory.clone(),
        ..request(&[0])
    };
    let id = pair.b.stack_mut().bind_rx(first).unwrap();
    let (socket, frags) = lend(&mut pair, b"held");
    assert_eq!(frags.len(), 1);
    pair.b.stack_mut().unbind_rx(id).unwrap();
    let error = pair.b.stack_mut().bind_rx(again()).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("64 KiB of the memory (1 net_iov)"),
        "{text}"
    );
    let at = usize::try_from(frags[0].frag_offset).unwrap();
    assert_eq!(memory.slice(at..at + 4).to_vec(), b"held");
    let token = devmem_uapi::DmabufToken::one(frags[0].frag_token);
    assert_eq!(pair.b.stack_mut().dontneed(socket, &[token]), Ok(1));
    pair.b.stack_mut().bind_rx(again()).unwrap();
}

#[test]
fn a_bind_that_fails_at_a_queue_does_not_keep_the_memory() {
    let mut pair = pair(3);
    set_rings(pair.b.stack_mut(), TcpDataSplit::Enabled);
    let memory = Dmabuf::anonymous(2 * 65_536).unwrap();
    let bind = |queues: &[u16]| BindRx {
        dmabuf: memory.clone(),
        ..request(queues)
    };
    let error = pair.b.stack_mut().bind_rx(bind(&[0, 1, 2])).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
    pair.b.stack_mut().bind_rx(bind(&[0])).unwrap();
}
