//! Cost of the NIC per received packet: a link that delivers the same frame again and
//! again without copying a byte of payload, and a stack that gives the memory back at once.
//!
//! `cargo run --release -p devmem-nic --example rx_cost`. Prints the median of many short runs, for
//! super-packets (goal: below 200 ns), full segments and ACKs.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Instant as Clock;

use netmem::{Dmabuf, DmabufId, MemoryProvider, NiovSize};
use nic::{
    Link, LinkCaps, LinkReceived, LinkSent, Nic, NicConfig, Posted, ProviderChoice, TxFrame,
    VnetMeta,
};
use steer::RxQueueId;
use wire::{
    ChecksumState, EtherType, EthernetHeader, Instant, IpRepr, MacAddr, TcpFlags, TcpHeader,
    TcpOptions, Timestamps, TxChecksum, emit_tcp_frame_headers,
};

const RUNS: usize = 201;
const PACKETS_PER_RUN: u32 = 1000;

/// Delivers headers; the payload is whatever is in the posted memory.
struct HeadersOnly {
    head: Vec<u8>,
    frame_len: usize,
}

impl Link for HeadersOnly {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "headers only",
            mtu: 1500,
            tso: true,
            max_super_packet: nic::MAX_PACKET_LEN,
            max_rx_packet: nic::MAX_PACKET_LEN,
            tx_checksum: true,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _: Instant) -> io::Result<LinkReceived> {
        let n = posted.predicted_header.min(self.head.len());
        posted.head.with_vnet(0, n).copy_from_slice(&self.head[..n]);
        let meta = VnetMeta {
            gso_size: 1448,
            checksum: ChecksumState::Partial(TxChecksum {
                start: 34,
                offset: 16,
            }),
        };
        Ok(LinkReceived::Scattered {
            frame_len: self.frame_len,
            meta,
        })
    }

    fn send(&mut self, _: &TxFrame<'_>, _: Instant) -> io::Result<LinkSent> {
        Ok(LinkSent::Done)
    }
}

fn head(payload_len: usize) -> Vec<u8> {
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let tcp = TcpHeader {
        src_port: 40_000,
        dst_port: 5201,
        seq: 1,
        ack: 1,
        flags: TcpFlags::ACK,
        window: 500,
        urgent: 0,
        options: TcpOptions {
            timestamps: Some(Timestamps { value: 1, echo: 1 }),
            ..TcpOptions::default()
        },
        header_len: 0,
    };
    let ethernet = EthernetHeader {
        dst: NicConfig::default().mac,
        src: MacAddr([2, 0, 0, 0, 0, 9]),
        ethertype: EtherType::IPV4,
        vlan: None,
    };
    let mut head = vec![0; 128];
    let len = emit_tcp_frame_headers(
        &ethernet,
        &IpRepr::v4(src, dst),
        &tcp,
        payload_len,
        &mut head,
    );
    head.truncate(len);
    head
}

/// Returns the median nanoseconds of one packet.
fn measure(payload_len: usize, niov_bytes: usize, rx_queues: u16) -> Result<f64, Box<dyn Error>> {
    let head = head(payload_len);
    let frame_len = head.len() + payload_len;
    let config = NicConfig {
        rx_queues,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(HeadersOnly { head, frame_len }), config)?;
    let memory = Dmabuf::anonymous(64 << 20)?;
    let niov_size = NiovSize::new(niov_bytes)?;
    let provider = MemoryProvider::of_dmabuf(&memory, DmabufId(1), niov_size)?;
    let provider = Arc::new(provider);
    for queue in 0..rx_queues {
        nic.restart_queue(RxQueueId(queue), ProviderChoice::Provider(provider.clone()))?;
    }
    let mut runs = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Clock::now();
        for _ in 0..PACKETS_PER_RUN {
            let packet = nic.poll_rx(Instant::ZERO);
            nic.recycle(
                std::hint::black_box(packet)
                    .expect("a frame is always there")
                    .payload
                    .into_frags(),
            );
        }
        runs.push(start.elapsed().as_nanos() as f64 / f64::from(PACKETS_PER_RUN));
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[RUNS / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    for (name, payload_len, niov_bytes, queues) in [
        ("super-packet, 64 KiB net_iov", 65_160, 65_536, 1),
        ("super-packet, 64 KiB net_iov, 4 queues", 65_160, 65_536, 4),
        ("super-packet, 4 KiB net_iovs", 65_160, 4096, 1),
        ("super-packet, 2 MiB net_iov", 65_160, 2 << 20, 1),
        ("segment of 1448 bytes", 1448, 65_536, 1),
        ("ACK", 0, 65_536, 1),
    ] {
        println!(
            "{:6.1} ns  {name}",
            measure(payload_len, niov_bytes, queues)?
        );
    }
    Ok(())
}
