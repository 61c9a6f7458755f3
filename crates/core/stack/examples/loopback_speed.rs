//! Measures a transfer between two sockets of one stack, from device memory to device memory, and a plain copy of the
//! same bytes on the same core, and prints both rates.
//!
//! `cargo run --release -p devmem-stack --example loopback_speed [GiB]`

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use devmem_uapi::{
    CmsgSink, CmsgWriter, DevmemCmsg, DmabufToken, IfIndex, MsgFlags, NoSpace, cmsg_space,
};
use netmem::{Dmabuf, NiovSize};
use nic::{Nic, NicConfig, Rings, TcpDataSplit, WireLink, WireOptions};
use stack::{BindRx, BindTx, RecvMsg, Secret, SendMsg, SocketId, SocketOption, Stack, StackConfig};
use steer::RxQueueId;
use wire::Instant;

const MEMORY: usize = 256 << 20;
const CHUNK: usize = 1 << 20;

/// Keeps the tokens of one receive.
#[derive(Default)]
struct Tokens(Vec<DmabufToken>);

impl CmsgSink for Tokens {
    fn push(&mut self, message: DevmemCmsg) -> Result<(), NoSpace> {
        if let DevmemCmsg::Dmabuf(frag) = message {
            self.0.push(DmabufToken::one(frag.frag_token));
        }
        Ok(())
    }

    fn room(&self) -> usize {
        128 - self.0.len().min(128)
    }
}

struct Bench {
    stack: Stack,
    clock: std::time::Instant,
    sender: SocketId,
    receiver: SocketId,
    control: Vec<u8>,
    source: Dmabuf,
    target: Dmabuf,
}

impl Bench {
    fn new() -> Self {
        let (link, _other_end) = WireLink::pair(WireOptions::default()).expect("a wire");
        let nic = Nic::new(Box::new(link), NicConfig::default()).expect("a NIC");
        let ip: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        let mut stack =
            Stack::new(nic, StackConfig::new(ip, 24, Secret::from_seed(1))).expect("a stack");
        let rings = stack.nic().rings();
        let split = Rings {
            tcp_data_split: TcpDataSplit::Enabled,
            hds_thresh: 0,
            ..rings
        };
        stack.nic_mut().set_rings(split).expect("split on");
        let source = Dmabuf::anonymous(MEMORY).expect("memory");
        let target = Dmabuf::anonymous(MEMORY).expect("memory");
        source.fill(0..MEMORY, 1).expect("inside");
        let queues = vec![RxQueueId(0)];
        let ifindex = IfIndex(1);
        let bind = BindRx {
            ifindex,
            dmabuf: target.clone(),
            niov_size: NiovSize::DEFAULT,
            queues,
        };
        stack.bind_rx(bind).expect("bound");
        let tx = stack
            .bind_tx(BindTx {
                ifindex,
                dmabuf: source.clone(),
            })
            .expect("bound");
        let mut control = vec![0; cmsg_space(4)];
        CmsgWriter::new(&mut control)
            .push_tx_dmabuf(tx)
            .expect("room");
        let clock = std::time::Instant::now();
        let listener = stack.listen(SocketAddr::new(ip, 5201), 1).expect("free");
        let sender = stack
            .connect(SocketAddr::new(ip, 5201), Instant::ZERO)
            .expect("ours");
        let receiver = loop {
            stack.poll(Instant::from_nanos(clock.elapsed().as_nanos() as u64));
            if let Ok((id, _)) = stack.accept(listener) {
                break id;
            }
        };
        stack
            .set_option(sender, SocketOption::Zerocopy(true))
            .expect("open");
        Self {
            stack,
            clock,
            sender,
            receiver,
            control,
            source,
            target,
        }
    }

    /// Moves `total` bytes through TCP.
    fn transfer(&mut self, total: usize) {
        let (mut sent, mut received) = (0, 0);
        while received < total {
            self.stack
                .poll(Instant::from_nanos(self.clock.elapsed().as_nanos() as u64));
            while sent < total {
                let at = sent % MEMORY;
                let range = at..MEMORY.min(at + CHUNK.min(total - sent));
                let message = SendMsg::device(std::slice::from_ref(&range), &self.control);
                match self
                    .stack
                    .sendmsg(self.sender, &message, MsgFlags::ZEROCOPY)
                {
                    Ok(taken) => sent += taken,
                    Err(_) => break,
                }
            }
            while self.stack.completion(self.sender).is_ok() {}
            let mut tokens = Tokens::default();
            let mut message = RecvMsg::with_len(&mut [], usize::MAX);
            if let Ok(outcome) = self.stack.recvmsg(
                self.receiver,
                &mut message,
                &mut tokens,
                MsgFlags::SOCK_DEVMEM,
            ) {
                received += outcome.bytes;
            }
            if !tokens.0.is_empty() {
                self.stack.dontneed(self.receiver, &tokens.0).expect("lent");
            }
        }
    }

    /// Copies `total` bytes, in pieces of the size of one packet.
    fn copy(&self, total: usize) {
        let piece = 65_160;
        let mut done = 0;
        while done < total {
            let at = done % (MEMORY - piece);
            self.target
                .copy_from(&self.source, at, at, piece)
                .expect("inside");
            done += piece;
        }
    }
}

fn main() {
    let gib: usize = std::env::args()
        .nth(1)
        .and_then(|arg| arg.parse().ok())
        .unwrap_or(4);
    let total = gib << 30;
    let mut bench = Bench::new();
    bench.transfer(1 << 30);
    for round in 1..=5 {
        let start = std::time::Instant::now();
        bench.transfer(total);
        let tcp = total as f64 / start.elapsed().as_secs_f64() / 1e9;
        let start = std::time::Instant::now();
        bench.copy(total);
        let copy = total as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!(
            "round {round}: loopback {tcp:.1} GB/s, copy {copy:.1} GB/s, ratio {:.2}",
            tcp / copy
        );
    }
}
