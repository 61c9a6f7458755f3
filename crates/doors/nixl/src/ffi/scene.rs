// UNSAFETY: registers memory of its own, and frees it.

//! A target with a hostile peer, for the fuzz target `nixl_control`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::carriers::{Carriers, Counts};
use crate::control::Control;
use crate::data::DataStream;
use crate::inbox::Inbox;
use crate::near::NearMemory;
use crate::raw::region::Region;
use crate::record::MAX_INLINE_BYTES;
use crate::regions::Regions;
use crate::sockets::{Readiness, Socket};
use crate::target::Target;
use crate::wire::{Ready, Wire};
use crate::wires::{Context, Wires};

/// Bytes of the memory; the second quarter of it is registered.
pub const BYTES: usize = 32 << 10;

/// What the memory has at the beginning. The peer must not send it.
pub const GUARD: u8 = 0xee;

/// The key of the registered memory.
pub const KEY: u64 = 3;

/// The side that serves, with two connections for payload, and the ends of its peer.
pub struct Scene {
    target: Target,
    regions: Regions,
    inbox: Inbox,
    counts: Counts,
    control: UnixStream,
    payload: [UnixStream; 2],
    memory: *mut [u8; BYTES],
    has_ended: bool,
}

/// Returns both ends of a connection: one of the target, and one of the peer.
fn pair(readiness: &Arc<Readiness>) -> (Box<dyn Wire>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    let ours = TcpStream::from(OwnedFd::from(ours));
    (Box::new(Socket::new(ours, readiness)), theirs)
}

impl Default for Scene {
    fn default() -> Self {
        let memory = Box::into_raw(Box::new([GUARD; BYTES]));
        let start = memory.cast::<u8>().expose_provenance() + BYTES / 4;
        // SAFETY: a quarter of the memory, which is freed after the target.
        let region = unsafe { Region::new(start, BYTES / 4, KEY) };
        let mut regions = Regions::default();
        regions.add(region.expect("an address of this process"));
        let readiness = Arc::new(Readiness::new().expect("an epoll descriptor"));
        let [(ours, control), (first, a), (second, b)] = [(); 3].map(|()| pair(&readiness));
        let carriers = Carriers {
            streams: [first, second].map(DataStream::new).into(),
            near: Some(NearMemory::new(rustix::process::getpid())),
        };
        let wires = Wires::new(Control::new(ours), carriers);
        Self {
            target: Target::new("fuzz".into(), wires),
            regions,
            inbox: Inbox::default(),
            counts: Counts::default(),
            control,
            payload: [a, b],
            memory,
            has_ended: false,
        }
    }
}

impl Scene {
    /// The peer sends bytes on its control connection, and on those for payload.
    pub fn say(&mut self, control: &[u8], payload: &[u8]) {
        // The target may take nothing more.
        let _ = self.control.write(control);
        for stream in &mut self.payload {
            let _ = stream.write(payload);
            let _ = stream.read(&mut [0; 4096]);
        }
    }

    /// Lets the target move what it can.
    pub fn turn(&mut self) {
        if self.has_ended {
            return;
        }
        let mut context = Context {
            regions: &self.regions,
            inbox: &mut self.inbox,
            counts: &mut self.counts,
            inline_bytes: MAX_INLINE_BYTES as u64,
            sources: &mut Vec::new(),
            entries: &mut Vec::new(),
            placed: &mut Vec::new(),
        };
        for number in 0..3 {
            let ready = Ready {
                number,
                to_read: true,
                to_write: true,
            };
            self.target.wires.on_ready(number as usize, ready);
        }
        self.has_ended = self.target.turn(&mut context).is_err();
    }

    /// Checks that nothing outside of the registered memory was written.
    ///
    /// # Panics
    /// If something was.
    pub fn check(&self) {
        // SAFETY: the memory of `default`; nobody writes to it meanwhile.
        let bytes = unsafe { self.memory.read() };
        let (before, rest) = bytes.split_at(BYTES / 4);
        let behind = &rest[BYTES / 4..];
        assert!(before.iter().chain(behind).all(|byte| *byte == GUARD));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // SAFETY: of `default`, by `Box::into_raw`; the target touches it only in `turn`.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
