//! Our sender of `bench lossy` and `bench fairness`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow};
use devmem_linux::cpu;
use devmem_tcp::tcp::TcpOptions;
use devmem_tcp::{Dmabuf, NetdevBuilder};
use tool::sender::pattern_of;
use tool::source::{GeneratedPattern, Source};
use tool::transmit::Transmit;

use super::SenderCounters;
use super::congestion::{Congestion, WRITE_BYTES};
use crate::sender::{PORT, RECEIVER};

/// Device memory of our sender: room for the bytes in its send buffer and for the bytes being written meanwhile.
pub const RING_BYTES: usize = 8 << 20;

/// A sender of the position pattern.
#[derive(Clone, Copy, Debug)]
pub struct OurSender<'a> {
    pub congestion: Congestion,
    /// [`RING_BYTES`] of memory.
    pub memory: &'a Dmabuf,
    /// Processor to run on.
    pub cpu: usize,
}

impl OurSender<'_> {
    /// Opens the NIC and sends to the receiver until the run `is_over`; returns the sender's counters.
    pub fn send_until(self, is_over: &AtomicBool, nic: NetdevBuilder) -> Result<SenderCounters> {
        cpu::pin_current_thread(self.cpu).context("pin the sender")?;
        let mut tcp = TcpOptions::default();
        tcp.congestion = self.congestion.ours();
        let nic = nic.tcp(tcp).open()?;
        let tx = nic.bind_tx(self.memory)?;
        let mut stream = nic.connect(SocketAddr::from((RECEIVER, PORT)))?;
        let port = stream
            .local_addr()
            .context("the connection has ended")?
            .port();
        let mut source = Source::made(GeneratedPattern::Position(pattern_of(port)), u64::MAX);
        let mut transmit = Transmit::new(&mut stream, &tx, 0..RING_BYTES, WRITE_BYTES)
            .map_err(|failure| anyhow!("{failure}"))?;
        transmit
            .feed(&mut source, &mut |_| !is_over.load(Ordering::Relaxed))
            .map_err(|failure| anyhow!("{failure}"))?;
        let info = transmit.tcp_info();
        Ok(info
            .as_ref()
            .map(SenderCounters::of_ours)
            .unwrap_or_default())
    }
}
