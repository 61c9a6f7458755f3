//! A small NVMe/TCP target over kernel sockets: namespaces in memory or in files, one thread for each connection.
//!
//! Key types: [`Target`] (a running one), [`Subsystem`] (what it serves, and by which rules) and [`Mistake`] (what it does wrong
//! on demand). It is the other end of a load or a store in tests, demonstrations and benchmarks; nobody should keep data on it.
//!
//! It has no TLS, no authentication, no reservations and no asynchronous events, and keeps no controller alive by a timer.

#![forbid(unsafe_code)]

mod admin;
mod connection;
mod controller;
mod disk;
mod io_queue;
mod mistake;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use controller::Controllers;
pub use disk::{Disk, Storage};
pub use mistake::{Mistake, Mistakes};
pub use nvme::Status;
use nvme::pdu::Digests;

/// What a target serves, and by which rules.
#[derive(Debug)]
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// Its namespaces, from number 1 on.
    pub disks: Vec<Arc<Disk>>,
    /// Time in which a controller becomes ready, in milliseconds: a multiple of 500 (CAP.TO).
    pub ready_ms: u64,
    /// Longest transfer of a command, as a power of two of 4 KiB; 0 for no limit (MDTS).
    pub transfer_log2: u8,
    /// Most data of a write in its capsule, a multiple of 16.
    pub capsule_bytes: u32,
    /// Most data in one PDU from the host, a multiple of 4.
    pub most_data: u32,
    /// Longest data in one PDU to the host.
    pub part_bytes: u32,
    /// Most data of a write that are requested at a time.
    pub transfer_bytes: u32,
    /// I/O queues of a controller.
    pub queues: u16,
    /// Entries of a queue.
    pub queue_entries: u32,
    /// Whether hosts may connect queues without flow control.
    pub allows_no_flow_control: bool,
    /// Whether commands that have come together are answered in reverse order.
    pub reverses: bool,
    /// Whether Write Zeroes and Dataset Management are there.
    pub has_optional_commands: bool,
    /// The only host that may connect; `None`: all may.
    pub allowed_host: Option<String>,
    /// Whether hosts are asked to authenticate, which no host of this library does.
    pub wants_authentication: bool,
    /// Digests that it agrees to.
    pub digests: Digests,
    /// What it does wrong.
    pub mistakes: Mistakes,
}

impl Subsystem {
    /// Returns a subsystem with these namespaces and the rules of Linux' nvmet: ready within 7.5 s, capsules of 16 KiB, 4 MiB in one PDU, no limit
    /// of a transfer; and without mistakes.
    pub fn new(nqn: &str, disks: Vec<Arc<Disk>>) -> Self {
        Self {
            nqn: nqn.to_owned(),
            disks,
            ready_ms: 7500,
            transfer_log2: 0,
            capsule_bytes: 16 << 10,
            most_data: 4 << 20,
            part_bytes: u32::MAX,
            transfer_bytes: u32::MAX,
            queues: 16,
            queue_entries: 128,
            allows_no_flow_control: true,
            reverses: false,
            has_optional_commands: true,
            allowed_host: None,
            wants_authentication: false,
            digests: Digests {
                header: true,
                data: true,
            },
            mistakes: Mistakes::default(),
        }
    }
}

/// What a target has counted.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections with a handshake.
    pub connections: AtomicU64,
    /// Connections that are open now.
    pub open: AtomicU64,
    /// Associations that were begun.
    pub associations: AtomicU64,
    /// Associations that hosts have shut down in an orderly way.
    pub shutdowns: AtomicU64,
    /// Signs of life of hosts.
    pub keep_alives: AtomicU64,
    /// Commands of I/O queues, answered or not.
    pub commands: AtomicU64,
    /// Flushes among them.
    pub flushes: AtomicU64,
    /// Bytes of writes whose data were in their capsule.
    pub capsule_bytes: AtomicU64,
    /// Connections that hosts have ended for a mistake.
    pub terminations: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) subsystem: Subsystem,
    pub(crate) controllers: Controllers,
    pub(crate) counts: Counts,
    /// Where hosts reach the target, for the discovery log.
    pub(crate) address: SocketAddr,
    is_ending: AtomicBool,
}

/// A running target. Dropping it ends all of its connections.
#[derive(Debug)]
pub struct Target {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Target {
    /// Serves a subsystem on a socket that listens.
    ///
    /// # Errors
    /// The socket has no address; there is no thread.
    pub fn start(listener: TcpListener, subsystem: Subsystem) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            subsystem,
            controllers: Controllers::default(),
            counts: Counts::default(),
            address: listener.local_addr()?,
            is_ending: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let accept = move || accept(&listener, &serving);
        let acceptor = thread::Builder::new().name("nvme-target".to_owned());
        Ok(Self {
            shared,
            acceptor: Some(acceptor.spawn(accept)?),
        })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.shared.address.port()
    }

    /// Returns what it has counted.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Ends all connections at once and forgets what was not flushed, as a target does that crashes and is started again.
    pub fn crash(&self) {
        self.shared.controllers.end_all();
        for disk in &self.shared.subsystem.disks {
            disk.lose_cache();
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let at = match self.shared.address {
            SocketAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], self.port())),
            SocketAddr::V6(_) => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, self.port())),
        };
        let woken = std::net::TcpStream::connect(at).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
        self.shared.controllers.end_all();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.is_ending.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors: others end meanwhile.
            thread::yield_now();
            continue;
        };
        let shared = Arc::clone(shared);
        let serve = move || connection::serve(stream, &shared);
        // Without a thread the connection ends, as a full target would end it.
        let _ = thread::Builder::new()
            .name("nvme-queue".to_owned())
            .spawn(serve);
    }
}
