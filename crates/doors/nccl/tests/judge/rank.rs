//! Two ranks: processes of their own, and what they tell each other through files.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::loaded::{Code, Handle, Plugin, Pointer, WARNINGS};

/// After this time without an outcome a case has failed.
const PATIENCE: Duration = Duration::from_secs(100);

/// One of the two processes.
pub struct Rank {
    pub plugin: Plugin,
    pub number: usize,
    folder: PathBuf,
}

/// A communicator in each direction.
#[derive(Clone, Copy)]
pub struct Link {
    pub to: Pointer,
    pub from: Pointer,
}

/// Memory of a case.
pub struct Buffer {
    pub bytes: Vec<u8>,
    pub handle: Pointer,
}

/// Repeats `attempt` until it has a result.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    for attempts in 1_u32.. {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{what}: no outcome; {:?}",
            WARNINGS.lock()
        );
        // NCCL asks all the time. Other tests need the processors while one waits for a limit of time.
        match attempts {
            ..1000 => std::thread::yield_now(),
            1000..3000 => std::thread::sleep(Duration::from_micros(500)),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    unreachable!("u32::MAX attempts take longer than {PATIENCE:?}")
}

/// After so many bytes a pattern repeats. It is prime: of what is moved in whole pages, no two places in 256 MiB have the same bytes.
const PERIOD: usize = 65_537;

/// Bytes that differ by seed and position. One period is computed, the rest copied.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len.max(PERIOD + 8));
    while bytes.len() < len.min(PERIOD) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len.min(PERIOD));
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

impl Rank {
    pub fn new(plugin: Plugin, number: usize, folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self {
            plugin,
            number,
            folder,
        }
    }

    /// Gives bytes to the other rank under a name, and returns its bytes of the same name.
    pub fn exchange(&self, name: &str, bytes: &[u8]) -> Vec<u8> {
        let of = |rank: usize| self.folder.join(format!("{name}.{rank}"));
        let partial = self.folder.join(format!("{name}.{}.partial", self.number));
        std::fs::write(&partial, bytes).expect("the folder is writable");
        std::fs::rename(&partial, of(self.number)).expect("the folder is writable");
        until(name, || {
            std::thread::sleep(Duration::from_millis(1));
            std::fs::read(of(1 - self.number)).ok()
        })
    }

    /// Waits until both ranks are here.
    pub fn meet(&self, name: &str) {
        self.exchange(name, b"here");
    }

    /// Connects both ranks in both directions.
    pub fn link(&self, name: &str) -> Link {
        self.link_by(name, |listening| self.plugin.accept(listening))
    }

    /// Connects both ranks in both directions, and accepts by `accept`.
    pub fn link_by(
        &self,
        name: &str,
        mut accept: impl FnMut(Pointer) -> Result<Option<Pointer>, Code>,
    ) -> Link {
        let (handle, listening) = self.plugin.listen(0).expect("listen");
        let theirs = self.exchange(name, &*handle);
        let mut theirs = Box::new(theirs.try_into().expect("128 bytes"));
        let link = self.meet_at(&mut theirs, || accept(listening));
        self.plugin.close_listen(listening).expect("closeListen");
        link
    }

    /// Connects this rank to itself, in one direction.
    pub fn link_to_itself(&self) -> Link {
        let (mut handle, listening) = self.plugin.listen(0).expect("listen");
        let link = self.meet_at(&mut handle, || self.plugin.accept(listening));
        self.plugin.close_listen(listening).expect("closeListen");
        link
    }

    /// Connects to the listener of `handle`, and accepts a connection: one thread polls both.
    pub fn meet_at(
        &self,
        handle: &mut Handle,
        mut accept: impl FnMut() -> Result<Option<Pointer>, Code>,
    ) -> Link {
        let (mut to, mut from) = (None, None);
        until("connecting", || {
            if to.is_none() {
                to = self.plugin.connect(0, handle).expect("connect");
            }
            if from.is_none() {
                from = accept().expect("accept");
            }
            Some(Link {
                to: to?,
                from: from?,
            })
        })
    }

    pub fn close(&self, link: Link) {
        self.plugin.close_send(link.to).expect("closeSend");
        self.plugin.close_receive(link.from).expect("closeRecv");
    }

    pub fn buffer(&self, comm: Pointer, mut bytes: Vec<u8>) -> Buffer {
        let handle = self.plugin.register(comm, &mut bytes).expect("regMr");
        Buffer { bytes, handle }
    }

    pub fn send(&self, comm: Pointer, buffer: &Buffer, len: usize, tag: c_int) -> Pointer {
        let memory = (buffer.bytes.as_ptr(), len);
        until("posting a send", || {
            self.plugin
                .send(comm, memory, tag, Some(buffer.handle))
                .expect("isend")
        })
    }

    pub fn receive(&self, comm: Pointer, buffer: &mut Buffer, len: usize, tag: c_int) -> Pointer {
        let part = (buffer.bytes.as_mut_ptr(), len, tag);
        until("posting a receive", || {
            self.plugin
                .receive(comm, &[part], Some(buffer.handle), 0)
                .expect("irecv")
        })
    }

    /// Waits until a request of one part is done, and returns its size.
    pub fn finish(&self, request: Pointer) -> usize {
        until("a request", || self.plugin.test(request, 1).expect("test"))[0]
    }

    /// Waits until a request fails, and returns the code.
    pub fn fails(&self, request: Pointer) -> Code {
        until("a failure", || match self.plugin.test(request, 1) {
            Ok(None) => None,
            Ok(Some(sizes)) => panic!("done with {sizes:?}, not failed"),
            Err(code) => Some(code),
        })
    }
}
