//! After which reads a connection is served, and after which that waits for the next segment.

use netmem::FragList;
use nic::NicConfig;
use tcp::{AckRules, Segment};
use wire::Instant;

use super::*;
use crate::SendMsg;
use crate::socket::sockets::tests::World;
use crate::socket::sockopt::SocketOption;
use crate::window::Windows;

/// A connection with a message of 8 bytes that is acknowledged, and not read.
struct Unread {
    world: World,
    sender: SocketId,
    reader: SocketId,
}

impl Unread {
    fn new() -> Self {
        Self::in_world(World::with(NicConfig::default(), |_| {}))
    }

    fn in_world(mut world: World) -> Self {
        let listener = world.listener();
        let (sender, reader) = world.pair(listener);
        let mut unread = Self {
            world,
            sender,
            reader,
        };
        unread.send(&[1; 8]);
        unread
    }

    /// Sends `bytes`, which arrive.
    fn send(&mut self, bytes: &[u8]) {
        let message = SendMsg::new(bytes);
        let sender = self.sender;
        let call =
            |stack: &mut Stack, _: Instant| stack.sendmsg(sender, &message, MsgFlags::empty());
        assert_eq!(self.world.call(call), Ok(bytes.len()));
        self.world.run();
    }

    fn change(&mut self, change: impl FnOnce(&mut ConnectionSocket, &mut Windows)) {
        let Stack {
            sockets, memory, ..
        } = &mut self.world.stack;
        let mut connection = sockets.connection_mut(self.reader).unwrap().unwrap();
        change(&mut connection, &mut memory.windows);
    }

    /// Reads what there is; returns whether the stack has work then.
    fn serves_after_read(mut self) -> bool {
        assert!(!self.world.stack.wants_flush());
        self.world.receive(self.reader, MsgFlags::empty()).unwrap();
        self.world.stack.wants_flush()
    }
}

#[test]
fn a_short_read_leaves_the_window_to_the_next_segment() {
    assert!(!Unread::new().serves_after_read());
}

#[test]
fn a_read_that_an_ack_waits_for_sends_it() {
    let mut unread = Unread::in_world(World::with(NicConfig::default(), |config| {
        config.tcp.tuning.acks = AckRules::Linux;
    }));
    unread.world.set(unread.sender, SocketOption::NoDelay(true));
    let reader = unread.reader;
    let quick = unread
        .world
        .call(|stack, _| stack.set_quick_acks(reader, false));
    quick.unwrap();
    // Several packets with PSH, whose ACK waits for an answer or for the program.
    unread.send(&[2; 8]);
    unread.send(&[3; 8]);
    assert!(unread.serves_after_read());
}

#[test]
fn a_read_opens_a_window_that_was_closed_for_want_of_memory() {
    let mut unread = Unread::new();
    let Unread { world, sender, .. } = &mut unread;
    let now = Instant::from_millis(1);
    let message = SendMsg::new(&[2; 8]);
    let sent = world.call(|stack, _| stack.sendmsg(*sender, &message, MsgFlags::empty()));
    assert_eq!(sent, Ok(8));
    let mut connection = world
        .stack
        .sockets
        .connection_mut(*sender)
        .unwrap()
        .unwrap();
    let ConnectionSocket { conn, options, .. } = &mut *connection;
    let unplaced = Segment {
        payload: FragList::default(),
        ..conn.poll_send(&options.tcp, now).unwrap()
    };
    drop(connection);
    let slot = sender.slot();
    world.stack.sockets.clear(Mark::Touched, slot);
    unread.change(|connection, _| {
        let ConnectionSocket { conn, options, .. } = connection;
        let _ = conn.on_unplaced(unplaced, &options.tcp, now);
        let closes = conn.poll_send(&options.tcp, now);
        assert_eq!(closes.map(|ack| ack.window), Some(0));
    });
    assert!(unread.serves_after_read());
}

#[test]
fn a_read_lets_payload_out_of_order_be_held_again() {
    let mut unread = Unread::new();
    unread.change(|connection, windows| connection.note_pruned(0, windows));
    assert!(unread.serves_after_read());
}

#[test]
fn a_read_that_lets_the_window_double_sends_an_update() {
    let mut unread = Unread::new();
    unread
        .world
        .set(unread.reader, SocketOption::RcvBuf(64 << 10));
    unread.send(&[2; 50_000]);
    assert!(unread.serves_after_read());
}

#[test]
fn a_read_serves_a_connection_that_waits_for_the_memory() {
    let nic = NicConfig {
        host_mem_bytes: 1 << 20,
        ..NicConfig::default()
    };
    let mut world = World::with(nic, |_| {});
    let listener = world.listener();
    let (sender, reader) = world.pair(listener);
    let (other, waits) = world.pair(listener);
    let queue = world
        .stack
        .sockets
        .connection(waits)
        .unwrap()
        .unwrap()
        .rx_queue();
    // Unread payload fills the memory that may be promised, and the other connection wants some.
    for socket in [sender, other] {
        world.fill(socket, MsgFlags::empty());
        world.run();
    }
    assert!(world.stack.memory.windows.has_starved(queue));
    assert!(!world.stack.memory.windows.any_to_visit());
    while world.receive(reader, MsgFlags::empty()).is_ok() {}
    assert!(world.stack.memory.windows.any_to_visit());
}
