//! The two senders of a row, and how each is started.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use devmem_tcp::{Dmabuf, Netdev, NetdevBuilder};
use serde::Serialize;

use super::MTU;
use crate::lossy::{Congestion, OurSender, SenderCounters};
use crate::network::VETH;
use crate::sender::{Home, PREFIX, SENDER, SenderProcess, Sending};

/// Addresses of the first and the second sender.
pub const ADDRESSES: [Ipv4Addr; 2] = [SENDER, Ipv4Addr::new(10, 77, 0, 3)];

/// Which two senders share the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pair {
    /// The kernel's and this one
    Mixed,
    /// Two of the kernel: how far equal senders differ
    Kernel,
    /// Two of this stack
    Ours,
}

/// Whose sender one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Kernel,
    Ours,
}

impl Pair {
    /// Returns whose the first and the second sender are.
    pub fn whose(self) -> [Whose; 2] {
        match self {
            Pair::Mixed => [Whose::Kernel, Whose::Ours],
            Pair::Kernel => [Whose::Kernel; 2],
            Pair::Ours => [Whose::Ours; 2],
        }
    }

    /// Returns the addresses of the kernel's senders.
    pub fn kernel_addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        let both = ADDRESSES.into_iter().zip(self.whose());
        both.filter_map(|(address, whose)| (whose == Whose::Kernel).then_some(address))
    }
}

impl Whose {
    pub fn name(self) -> &'static str {
        match self {
            Whose::Kernel => "kernel",
            Whose::Ours => "ours",
        }
    }
}

/// What a sender needs.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    pub congestion: Congestion,
    pub memory: &'a Dmabuf,
    pub cpu: usize,
    /// The run of our senders is over.
    pub is_over: &'a AtomicBool,
}

/// A sender that can begin at once.
pub enum Ready {
    Kernel(SenderProcess),
    Ours(Box<NetdevBuilder>),
}

impl Ready {
    pub fn new(whose: Whose, address: Ipv4Addr, time: Duration, means: Means<'_>) -> Result<Self> {
        Ok(match whose {
            Whose::Kernel => {
                let sending = Sending {
                    from: Some(address),
                    ..means.congestion.of_the_kernel()
                };
                let process = SenderProcess::start(sending, time, means.cpu, Home::Shared)?;
                Ready::Kernel(process)
            }
            Whose::Ours => {
                let nic = Netdev::builder(format!("packet:{VETH}"))?;
                let nic = nic.address(&format!("{address}/{PREFIX}"))?.mtu(MTU);
                Ready::Ours(Box::new(nic))
            }
        })
    }

    pub fn begin<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        means: Means<'scope>,
    ) -> Result<Running<'scope>> {
        Ok(match self {
            Ready::Kernel(mut process) => {
                let starter = process.starter()?;
                starter.go().context("start the kernel's sender")?;
                Running::Kernel { _process: process }
            }
            Ready::Ours(nic) => {
                let Means {
                    congestion,
                    memory,
                    cpu,
                    is_over,
                } = means;
                let ours = OurSender {
                    congestion,
                    memory,
                    cpu,
                };
                Running::Ours(scope.spawn(move || ours.send_until(is_over, *nic)))
            }
        })
    }
}

/// A sender that sends.
pub enum Running<'scope> {
    /// It ends with its handle.
    Kernel {
        _process: SenderProcess,
    },
    Ours(ScopedJoinHandle<'scope, Result<SenderCounters>>),
}

impl Running<'_> {
    /// Ends one of ours, whose run is over, and returns its counters; of the kernel's senders there are only those of all.
    pub fn end(self) -> Result<SenderCounters> {
        match self {
            Running::Kernel { .. } => Ok(SenderCounters::default()),
            Running::Ours(sender) => sender.join().map_err(|_| anyhow!("our sender panicked"))?,
        }
    }
}
