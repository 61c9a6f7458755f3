//! The agent of the test's own process, and what most tests do with it.

use crate::far::{Far, FarMemory, until};
use crate::loaded::{Agent, IN_PROGRESS, Memory, Range, Transfer};
use crate::setup::way;

/// The name of the agent in the test's process.
pub const NAME: &str = "near";

/// An agent that knows a peer, which knows it.
pub struct Near {
    pub agent: Agent,
    pub peer: String,
}

/// Memory of both sides.
pub struct Both {
    pub near: Memory,
    pub local: u64,
    pub far: FarMemory,
    pub remote: u64,
}

impl Near {
    pub fn meet(far: &mut Far, has_thread: bool, parameters: &[(&str, &str)]) -> Self {
        if way().starts_with("unix:") {
            // This end of a wire needs the other one, which must be open.
            far.info();
        }
        let agent = Agent::open(NAME, has_thread, parameters).expect("an agent");
        let it = Self {
            agent,
            peer: far.name.clone(),
        };
        it.introduce(far);
        it
    }

    /// Loads the connection information of each side at the other.
    pub fn introduce(&self, far: &mut Far) {
        assert_eq!(self.agent.load_agent(&self.peer, far.info()), 0);
        let load = format!("load {NAME} {}", crate::far::hex(&self.agent.info()));
        assert_eq!(far.tell(&load), "0");
    }

    /// Registers memory on both sides: zeroes here, and there the pattern of a seed.
    pub fn memories(&self, far: &mut Far, len: usize, seed: u64) -> Both {
        let near = Memory::new(len);
        let local = self.agent.register(&near);
        let far = far.memory(len, seed);
        let remote = self
            .agent
            .load_region(&self.peer, &far.data)
            .expect("a region");
        Both {
            near,
            local,
            far,
            remote,
        }
    }

    pub fn transfer(&self, is_write: bool, pairs: &[(Range, Range)]) -> Transfer<'_> {
        let (locals, remotes): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        self.agent
            .prepare(is_write, &self.peer, &locals, &remotes)
            .expect("a transfer")
    }
}

impl Both {
    /// Returns a range of each side.
    pub fn pair(&self, near: usize, far: usize, len: usize) -> (Range, Range) {
        let range = |base: u64, offset: usize, region| Range {
            address: base + offset as u64,
            len: len as u64,
            region,
        };
        (
            range(self.near.address(), near, self.local),
            range(self.far.address, far, self.remote),
        )
    }
}

/// Waits for the end of a transfer, and returns its status.
pub fn end_of(transfer: &Transfer<'_>) -> i32 {
    until("a transfer", || {
        let status = transfer.check();
        (status != IN_PROGRESS).then_some(status)
    })
}

/// Posts a transfer, and returns how it ends.
pub fn done(transfer: &Transfer<'_>, notification: Option<&[u8]>) -> i32 {
    match transfer.post(notification) {
        IN_PROGRESS => end_of(transfer),
        status => status,
    }
}
