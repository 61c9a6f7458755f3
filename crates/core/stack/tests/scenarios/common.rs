//! Shared parts of the tests of whole stacks.
#![allow(
    dead_code,
    reason = "the memory test, a binary of its own, uses a part"
)]

use std::collections::BTreeMap;

use super::{DoorSocket, Pair};
use devmem_uapi::{
    CmsgIter, DevmemCmsg, DmabufCmsg, DmabufId, DmabufToken, Errno, MsgFlags, space_for,
};
use netmem::NiovSize;
use netsim::{Door, PairConfig, Pattern, Progress, RecvResult, RecvRoom, Side};
use stack::SendMsg;

/// The port of all listeners.
pub const PORT: u16 = 5201;

/// A pair with 4 MiB of device memory bound to queue 0 of side B, and a connection from A to B.
pub struct Bound {
    pub pair: Pair,
    pub id: DmabufId,
    pub receiver: DoorSocket,
    pub sender: DoorSocket,
    pub pattern: Pattern,
    /// Bytes sent so far.
    pub sent: u64,
}

impl Bound {
    pub fn new(config: &PairConfig) -> Self {
        Self::with_memory(config, 4 << 20, NiovSize::DEFAULT)
    }

    pub fn with_memory(config: &PairConfig, bytes: usize, niov_size: NiovSize) -> Self {
        let mut pair = Pair::new(config);
        let id = pair.bind(Side::B, bytes, niov_size, &[0]);
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
        Self {
            pair,
            id,
            receiver,
            sender,
            pattern: Pattern::new(config.seed),
            sent: 0,
        }
    }

    /// Sends `len` bytes of the pattern and lets them arrive, in one packet if they fit one.
    pub fn send(&mut self, len: usize) {
        let mut bytes = vec![0; len];
        self.pattern.fill(self.sent, &mut bytes);
        let mut done = 0;
        let (sender, receiver) = (self.sender, self.receiver);
        let unread = readable(&self.pair.b, receiver) + len;
        self.pair
            .run(|pair| {
                if done < bytes.len() {
                    done += pair
                        .a
                        .sendmsg(sender, &SendMsg::new(&bytes[done..]), MsgFlags::empty())
                        .unwrap_or(0);
                }
                if readable(&pair.b, receiver) == unread {
                    Progress::Done
                } else {
                    Progress::Waiting
                }
            })
            .unwrap();
        self.sent += len as u64;
    }

    /// Receives once at B.
    pub fn recv(
        &mut self,
        host: usize,
        messages: usize,
        flags: MsgFlags,
    ) -> Result<ReceivedMsg, Errno> {
        recv(
            &mut self.pair.b,
            self.receiver,
            &mut RecvArgs::new(host, messages, flags),
        )
    }

    /// Gives all tokens of a receive back.
    pub fn give_back(&mut self, received: &ReceivedMsg) {
        for frag in received.frags() {
            assert_eq!(
                self.pair
                    .b
                    .dontneed(self.receiver, &[DmabufToken::one(frag.frag_token)]),
                Ok(1)
            );
        }
    }

    /// Checks the bytes of a frag, which stand at `position` of the stream.
    pub fn check_frag(&self, frag: &DmabufCmsg, position: u64) {
        let range = frag.frag_offset as usize..frag.frag_offset as usize + frag.frag_size as usize;
        let bytes = self
            .pair
            .dmabuf(Side::B, frag.dmabuf_id)
            .slice(range)
            .to_vec();
        self.pattern.check(position, &bytes).unwrap();
    }

    /// Closes both ends, and checks that all memory was given back.
    pub fn finish(mut self) {
        let _ = self.pair.a.close(self.sender);
        let _ = self.pair.b.close(self.receiver);
        self.pair.finish();
    }
}

/// Returns how many bytes can be read.
pub fn readable<D: Door>(door: &D, socket: D::Socket) -> usize {
    door.info(socket).unwrap().unwrap().readable
}

/// Arguments of one receive.
pub struct RecvArgs {
    pub host: Vec<u8>,
    pub len: usize,
    pub control: Vec<u8>,
    pub flags: MsgFlags,
}

impl RecvArgs {
    pub fn new(host: usize, messages: usize, flags: MsgFlags) -> Self {
        Self {
            host: vec![0; host],
            len: host,
            control: vec![0; space_for(messages)],
            flags,
        }
    }
}

/// Result of one receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMsg {
    pub outcome: RecvResult,
    /// Bytes copied.
    pub host: Vec<u8>,
    pub messages: Vec<DevmemCmsg>,
}

impl ReceivedMsg {
    /// Returns the messages about device memory.
    pub fn frags(&self) -> Vec<DmabufCmsg> {
        let frag = |message: &DevmemCmsg| match message {
            DevmemCmsg::Dmabuf(frag) => Some(*frag),
            DevmemCmsg::Linear(_) => None,
        };
        self.messages.iter().filter_map(frag).collect()
    }

    /// Returns the tokens.
    pub fn tokens(&self) -> Vec<u32> {
        self.frags().iter().map(|frag| frag.frag_token.0).collect()
    }
}

/// Receives once.
pub fn recv<D: Door>(
    door: &mut D,
    socket: D::Socket,
    args: &mut RecvArgs,
) -> Result<ReceivedMsg, Errno> {
    let room = RecvRoom {
        host: &mut args.host,
        len: args.len,
        control: &mut args.control,
    };
    let outcome = door.recvmsg(socket, room, args.flags)?;
    let messages = CmsgIter::new(&args.control[..outcome.control_bytes])
        .map(|cmsg| DevmemCmsg::parse(&cmsg).unwrap())
        .collect();
    Ok(ReceivedMsg {
        outcome,
        host: args.host[..outcome.host_bytes].to_vec(),
        messages,
    })
}

/// Checks that the message of the last error contains these words, if the door has messages.
pub fn assert_says(door: &impl Door, named: &[&str]) {
    if let Some(words) = door.words() {
        assert!(named.iter().all(|name| words.contains(name)), "{words}");
    }
}

/// Returns the drop counters that are not 0.
pub fn drops(door: &impl Door) -> BTreeMap<&'static str, u64> {
    door.drops()
}

/// Checks that no packet was dropped because memory was short.
pub fn assert_no_memory_drops(door: &impl Door) {
    let drops = door.drops();
    for name in [
        "rx_no_buffers",
        "rx_no_host_buffers",
        "tcp_no_space",
        "tcp_out_of_window",
        "tcp_too_many_segments",
    ] {
        assert_eq!(drops.get(name), None, "{drops:?}");
    }
}
